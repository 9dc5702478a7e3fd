"""What a calibration changes in the judgement on times: it never makes a verdict blinder than none does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from pytest_ddpperf.baselines.calibration import calibration
from pytest_ddpperf.baselines.noise import known_noise, training_of
from pytest_ddpperf.judge.allowance import TIMED_SPREAD
from pytest_ddpperf.records.measurement import Spread
from pytest_ddpperf.records.noise import Calibration, Noise, RunSpread
from pytest_ddpperf.records.results import Comparison, Provenance
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.spreads import noise_floor
from tests.factories import make_launch, make_measurement
from tests.judge.made_up import STEADY, found, judged, measured, series

TEST = "test_x.py::test_a"
SLOWDOWNS = {0.0: Verdict.UNCHANGED, 0.06: Verdict.REGRESSED, 0.08: Verdict.REGRESSED, 0.15: Verdict.REGRESSED}


def apart(sd: float, df: int) -> Calibration:
    """A calibration by one more run than the degrees of freedom, whose equal launches deviate by so much by run."""
    logs = [(-1.0) ** number for number in range(df + 1)]
    mean = math.fsum(logs) / len(logs)
    unit = math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / df)
    return calibrated([[math.exp(sd * log / unit)] * 4 for log in logs])


def calibrated(times: Sequence[Sequence[float]]) -> Calibration:
    """A calibration by runs whose launches took so long for a step."""
    runs = [
        make_measurement(launches=tuple(make_launch((time,), round=i) for i, time in enumerate(of_run)))
        for of_run in times
    ]
    learned = calibration(runs, seconds=60.0, provenance=Provenance(date="2026-01-12", commit=None))
    assert learned.floor == noise_floor(times)
    return learned


def noise_of(learned: Calibration) -> Noise | None:
    trained = training_of(TEST, learned)
    return known_noise(trained, {trained: learned}, {}, {})


def slower(by: float, noise: Noise | None) -> Comparison:
    """A step time beside a baseline of the same launches."""
    new = measured(series("step_time", STEADY, factor=1 + by))
    return judged(new, replace(found(series("step_time", STEADY)), noise=noise), tolerance=0.03)["step_time"]


@pytest.mark.parametrize("by", SLOWDOWNS)
@pytest.mark.parametrize("share", [0.2, 0.9999])
@pytest.mark.parametrize("df", [1, 4, 30])
def test_a_calibration_that_finds_no_more_than_is_assumed_changes_nothing(df: int, share: float, by: float) -> None:
    learned = apart(share * TIMED_SPREAD, df)
    assert learned.between_runs.sd == pytest.approx(share * TIMED_SPREAD)
    before, after = slower(by, None), slower(by, noise_of(learned))
    assert after == before
    assert (after.verdict, after.tolerance) == (SLOWDOWNS[by], 0.03)
    assert after.margin == pytest.approx(0.05)
    assert after.mde == pytest.approx(0.0699, abs=1e-4)


@pytest.mark.parametrize("by", SLOWDOWNS)
@pytest.mark.parametrize("df", [1, 3])
def test_a_calibration_of_fewer_than_five_runs_changes_nothing(df: int, by: float) -> None:
    assert slower(by, noise_of(apart(3 * TIMED_SPREAD, df))) == slower(by, None)


def test_launches_that_scatter_make_few_calibrations_of_what_is_assumed_blinder() -> None:
    """Runs differ by 1 %, as is assumed, and their four launches by 5 %."""
    draw = np.random.default_rng(0)
    verdicts = []
    for _ in range(100):
        centers = draw.normal(0.0, TIMED_SPREAD, 5)
        times = np.exp(centers[:, None] + draw.normal(0.0, 0.05, (5, 4)))
        verdicts.append(slower(0.15, noise_of(calibrated(times.tolist()))).verdict)
    assert verdicts.count(Verdict.REGRESSED) >= 90


@pytest.mark.parametrize("df", [4, 30])
def test_a_learned_spread_that_is_larger_widens_the_interval_alone(df: int) -> None:
    """By what it adds as an estimate: of few runs by more. Tolerance and margin stay the test's."""
    before, after = slower(0.0, None), slower(0.0, noise_of(apart(3 * TIMED_SPREAD, df)))
    assert before.change_interval is not None
    assert after.change_interval is not None
    assert after.change_interval.low < before.change_interval.low
    assert after.change_interval.high > before.change_interval.high
    assert (after.change, after.tolerance, after.margin) == (before.change, before.tolerance, before.margin)


@pytest.mark.parametrize(("sd", "floor"), [(0.01, 0.0934), (0.111, 1.7)])
def test_a_wide_floor_raises_no_tolerance_of_any_metric(sd: float, floor: float) -> None:
    """That of two runs is 9 times their spread; on a disturbed machine it was 170 %."""
    learned = apart(sd, 1)
    assert learned.floor == pytest.approx(floor, rel=0.01)
    metrics = [series(metric, STEADY) for metric in ("step_time", "throughput", "final_loss", "peak_allocated")]
    before, after = (
        judged(measured(*metrics), replace(found(*metrics), noise=noise), tolerance=0.03)
        for noise in (None, noise_of(learned))
    )
    assert [one.tolerance for one in after.comparisons] == [one.tolerance for one in before.comparisons] == [0.03] * 4
    assert after.findings == before.findings == ()


@pytest.mark.parametrize("share", [1.0, 1.001])
@pytest.mark.parametrize("df", [1, 4, 100])
def test_a_spread_that_is_hardly_larger_makes_no_verdict_blinder(df: int, share: float) -> None:
    """Of what is assumed nothing is an estimate, and 0.1 % of it more is next to nothing."""
    learned = Noise(between_runs=RunSpread(centers=Spread(sd=share * TIMED_SPREAD, df=df)))
    before, after = (slower(0.05, noise) for noise in (None, learned))
    assert after.verdict is before.verdict
    assert after.mde == pytest.approx(before.mde, rel=0.01)
