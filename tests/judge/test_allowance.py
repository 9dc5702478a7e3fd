from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.judge.allowance import (
    OVERSUBSCRIBED_SPREAD,
    QUOTIENT_SPREAD,
    SHARED_SPREAD,
    TIMED_SPREAD,
    default_spread,
    drift_of,
    excused_by,
    spread_between_runs,
    tolerance_of,
)
from pytest_ddpperf.records.health import CpuHealth, Health
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Measurement, Series, Spread
from pytest_ddpperf.records.noise import Noise, RunSpread
from pytest_ddpperf.records.results import Comparison
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import words_of_note
from tests.judge.made_up import ENVIRONMENT, STEADY, beside, found, judged, measured, series


@pytest.mark.parametrize(
    ("metric", "world_size", "expected"),
    [
        ("step_time", 8, TIMED_SPREAD),
        ("step_time", 9, OVERSUBSCRIBED_SPREAD),
        ("peak_resident", 9, 0.0),
        ("final_loss", 9, 0.0),
    ],
)
def test_times_deviate_between_runs_and_counts_do_not(metric: str, world_size: int, expected: float) -> None:
    environment = replace(ENVIRONMENT, world_size=world_size)

    assert spread_between_runs(series(metric, [1.0, 1.001]), environment).sd == expected


@pytest.mark.parametrize(
    ("machine", "facts", "expected"),
    [
        ("physical", {}, TIMED_SPREAD),
        ("physical", {"world_size": 9}, OVERSUBSCRIBED_SPREAD),
        ("virtual", {}, SHARED_SPREAD),
        ("shared", {"world_size": 9}, SHARED_SPREAD),
        ("virtual", {"device": "cuda", "device_count": 8}, SHARED_SPREAD),  # a step may wait for the host
    ],
)
def test_a_default_fits_the_machine(machine: str, facts: dict[str, Any], expected: float) -> None:
    environment = replace(ENVIRONMENT, recorded={"machine": machine}, **facts)
    assert default_spread(environment) == expected
    assert default_spread(environment, quotient=True) == QUOTIENT_SPREAD


def over_days(sd: float, df: int) -> Noise:
    none = RunSpread(centers=Spread(sd=0.0, df=4))
    return Noise(between_runs=none, over_days=RunSpread(centers=Spread(sd=sd, df=df)))


def test_runs_of_several_days_may_narrow_a_default_and_those_of_one_day_may_not() -> None:
    step = series("step_time", [1.0, 1.001])
    virtual = replace(ENVIRONMENT, recorded={"machine": "virtual"})
    assert spread_between_runs(step, virtual, noise=over_days(0.02, 8)) == Spread(sd=0.02, df=8)
    assert spread_between_runs(step, virtual, noise=over_days(0.02, 1)).sd == SHARED_SPREAD  # two days are few
    quiet = Noise(between_runs=RunSpread(centers=Spread(sd=0.02, df=8)))
    assert spread_between_runs(step, virtual, noise=quiet) == Spread(sd=SHARED_SPREAD, df=math.inf)


def test_days_that_lie_apart_widen_and_so_do_runs_of_a_day() -> None:
    step = series("step_time", [1.0, 1.001])
    assert spread_between_runs(step, ENVIRONMENT, noise=over_days(0.04, 4)).sd == 0.04
    wild = replace(over_days(0.002, 30), between_runs=RunSpread(centers=Spread(sd=0.03, df=4)))
    assert spread_between_runs(step, ENVIRONMENT, noise=wild).sd == 0.03


def test_quotients_have_a_spread_of_their_own() -> None:
    """The drift is out of them, so that runs of one day narrow it too."""
    step = series("step_time", [1.0, 1.001])
    virtual = replace(ENVIRONMENT, recorded={"machine": "virtual"})
    assert spread_between_runs(step, virtual, quotient=True) == Spread(sd=QUOTIENT_SPREAD, df=math.inf)
    noise = replace(over_days(0.04, 8), quotients=RunSpread(centers=Spread(sd=0.009, df=30)))
    assert spread_between_runs(step, virtual, noise=noise, quotient=True) == Spread(sd=0.009, df=30)


def test_the_spread_of_times_that_are_subtracted_is_an_amount() -> None:
    """1 % of 4 ms of a phase. What is left of two step times has the spread of a step: 1 % of 200 ms."""
    phase, exposed = (series(metric, [0.004]) for metric in ("phase_forward", "exposed_communication"))

    assert spread_between_runs(phase, ENVIRONMENT, 0.2).sd == pytest.approx(TIMED_SPREAD * 0.004)
    assert spread_between_runs(exposed, ENVIRONMENT, 0.2).sd == pytest.approx(TIMED_SPREAD * 0.2)
    assert spread_between_runs(exposed, ENVIRONMENT).sd == pytest.approx(TIMED_SPREAD * 0.004)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("step_time", 0.04),  # more than the default: as it is
        ("throughput", 0.04),
        ("phase_forward", 0.04 * 0.002),  # an amount: of its value
        ("straggler_skew", TIMED_SPREAD),  # ranks of one run share its deviation
        ("step_time_tail", TIMED_SPREAD / 2),  # and so do the steps of one launch
        ("peak_resident", 0.0),
        ("final_loss", 0.0),
    ],
)
def test_what_was_learned_of_times_holds_for_times(metric: str, expected: float) -> None:
    noise = Noise(between_runs=RunSpread(centers=Spread(sd=0.04, df=4)))
    assert spread_between_runs(series(metric, [0.002]), ENVIRONMENT, noise=noise).sd == pytest.approx(expected)


@pytest.mark.parametrize(
    ("metric", "baseline", "tolerance", "expected"),
    [
        ("step_time", 20.0, 0.03, 0.03),
        ("peak_resident", 1e9, 0.03, 0.10),  # the slack
        ("peak_resident", 1e9, 0.20, 0.20),
        ("peak_resident", 2.0**24, 0.20, 0.5),  # 8 of 16 MiB
        ("final_loss", 0.001, 0.0, 0.03),
        ("final_loss", 10.0, 0.0, 0.3),  # 3 % of 10
        ("final_loss", -10.0, 0.05, 0.5),
        ("memory_growth", 1000.0, 0.05, 65536.0),  # the slack, in bytes
        ("memory_growth", 4e6, 0.05, 2e5),
        ("phase_forward", 0.002, 0.03, 6e-5),  # of itself, where no step time is known
    ],
)
def test_tolerances(metric: str, baseline: float, tolerance: float, expected: float) -> None:
    assert tolerance_of(series(metric, (baseline, baseline)), baseline, tolerance) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("baseline", "step", "expected"), [(0.08, 0.1, 0.0375), (0.001, 0.1, 3.0), (0.3, 0.1, 0.03), (0.08, None, 0.03)]
)
def test_what_a_step_has_a_core_for_may_differ_by_what_the_step_may(
    baseline: float, step: float | None, expected: float
) -> None:
    """3 % of a step of 100 ms are 3 ms; with more threads than one it may be above the step, and 3 % are 3 %."""
    assert tolerance_of(series("cpu_time", (0.08, 0.08)), baseline, 0.03, step) == pytest.approx(expected)


def test_runs_deviate_with_their_launches_whatever_a_calibration_has_told() -> None:
    """In times; not in bytes and losses, nor in what partners of one run share."""
    metrics = ("step_time", "throughput", "peak_resident", "final_loss", "step_time_tail", "exposed_communication")
    assert [drift_of(series(metric, [1.0, 1.1])) for metric in metrics] == [0.35, 0.35, 0.0, 0.0, 0.0, 0.0]


def disturbed(*metrics: Series, others: Sequence[float | None], steal: float | None = None) -> Measurement:
    """A measurement in whose launches others took so much of the cores; None where nobody looked."""
    launches = tuple(
        Launch(
            round=i,
            ranks=(
                RankLaunch(
                    rank=0, step_times=(1.0,), memory={}, loss=None, samples_per_step=None, tokens_per_step=None
                ),
            ),
            seconds=1.0,
            health=None if share is None else Health(cpu=CpuHealth(others=share, steal=steal)),
        )
        for i, share in enumerate(others)
    )
    return replace(measured(*metrics), launches=launches)


@pytest.mark.parametrize(
    ("others", "steal", "explained"),
    [
        pytest.param([0.23], None, (97 / 77) ** 2 - 1, id="23 %, where 3 % are usual"),
        pytest.param([0.13], 0.1, (97 / 77) ** 2 - 1, id="part of it taken by a hypervisor"),
        pytest.param([0.0, 0.23, 0.9], None, (97 / 77) ** 2 - 1, id="the launch in the middle"),
        pytest.param([None, 0.23, None], None, (97 / 77) ** 2 - 1, id="of those that know"),
        pytest.param([0.515], None, 3.0, id="twice as long, squared"),
        pytest.param([1.0], None, 9.7**2 - 1, id="90 % at most"),
    ],
)
def test_lost_cores_explain_a_slowdown(others: Sequence[float | None], steal: float | None, explained: float) -> None:
    one = disturbed(others=others, steal=steal)
    assert excused_by(one, 0.0, 0.999 * explained) is not None
    assert excused_by(one, 0.0, 1.001 * explained) is None


def test_the_excuse_has_its_figures() -> None:
    cure = "which may explain it; run it again on a quiet machine, or see --ddpperf-against"
    one = disturbed(others=[0.23])
    assert words_of_note(excused_by(one, 0.0, 0.5)) == (
        f"disturbed: other processes or the hypervisor took 23 % of the cores, {cure}"
    )
    assert words_of_note(excused_by(one, 0.1, 0.3)) == (
        f"disturbed: other processes or the hypervisor took 23 % of the cores, 10 % when the baseline was made, {cure}"
    )


def test_what_others_took_when_the_baseline_was_made_excuses_nothing_now() -> None:
    """From 40 to 50 % steps may take (0.6 / 0.5) ** 2 = 1.44 times as long; from 50 % or more they have no excuse."""
    one = disturbed(others=[0.5])
    assert excused_by(one, 0.4, 0.439) is not None
    assert excused_by(one, 0.4, 0.441) is None
    assert excused_by(one, 0.5, 0.01) is None
    assert excused_by(one, 0.9, 0.01) is None


@pytest.mark.parametrize("others", [[0.03], [0.0, 0.01], [None], [], [0.03, 0.03, 0.9]])
def test_what_a_system_takes_in_quiet_too_excuses_nothing(others: Sequence[float | None]) -> None:
    assert excused_by(disturbed(others=others), 0.0, 1e-6) is None


def test_nothing_tells_how_much_of_a_gpu_others_took() -> None:
    on_gpu = replace(disturbed(others=[0.5]), environment=replace(ENVIRONMENT, device="cuda", backend="nccl"))
    assert excused_by(on_gpu, 0.0, 0.1) is None


def test_a_machine_that_does_not_tell_excuses_nothing() -> None:
    one = disturbed(others=[None])
    silent = replace(one, launches=(replace(one.launches[0], health=Health(cpu=CpuHealth())),))
    assert excused_by(silent, 0.0, 0.1) is None


def slower(factor: float, others: float, metric: str = "step_time") -> Comparison:
    """So much slower than the baseline, while others took so much of the cores."""
    time = metric == "step_time"
    before, now = series("step_time" if time else "throughput", STEADY), factor if time else 1 / factor
    before = replace(before, metric=metric)
    new = disturbed(replace(before, samples=tuple(now * one for one in before.samples)), others=[others] * 8)
    return judged(new, found(before))[metric]


@pytest.mark.parametrize("metric", ["step_time", "throughput", "speedup", "scaling_efficiency"])
@pytest.mark.parametrize(
    ("factor", "others", "expected"),
    [
        pytest.param(1.5, 0.0, Verdict.REGRESSED, id="on a quiet machine"),
        pytest.param(1.5, 0.23, Verdict.INCONCLUSIVE, id="less than the 56 % that may be explained"),
        pytest.param(2.0, 0.23, Verdict.REGRESSED, id="more than that"),
        pytest.param(1.5, 0.13, Verdict.REGRESSED, id="more than the 23 % of a tenth"),
        pytest.param(1.0, 0.23, Verdict.UNCHANGED, id="not slower"),
        pytest.param(0.7, 0.23, Verdict.IMPROVED, id="faster all the same"),
    ],
)
def test_beside_a_stored_baseline_a_slowdown_that_others_may_have_made_is_not_known(
    metric: str, factor: float, others: float, expected: Verdict
) -> None:
    """A rate falls to 1 / 1.5, which is as much slower."""
    one = slower(factor, others, metric)
    assert one.verdict is expected
    assert words_of_note(one.note).startswith("disturbed: ") is (expected is Verdict.INCONCLUSIVE)
    assert one.suspicious is (factor > 1)  # so it is measured again all the same


def test_a_baseline_that_was_made_beside_as_much_load_excuses_nothing() -> None:
    before = series("step_time", STEADY)
    new = disturbed(series("step_time", STEADY, factor=1.5), others=[0.5] * 8)
    quiet = found(before)
    assert quiet.record is not None
    loaded = replace(quiet, record=replace(quiet.record, lost=0.5))
    assert [judged(new, one)["step_time"].verdict for one in (quiet, loaded)] == [
        Verdict.INCONCLUSIVE,
        Verdict.REGRESSED,
    ]


def test_what_others_take_hits_both_sides_of_a_round() -> None:
    new = disturbed(series("step_time", STEADY, factor=1.5), others=[0.5] * 8)
    assert judged(new, beside(series("step_time", STEADY)))["step_time"].verdict is Verdict.REGRESSED


def test_bytes_are_not_excused() -> None:
    new = disturbed(series("peak_resident", [5e8] * 8, factor=1.3), others=[0.5] * 8)
    assert judged(new, found(series("peak_resident", [5e8] * 8))).verdict is Verdict.REGRESSED
