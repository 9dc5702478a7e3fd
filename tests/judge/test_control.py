"""Times beside a stored baseline where both have a control step: the machine's pace is out of the change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_ddpperf.judge.allowance import ELASTICITY_SPREAD, QUOTIENT_SPREAD, TIMED_SPREAD, corrected
from pytest_ddpperf.judge.benchmark import settled
from pytest_ddpperf.judge.detection import mde as minimal
from pytest_ddpperf.judge.judge import Judge, StoredReferences
from pytest_ddpperf.judge.sequential import Look
from pytest_ddpperf.metrics.control import controlled
from pytest_ddpperf.metrics.scaling import alone
from pytest_ddpperf.records.health import CpuHealth, Health
from pytest_ddpperf.records.measurement import Control, Series, Spread
from pytest_ddpperf.records.noise import Noise, RunSpread
from pytest_ddpperf.records.results import Result, StoredRun
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import finding_text, words_of_note
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.intervals import change
from tests.factories import make_launch
from tests.judge.made_up import STEADY, beside, found, judged, measured, series, stored


def timed(metric: str = "step_time", *, factor: float = 1.0, machine: float | None = 1.0) -> Series:
    """Steady samples on a machine that takes so much longer than the usual one; None without control."""
    slower = factor * (machine or 1.0)
    samples = series(metric, STEADY, factor=slower if metric == "step_time" else 1 / slower)
    seconds = tuple(0.004 * (machine or 1.0) * moment for moment in STEADY)
    return samples if machine is None else replace(samples, control=Control(seconds=seconds))


def codes(result: Result) -> list[str]:
    return [finding.code for finding in result.findings]


@pytest.mark.parametrize("metric", ["step_time", "throughput"])
@pytest.mark.parametrize(
    ("code", "machine", "verdict"),
    [
        pytest.param(1.0, 1.1, Verdict.UNCHANGED, id="a slower machine is no slower code"),
        pytest.param(1.0, 0.9, Verdict.UNCHANGED, id="a faster one is no faster code"),
        pytest.param(1.3, 1.0, Verdict.REGRESSED, id="slower code on the same machine"),
        pytest.param(1.3, 1 / 1.3, Verdict.REGRESSED, id="slower code that a faster machine would hide"),
        pytest.param(1 / 1.3, 1.3, Verdict.IMPROVED, id="faster code that a slower one would hide"),
    ],
)
def test_the_change_is_that_of_the_code(metric: str, code: float, machine: float, verdict: Verdict) -> None:
    result = judged(measured(timed(metric, factor=code, machine=machine)), found(timed(metric)), tolerance=0.05)
    one = result[metric]
    expected = code if metric == "step_time" else 1 / code
    assert one.change == pytest.approx(expected - 1, abs=1e-6)
    assert (one.verdict, one.controlled) == (verdict, True)
    if verdict is not Verdict.UNCHANGED:
        assert one.worse_in == (len(STEADY) if verdict is Verdict.REGRESSED else 0), (
            "as the change is that of quotients"
        )
    seconds = code * machine if metric == "step_time" else 1 / (code * machine)
    assert (one.baseline, one.series.value) == pytest.approx((1.0, seconds), rel=1e-3)  # as the clock tells them


@pytest.mark.parametrize("side", ["candidate", "baseline"])
def test_a_side_without_control_leaves_the_times_as_they_are(side: str) -> None:
    now = timed(machine=None if side == "candidate" else 1.5)
    then = timed(machine=None if side == "baseline" else 1.0)
    result = judged(measured(now), found(then))
    assert result["step_time"].change == pytest.approx(now.value / then.value - 1)
    assert not result["step_time"].controlled
    assert "other_pace" not in codes(result)


def test_runs_of_one_day_are_worth_one_for_times_and_each_of_them_for_quotients() -> None:
    """The spread between runs is all of the error that more launches do not shrink: 2 s^2, or (1 + 1 / 4) s^2."""
    runs = tuple(StoredRun(launches=2, date="2026-01-12") for _ in range(4))

    def mde(series: Series, *, spread: float, independent: float) -> float:
        base = found(series)
        assert base.record is not None
        one = judged(measured(series), replace(base, record=replace(base.record, runs=runs)))["step_time"]
        assert one.mde is not None
        alone = change(
            series.samples if series.control is None else controlled(series).samples,
            series.samples if series.control is None else controlled(series).samples,
            scale="ratio",
            between_runs=spread,
            outliers="high",
            base_runs=(2, 2, 2, 2),
            independent=independent,
        )
        assert alone is not None
        expected = minimal(alone, alpha=0.0025, tolerance=0.05)
        assert expected is not None
        return one.mde / expected

    assert mde(timed(machine=None), spread=TIMED_SPREAD, independent=1) == pytest.approx(1)
    assert mde(timed(), spread=QUOTIENT_SPREAD, independent=4) == pytest.approx(1)


def test_both_sides_of_a_round_need_no_control() -> None:
    result = judged(measured(timed(machine=1.2)), beside(timed()))
    assert result["step_time"].change == pytest.approx(0.2)
    assert not result["step_time"].controlled


@pytest.mark.parametrize(("machine", "told"), [(1.02, False), (1.12, True), (0.9, True)])
def test_how_the_machine_stands_to_that_of_the_baseline_is_told_where_it_matters(machine: float, *, told: bool) -> None:
    result = judged(measured(timed(machine=machine)), found(timed()))
    assert ("other_pace" in codes(result)) is told
    if told:
        (finding,) = (finding for finding in result.findings if finding.code == "other_pace")
        assert f"took {100 * (machine - 1):+.1f} % time for the control step" in finding_text(finding)


def test_what_is_settled_side_by_side_is_not_corrected() -> None:
    base = found(timed())
    open_result = judged(measured(timed(machine=1.2)), base)
    other = judged(measured(timed(machine=1.2)), beside(timed(machine=1.2)))
    assert "other_pace" in codes(open_result)
    assert "other_pace" not in codes(settled(open_result, base, other))


def slow_beside_others(code: float) -> list[Result]:
    """Slower code while others take half of the cores; with control, and by times alone."""
    busy = Health(cpu=CpuHealth(others=0.5, steal=None, throttled=None, overheated=None, swapped=None), gpus=())
    launches = tuple(make_launch((1.0,), round=number, health=busy) for number in range(8))

    def of(machine: float | None) -> Result:
        run = replace(measured(timed(factor=code, machine=machine)), launches=launches)
        return judged(run, replace(found(), record=stored(timed(machine=machine))))

    return [of(1.0), of(None)]


@pytest.mark.parametrize(("code", "excused"), [(1.9, [True, True]), (2.2, [False, True]), (5.0, [False, False])])
def test_what_others_took_excuses_of_a_quotient_what_the_control_does_not_tell(
    code: float, excused: list[bool]
) -> None:
    """With half of the cores a time may double and redouble, and a quotient may double."""
    steps = [result["step_time"] for result in slow_beside_others(code)]
    assert [one.verdict is Verdict.INCONCLUSIVE for one in steps] == excused
    assert [one.note is not None and one.note.code == "disturbed" for one in steps] == excused


def test_a_quotient_beside_others_proves_nothing_and_a_time_that_is_no_longer_does() -> None:
    """Others only lengthen a time. A control step they may lengthen by more: log(0.97 / 0.5) is 66 %."""
    controlled_step, step = (result["step_time"] for result in slow_beside_others(1.0))
    assert (controlled_step.verdict, step.verdict) == (Verdict.INCONCLUSIVE, Verdict.UNCHANGED)
    assert controlled_step.bound is not None
    assert controlled_step.bound > 0.3


@pytest.mark.parametrize(
    ("code", "verdict"), [(1.75, Verdict.INCONCLUSIVE), (1.0, Verdict.INCONCLUSIVE), (2.2, Verdict.REGRESSED)]
)
def test_a_quotient_beside_a_baseline_that_was_made_beside_others_is_doubtful_too(
    code: float, verdict: Verdict
) -> None:
    """The load of then made the quotient of then 0.57 times as large; without it, it is 1.75 times that."""
    now = measured(timed(factor=code))
    record = replace(stored(timed()), lost=0.45)
    step = judged(now, replace(found(), record=record))["step_time"]
    assert step.verdict is verdict
    if verdict is Verdict.INCONCLUSIVE:
        assert step.note is not None
        words = words_of_note(step.note)
        assert "took 0 % of the cores, 45 % when the baseline was made" in words
        assert "save the baseline again on a quiet machine" in words


@pytest.mark.parametrize(
    ("code", "lost", "verdict"),
    [
        pytest.param(1.0, 0.45, Verdict.INCONCLUSIVE, id="slower code may be hidden by a baseline of a busy machine"),
        pytest.param(0.8, 0.45, Verdict.INCONCLUSIVE, id="what looks faster may be the calmer machine alone"),
        pytest.param(1.75, 0.45, Verdict.REGRESSED, id="load of the baseline excuses no slowdown of now"),
        pytest.param(1.0, 0.07, Verdict.UNCHANGED, id="log(0.97 / 0.93) is 4.2 %, within a tolerance of 5 %"),
        pytest.param(1.0, 0.08, Verdict.INCONCLUSIVE, id="log(0.97 / 0.92) is 5.3 %, beyond log(1.05)"),
    ],
)
def test_a_time_beside_a_baseline_that_was_made_beside_others_is_not_good(
    code: float, lost: float, verdict: Verdict
) -> None:
    base = stored(timed(machine=None))
    step = judged(measured(timed(factor=code, machine=None)), replace(found(), record=replace(base, lost=lost)))
    assert step["step_time"].verdict is verdict
    assert (step["step_time"].note is not None and step["step_time"].note.code == "may_hide") is (
        verdict is Verdict.INCONCLUSIVE
    )


@pytest.mark.parametrize("code", [0.57, 0.3])
def test_a_quotient_beside_others_that_looks_better_is_not_good(code: float) -> None:
    """Beside a busy process a control step took 3 times as long, and steps 1.7 times: the quotient fell to 0.57."""
    controlled_step, step = (result["step_time"] for result in slow_beside_others(code))
    assert (controlled_step.verdict, step.verdict) == (Verdict.INCONCLUSIVE, Verdict.IMPROVED)
    assert controlled_step.note is not None
    assert words_of_note(controlled_step.note).startswith(
        "disturbed: other processes or the hypervisor took 50 % of the"
    )
    assert controlled_step.note.code == "may_hide"


@pytest.mark.parametrize(("others", "action"), [(0.05, "more"), (0.07, "settle")])
def test_a_busier_machine_is_settled_at_once_where_the_control_step_does_not_tell_it(
    others: float, action: str
) -> None:
    """A tolerance of 3 % is reached at 1 - 0.97 / 1.03: 6 %. The tail has no control, and no say."""
    busy = Health(cpu=CpuHealth(others=others))
    launches = tuple(make_launch((1.0,), round=number, health=busy) for number in range(8))
    now = [timed(), series("step_time_tail", STEADY)]
    record = stored(*now)
    judge = Judge(
        "test_it", Settings(launches=10), StoredReferences((replace(found(), record=record),)), alone, settles=True
    )
    assert judge((replace(measured(*now), launches=launches),), Look(4.0, 0.5, last=False)).action == action


def test_a_learned_spread_of_times_is_none_of_quotients() -> None:
    noise = Noise(between_runs=RunSpread(centers=Spread(sd=0.08, df=4)))
    for machine in (1.0, None):
        new, base = measured(timed(factor=1.3, machine=machine)), found(timed(machine=machine))
        before, after = (judged(new, replace(base, noise=known))["step_time"] for known in (None, noise))
        assert (after == before) is (machine is not None)


def widths(machines: Sequence[float]) -> list[float]:
    intervals = [
        judged(measured(timed(machine=machine)), found(timed()))["step_time"].change_interval for machine in machines
    ]
    return [math.log1p(each.high) - math.log1p(each.low) for each in intervals if each is not None]


def test_a_large_correction_is_known_less_well() -> None:
    same, quicker, slower = widths([1.0, 1 / 1.5, 1.5])
    assert quicker == pytest.approx(slower)
    assert slower > 1.3 * same
    spread = corrected(Spread(sd=0.02, df=4), math.log(1.5))
    assert spread.sd**2 == pytest.approx(0.02**2 + (ELASTICITY_SPREAD * math.log(1.5)) ** 2 / 2)
    assert spread.df > 4  # of the correction it is assumed, not estimated
    several = corrected(Spread(sd=0.02, df=4), math.log(1.5), 4.0)
    assert (several.sd**2 - 0.02**2) * (1 + 1 / 4) == pytest.approx((spread.sd**2 - 0.02**2) * 2)
    disturbed = corrected(Spread(sd=0.02, df=4), 0.0, disturbance=0.1)
    assert disturbed.sd**2 == pytest.approx(0.02**2 + 0.05**2 / 2)
    assert corrected(Spread(sd=0.02, df=math.inf), 0.0) == Spread(sd=0.02, df=math.inf)
