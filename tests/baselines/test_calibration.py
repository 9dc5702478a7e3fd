"""What runs of one benchmark amount to, on made-up launches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_ddpperf.baselines.calibration import Recommended, calibration, recommended
from pytest_ddpperf.records.measurement import Measurement, Plan, Spread
from pytest_ddpperf.records.noise import Calibration
from pytest_ddpperf.records.results import Provenance
from tests.factories import make_launch, make_measurement

FOUND = Calibration(
    name="ddp",
    date="2026-01-12",
    commit=None,
    runs=5,
    launches=8,
    steps=24,
    seconds=60.0,
    within=Spread(sd=0.1, df=99),
    between_launches=Spread(sd=0.02, df=35),
    between_runs=Spread(sd=0.0, df=4),
    floor=0.01,
)


def run(*logs: float) -> Measurement:
    """Launches of four steps that take ``exp(log)`` s; the first rank is the slower one."""
    launches = (make_launch(*((math.exp(log - rank),) * 4 for rank in (0, 1)), round=i) for i, log in enumerate(logs))
    return make_measurement(plan=Plan(warmup=1, steps=4), launches=tuple(launches))


def test_the_parts_of_a_calibration() -> None:
    """As in the tests of components: 2 between launches, 16 / 3 between runs; steps of a launch are alike."""
    found = calibration([run(0, 2), run(4, 6)], seconds=9.0, provenance=Provenance(date="2026-01-12", commit="3f2a1c0"))
    assert (found.name, found.date, found.commit) == ("ddp", "2026-01-12", "3f2a1c0")
    assert (found.runs, found.launches, found.steps, found.seconds) == (2, 2, 4, 9.0)
    assert found.within == Spread(sd=0.0, df=4 * 3)
    assert found.between_launches.sd == pytest.approx(math.sqrt(2))
    assert found.between_launches.df == 2
    assert found.between_runs.sd == pytest.approx(math.sqrt(16 / 3))
    assert found.between_runs.df == 1
    assert found.floor == pytest.approx(math.expm1(math.tan(0.45 * math.pi) * 4))  # s = 4 / sqrt(2)


def wanted(found: Calibration, *, spread: float = 0.01) -> Recommended:
    return recommended(found, spread=spread, launches=4, round_seconds=2.0, max_time=60.0)


def test_a_quiet_benchmark_keeps_its_settings() -> None:
    """2 % of a launch is 1 % of four."""
    assert wanted(FOUND) == Recommended(4, 24, None)


def test_launches_that_scatter_more_want_more_of_them_and_time() -> None:
    """(4.5 / 1)^2 is 20.25, so 21; a look at them and its pilot take 44 s, twice that 88 s."""
    assert wanted(replace(FOUND, between_launches=Spread(sd=0.045, df=35))) == Recommended(21, 24, 90.0)


def test_there_is_an_end_to_more_launches() -> None:
    assert wanted(replace(FOUND, between_launches=Spread(sd=0.5, df=35))).launches == 32


def test_a_floor_wants_no_other_settings() -> None:
    assert wanted(replace(FOUND, floor=1.7)) == wanted(FOUND)


def test_the_order_of_runs_does_not_matter() -> None:
    def of(runs: Sequence[Measurement]) -> Calibration:
        return calibration(runs, seconds=1.0, provenance=Provenance(date="2026-01-12", commit=None))

    one, other = run(0, 0.1, 0.2), run(0.1, 0.3)
    assert of([one, other]).floor == pytest.approx(of([other, one]).floor)
    assert of([one, other]).between_runs.sd == pytest.approx(of([other, one]).between_runs.sd)
