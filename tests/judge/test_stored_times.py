"""Times beside a stored baseline: by its commit in the same rounds, else by what was stored, with numbers by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.judge.benchmark import compare
from pytest_ddpperf.judge.decision import DecisionContext
from pytest_ddpperf.judge.metric import OTHER_CLOCK
from pytest_ddpperf.metrics.table import counted_series
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import CpuHealth, GpuHealth, Health
from pytest_ddpperf.records.measurement import Measurement, Series
from pytest_ddpperf.records.results import Comparison, PairedRevision, Reference, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from tests.factories import make_counts, make_launch
from tests.judge.made_up import ENVIRONMENT, STEADY, found, measured, on_machine, series, stored, with_commit

SPREAD = (1.0, 1.1, 1.21)
"""Of their logarithms the variance is (ln 1.1)**2, and the error of a mean of three ln 1.1 / sqrt(3).

Of two such sides it is 0.0778 with 2 degrees, of which Student's t is 9.9248 at 99 %: the interval reaches by 0.7724 to
either side. Beyond +50 %, which is 0.4055, it lies from 1.1779 on, and that is 3.2475 times as long. At 95 % it would
be 2.10 times, for there t is 4.3027.
"""


def judged(new: Measurement, reference: Reference, **rules: Any) -> Result:
    return compare("t.py::test", new, reference, DecisionContext(**{"tolerance": 0.03, "alpha": 0.01, **rules}))


def slower(factor: float, metric: str = "step_time", samples: Sequence[float] = SPREAD) -> Series:
    """So many times as long; a rate falls by as much."""
    return series(metric, samples, factor=factor if metric == "step_time" else 1 / factor)


def beside_stored(factor: float, others: float = 0.0, *, metric: str = "step_time", **rules: Any) -> Comparison:
    """So much slower than the stored times, while others took so much of the cores."""
    return judged(on_machine(measured(slower(factor, metric)), others), found(slower(1.0, metric)), **rules)[metric]


@pytest.mark.parametrize("metric", ["step_time", "throughput"])
@pytest.mark.parametrize(
    ("factor", "gross", "verdict"),
    [
        (3.24, 0.5, Verdict.INCONCLUSIVE),
        (3.26, 0.5, Verdict.REGRESSED),
        (2.3, 0.5, Verdict.INCONCLUSIVE),  # beyond, by a 95 % interval
        (4.32, 1.0, Verdict.INCONCLUSIVE),  # 0.6931 + 0.7724 is 4.330 times
        (4.34, 1.0, Verdict.REGRESSED),
    ],
)
def test_a_gross_slowdown_takes_the_whole_99_percent_interval(
    metric: str, factor: float, gross: float, verdict: Verdict
) -> None:
    one = beside_stored(factor, metric=metric, gross=gross)
    assert one.verdict is verdict
    assert one.note == (Finding("gross") if verdict is Verdict.REGRESSED else Finding("not_gross", {"gross": gross}))


@pytest.mark.parametrize("metric", ["step_time", "throughput"])
@pytest.mark.parametrize(
    ("factor", "verdict"), [(0.2, Verdict.OK), (1.0299, Verdict.OK), (1.0301, Verdict.INCONCLUSIVE)]
)
def test_a_stored_time_within_the_tolerance_is_ok_without_a_bound(metric: str, factor: float, verdict: Verdict) -> None:
    """Not improved either, though it takes a fifth of the time: stored times show gross slowdowns alone."""
    one = beside_stored(factor, metric=metric)
    assert one.verdict is verdict
    assert one.note == (Finding("stored_times") if verdict is Verdict.OK else Finding("not_gross", {"gross": 0.5}))
    assert (one.bound, one.mde, one.margin, one.enough) == (None, None, None, None)
    assert (one.paired, one.suspicious, one.promising) == (False, False, False)
    assert one.change == pytest.approx((factor if metric == "step_time" else 1 / factor) - 1)
    assert one.change_interval is not None
    assert one.gated


@pytest.mark.parametrize(("tolerance", "expected"), [(None, 0.03), (0.01, 0.01)])
def test_stored_times_have_the_wider_tolerance(tolerance: float | None, expected: float) -> None:
    assert beside_stored(1.02, tolerance=tolerance).tolerance == expected
    assert beside_stored(1.02, tolerance=tolerance).verdict is (Verdict.OK if expected > 0.02 else Verdict.INCONCLUSIVE)


@pytest.mark.parametrize("factor", [0.5, 1.0, 9.0])
@pytest.mark.parametrize(
    ("now", "then", "facts"),
    [
        (0.11, 0.0, {"now": 0.11, "then": None}),
        (0.0, 0.3, {"now": None, "then": 0.3}),
        (0.2, 0.3, {"now": 0.2, "then": 0.3}),
    ],
)
def test_stored_times_say_nothing_if_the_machine_is_or_was_busy(
    factor: float, now: float, then: float, facts: dict[str, float | None]
) -> None:
    record = replace(stored(slower(1.0)), busy=then > 0, lost=then)
    one = judged(on_machine(measured(slower(factor)), now), replace(found(), record=record))["step_time"]
    assert (one.verdict, one.note) == (Verdict.INCONCLUSIVE, Finding("busy", facts))


@pytest.mark.parametrize("factor", [0.5, 1.0, 9.0])
@pytest.mark.parametrize(
    ("then", "now", "host"), [("there", "here", "there"), (None, "here", "unknown"), (None, None, "unknown")]
)
def test_stored_times_of_another_host_say_nothing(factor: float, then: str | None, now: str | None, host: str) -> None:
    """Whether the machine is busy matters no more."""
    hosts = [replace(ENVIRONMENT, recorded={} if name is None else {"host": name}) for name in (then, now)]
    record = replace(stored(slower(1.0)), environment=hosts[0])
    new = on_machine(replace(measured(slower(factor)), environment=hosts[1]), others=0.5)
    one = judged(new, replace(found(), record=record))["step_time"]
    assert (one.verdict, one.note) == (Verdict.INCONCLUSIVE, Finding("other_host", {"host": host}))


def on_gpu(one: Measurement, clock: float | None, **health: Any) -> Measurement:
    gpu = GpuHealth(device="0000:1b:00.0", readings=9, sm_clock=clock, **health)
    launch = make_launch((1.0,), health=Health(cpu=CpuHealth(others=0.9), gpus=(gpu,)))
    environment = replace(ENVIRONMENT, device="cuda", device_count=2, backend="nccl")
    return replace(one, environment=environment, launches=(launch,))


@pytest.mark.parametrize(
    ("then", "now", "doubt"),
    [
        (1.98e9, 1.89e9, False),  # log(1.98 / 1.89) is 4.65 %
        (1.98e9, 1.88e9, True),  # 5.18 %
        (1.88e9, 1.98e9, True),
        (None, 1.5e9, False),
        (1.98e9, None, False),
    ],
)
def test_stored_times_at_another_clock_of_the_gpus_say_nothing(
    then: float | None, now: float | None, *, doubt: bool
) -> None:
    assert OTHER_CLOCK == 0.05
    new = on_gpu(measured(slower(9.0)), now)
    record = replace(stored(slower(1.0)), environment=new.environment, clock=then)
    one = judged(new, replace(found(), record=record))["step_time"]
    assert one.verdict is (Verdict.INCONCLUSIVE if doubt else Verdict.REGRESSED)
    assert one.note == (Finding("other_clock", {"then": then, "now": now}) if doubt else Finding("gross"))


def test_single_launches_show_no_gross_slowdown() -> None:
    """Nothing is known of their scatter."""
    for factor, verdict in ((9.0, Verdict.INCONCLUSIVE), (1.0, Verdict.OK)):
        new = on_machine(measured(slower(factor, samples=[1.0])))
        assert judged(new, found(slower(1.0, samples=[1.0])))["step_time"].verdict is verdict


def test_blocks_of_two_launches_show_a_slowdown_of_100_percent() -> None:
    """Ten blocks of a launch that scatter by 10 %, so 10 * 0.01 / (10 * 9), and 3 % of its own: 0.00201 is expected.

    With the 0.00125 of launches that lie 5 % apart (4 * 0.00201 + 0.00125) / 5 = 0.00186; of two on either side as much
    is left, an error of 4.31 % with 5 degrees: t is 4.0321 at 99 %, so the interval reaches by 0.174. ln 2 is 0.693,
    and 0.4055 + 0.174 is 1.785 times.
    """
    for factor, verdict in ((2.0, Verdict.REGRESSED), (1.80, Verdict.REGRESSED), (1.77, Verdict.INCONCLUSIVE)):
        then, now = (
            replace(slower(each, samples=[1.0, 1.0513]), within=((0.1, -0.1) * 5,) * 2, own=0.03)
            for each in (1.0, factor)
        )
        assert judged(on_machine(measured(now)), found(then))["step_time"].verdict is verdict


def test_a_baseline_of_zero_gives_no_change() -> None:
    one = judged(on_machine(measured(slower(1.0, "throughput"))), found(series("throughput", [0.0] * 3)))["throughput"]
    assert (one.verdict, one.note) == (Verdict.INCONCLUSIVE, Finding("no_change_from", {"baseline": 0.0}))


@pytest.mark.parametrize(("more", "verdict"), [(0.130, Verdict.INCONCLUSIVE), (0.132, Verdict.REGRESSED)])
def test_of_times_that_are_subtracted_gross_is_a_part_of_the_baseline(more: float, verdict: Verdict) -> None:
    """0.09, 0.1 and 0.11 s: an error of sqrt(2 * 0.01**2 / 3) is 0.00816 s, times 9.9248 0.081 s, beyond 0.05 s."""
    samples = (0.09, 0.1, 0.11)
    new = measured(series("phase_forward", [sample + more for sample in samples]))
    one = judged(on_machine(new), found(series("phase_forward", samples)))["phase_forward"]
    assert one.verdict is verdict


# A baseline whose commit is measured in the same rounds.


def counts(calls: float) -> Counts:
    return make_counts({}, collective_calls=calls)


def test_the_commit_judges_times_and_the_stored_record_all_else() -> None:
    """The machine became slower, and the code takes more memory, loses more and calls more than when it was saved."""
    metrics = {"step_time": STEADY, "peak_allocated": [5e8] * 8, "final_loss": [1.0] * 8}
    base = found(*(series(metric, samples) for metric, samples in metrics.items()))
    assert base.record is not None
    base = replace(base, counted=replace(base.record, counts=counts(2.0)))
    now = [series(metric, samples, factor=1.3) for metric, samples in metrics.items()]
    new = replace(measured(*now, *counted_series(counts(3.0))), counts=counts(3.0))
    result = judged(on_machine(new), with_commit(base, *now))
    assert {each.series.metric: (each.verdict, each.paired) for each in result.comparisons} == {
        "step_time": (Verdict.UNCHANGED, True),
        "peak_allocated": (Verdict.REGRESSED, False),
        "final_loss": (Verdict.REGRESSED, False),
        "collective_calls": (Verdict.REGRESSED, False),
    }
    assert [result[metric].baseline for metric in metrics] == pytest.approx([1.3, 5e8, 1.0], rel=1e-3)
    assert result["step_time"].tolerance == 0.03
    assert judged(on_machine(new), with_commit(base, *now), tolerance=None)["step_time"].tolerance == 0.015
    assert judged(on_machine(new), with_commit(base, *now), tolerance=None)["peak_allocated"].tolerance == 0.03


def agreeing(factor: float, others: float = 0.0, *, code: float = 1.0, metric: str = "step_time") -> Result:
    """So much slower than the stored times, of which the code made so much."""
    now = slower(factor, metric, STEADY)
    base = with_commit(found(slower(1.0, metric, STEADY)), slower(factor / code, metric, STEADY))
    base = replace(base, recorded_differ=("torch 2.13.0 -> 2.13.1",))
    return judged(on_machine(measured(now), others), base, resolution=0.1)


@pytest.mark.parametrize("metric", ["step_time", "throughput"])
@pytest.mark.parametrize(
    ("factor", "others", "verdict"),
    [
        (1.6, 0.0, Verdict.REGRESSED),
        (1.45, 0.0, Verdict.UNCHANGED),  # not gross
        (1.6, 0.2, Verdict.UNCHANGED),  # on a busy machine stored times say nothing
        (0.5, 0.0, Verdict.UNCHANGED),
    ],
)
def test_a_gross_slowdown_that_both_sides_share_is_red(
    metric: str, factor: float, others: float, verdict: Verdict
) -> None:
    """The row has the change from the stored times, which is what is red."""
    one, red = agreeing(factor, others, metric=metric)[metric], verdict is Verdict.REGRESSED
    assert (one.verdict, one.paired) == (verdict, not red)
    change = (factor if metric == "step_time" else 1 / factor) - 1
    assert one.change == pytest.approx(change if red else 0.0, abs=1e-9)
    assert one.note == (Finding("not_the_code", {"change": pytest.approx(change)}) if red else None)


def test_a_slow_side_alone_does_not_clear_the_code() -> None:
    """The candidate takes 1.6 times as long as the stored times, and the commit 1.45 times, which is not gross."""
    one = agreeing(1.6, code=1.6 / 1.45)["step_time"]
    assert (one.verdict, one.note, one.paired) == (Verdict.REGRESSED, None, True)


def test_the_part_of_a_shared_slowdown_that_the_code_caused_is_still_suspected() -> None:
    """Both sides are grossly slower, and the candidate looks 10 % slower still, which wide samples do not show."""
    then, now = (slower(each, samples=(0.9, 1.0, 1.1, 1.2, 0.8, 1.0, 1.1, 0.9)) for each in (2.4, 2.64))
    base = with_commit(found(slower(1.0, samples=STEADY)), replace(then, samples=then.samples[::-1]))
    one = judged(on_machine(measured(now)), base, resolution=0.1)["step_time"]
    assert (one.verdict, one.paired, one.suspicious) == (Verdict.REGRESSED, True, True)


@pytest.mark.parametrize("paired", [False, True])
def test_a_rate_is_not_red_if_the_step_time_is_as_it_was(*, paired: bool) -> None:
    """A corrected ``samples_per_step`` changes the rate alone."""
    step, then, now = slower(1.0, samples=STEADY), *(slower(each, "throughput", STEADY) for each in (1.0, 2.0))
    base = with_commit(found(step, then), step, now) if paired else found(step, then)
    result = judged(on_machine(measured(step, now)), base)
    assert result.verdict in {Verdict.OK, Verdict.UNCHANGED}


def test_a_slowdown_of_the_paired_comparison_is_attributed_to_the_code() -> None:
    one = agreeing(1.6, code=1.3)["step_time"]
    assert (one.verdict, one.note) == (Verdict.REGRESSED, None)
    assert one.change == pytest.approx(0.3)


def test_a_metric_that_is_not_gated_is_not_red_for_a_slowdown_of_both_sides() -> None:
    then, now = (replace(slower(factor, samples=STEADY), gated=False) for factor in (1.0, 1.6))
    one = judged(on_machine(measured(now)), with_commit(found(then), now))["step_time"]
    assert one.verdict is Verdict.UNCHANGED


@pytest.mark.parametrize(
    ("factor", "code", "others", "told"),
    [
        pytest.param(1.2, 1.0, 0.0, True, id="both sides became slower"),
        pytest.param(1.09, 1.0, 0.0, False, id="by less than the resolution"),
        pytest.param(1.2, 1.08, 0.0, True, id="of which the code made less than half"),
        pytest.param(1.2, 1.1, 0.0, False, id="or more"),
        pytest.param(1.2, 1.0, 0.2, False, id="on a busy machine"),
        pytest.param(1.6, 1.0, 0.0, False, id="a gross slowdown is red"),
        pytest.param(0.8, 1.0, 0.0, False, id="both became faster"),
    ],
)
def test_a_slowdown_that_both_sides_share_is_a_warning(
    factor: float, code: float, others: float, *, told: bool
) -> None:
    findings = [each for each in agreeing(factor, others, code=code).findings if each.code == "slower_than_stored"]
    assert bool(findings) is told
    if told:
        facts = {"change": pytest.approx(factor - 1), "differ": ("torch 2.13.0 -> 2.13.1",)}
        assert findings == [Finding("slower_than_stored", facts)]


def test_a_gross_slowdown_is_seen_though_the_baseline_was_timed_alone() -> None:
    """Steps in turns with others last a little longer, which hides none of it."""
    base = with_commit(found(slower(1.0, samples=STEADY)), slower(1.6, samples=STEADY), turns=True)
    new = replace(on_machine(measured(slower(1.6, samples=STEADY))), turns=True)
    one = judged(new, base)["step_time"]
    assert one.verdict is Verdict.REGRESSED
    assert one.note is not None
    assert one.note.code == "not_the_code"


# Baselines of the version before, whose times are those of the usual steps.


def typical(*metrics: Series) -> StoredBaseline:
    base = found(*metrics)
    assert base.record is not None
    record = replace(base.record, typical=True)
    return replace(base, record=record, counted=replace(record, counts=counts(2.0)))


def test_times_of_usual_steps_are_not_compared_and_other_metrics_are() -> None:
    metrics = {"step_time": STEADY, "throughput": STEADY, "peak_allocated": [5e8] * 8, "final_loss": [1.0] * 8}
    now = [series(metric, samples, factor=1.3) for metric, samples in metrics.items()]
    new = replace(measured(*now, *counted_series(counts(3.0))), counts=counts(3.0))
    result = judged(on_machine(new), typical(*(series(metric, samples) for metric, samples in metrics.items())))
    for metric in ("step_time", "throughput"):
        one = result[metric]
        assert (one.verdict, one.note, one.change) == (Verdict.INCOMPATIBLE, Finding("other_step_time"), None)
    for metric in ("peak_allocated", "final_loss", "collective_calls"):
        assert result[metric].verdict is Verdict.REGRESSED
    assert result.verdict is Verdict.REGRESSED
    same = [series(metric, samples) for metric, samples in metrics.items()]
    assert judged(on_machine(measured(*same)), typical(*same)).verdict is Verdict.INCOMPATIBLE


def test_the_commit_of_a_baseline_with_times_of_usual_steps_is_compared_as_usual() -> None:
    """They are nine times the usual steps' of then, which says nothing."""
    now = slower(9.0, samples=STEADY)
    result = judged(on_machine(measured(now)), with_commit(typical(slower(1.0, samples=STEADY)), now), resolution=0.1)
    assert (result["step_time"].verdict, result["step_time"].note) == (Verdict.UNCHANGED, None)
    assert "slower_than_stored" not in {finding.code for finding in result.findings}


def test_a_benchmark_that_the_baselines_commit_cannot_run_is_judged_by_stored_times() -> None:
    pair = PairedRevision(revision="3f2a1c0", commit="3f2a1c0", lacking="it raised")
    base = replace(found(slower(1.0)), pair=pair, unpaired="3f2a1c0 cannot run it")
    for factor, verdict in ((1.0, Verdict.OK), (9.0, Verdict.REGRESSED)):
        result = judged(on_machine(measured(slower(factor))), base)
        assert (result["step_time"].verdict, result["step_time"].paired) == (verdict, False)
        assert Finding("unpaired", {"reason": "3f2a1c0 cannot run it"}) in result.findings
