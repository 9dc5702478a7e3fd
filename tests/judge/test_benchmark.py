"""All metrics of a benchmark: which are judged, what decides, and what is found besides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pytest_ddpperf.errors import NotTimed
from pytest_ddpperf.judge.benchmark import LONG_SHARE, unfit
from pytest_ddpperf.metrics.table import counted_series
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import CpuHealth, Health, LongSteps
from pytest_ddpperf.records.measurement import Measurement, MetricRules, Series
from pytest_ddpperf.records.results import Comparison, PairedRevision, Reference, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import finding_text
from pytest_ddpperf.reports.phrases import findings
from tests.factories import failure_text, make_counts, make_launch, make_rank_launch
from tests.judge.made_up import ENVIRONMENT, STEADY, UNSTEADY, beside, found, judged, measured, on_machine, series


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.2, Verdict.REGRESSED), (1.0, Verdict.UNCHANGED), (0.8, Verdict.IMPROVED)]
)
@pytest.mark.parametrize("metric", ["step_time", "throughput"])
def test_a_benchmark_is_judged_against_its_reference(metric: str, factor: float, expected: Verdict) -> None:
    slower = factor if metric == "step_time" else 1 / factor
    result = judged(measured(series(metric, STEADY, factor=slower)), beside(series(metric, STEADY)))
    assert result.verdict is expected
    assert result[metric].verdict is expected
    assert result[metric].change == pytest.approx(slower - 1)
    assert result[metric].suspicious is (expected is Verdict.REGRESSED)
    assert result[metric].promising is (expected is Verdict.IMPROVED)
    assert result[metric].baseline == pytest.approx(1.0, abs=1e-3)
    assert result[metric].base_samples == STEADY
    assert (result.test, result.measurement.name) == ("test_x.py::test_a", "ddp")


@pytest.mark.parametrize(
    ("reference", "now", "expected"),
    [
        (found, (47, 41.2, 47, 49), 3),  # than 41.5, the median: one disturbed launch takes nothing away
        (beside, (47, 41.2, 47, 49), 2),  # each than the one above it
        (beside, (47, 41.2, 47), 2),  # of other rounds
        (found, (47,), None),
    ],
)
def test_launches_in_which_a_metric_was_worse_are_counted(
    reference: Callable[[Series], Reference], now: tuple[float, ...], expected: int | None
) -> None:
    then = series("step_time", (41, 42, 90, 41))
    assert judged(measured(series("step_time", now)), reference(then))["step_time"].worse_in == expected


def test_a_benchmark_without_time_to_measure_is_undecided_unless_its_counts_are_worse() -> None:
    def counted(collectives: float) -> tuple[Counts, tuple[Series, ...]]:
        counts = make_counts({}, collective_calls=collectives)
        return counts, counted_series(counts)

    finding = Finding("no_time_to_measure")
    (counts, now), (same, then), (fewer, less) = counted(3.0), counted(3.0), counted(2.0)
    late = replace(measured(*now, findings=(finding,)), counts=counts)
    result = judged(late, beside(*then, then=same))
    assert (result.verdict, result["collective_calls"].verdict) == (Verdict.INCONCLUSIVE, Verdict.UNCHANGED)
    assert finding in result.findings
    assert judged(late, beside(*less, then=fewer)).verdict is Verdict.REGRESSED
    with pytest.raises(NotTimed, match="step_time was not measured: --ddpperf-budget had no time left"):
        late["step_time"]


def test_a_metric_that_the_baseline_lacks_is_new_and_the_others_are_judged() -> None:
    new = measured(series("peak_allocated", STEADY), series("peak_resident", [5e8] * 8))
    result = judged(new, found(series("peak_allocated", STEADY)))
    assert result["peak_allocated"].verdict is Verdict.UNCHANGED
    assert result["peak_resident"].verdict is Verdict.NEW
    assert finding_text(result["peak_resident"].note) == "the baseline has no such metric"
    foreign = judged(new, found(series("peak_allocated", STEADY), differs=("cores 4 -> 8",)))
    assert foreign["peak_resident"].verdict is Verdict.INCOMPATIBLE


@pytest.mark.parametrize("metric", ["step_time", "peak_allocated"])
def test_a_foreign_baseline_is_shown_with_its_differences_but_never_judges(metric: str) -> None:
    base = found(series(metric, STEADY), differs=("torch 2.11 -> 2.13", "cores 4 -> 8"))
    result = judged(on_machine(measured(series(metric, STEADY, factor=3.0))), base)
    assert result.verdict is Verdict.INCOMPATIBLE
    assert result[metric].change == pytest.approx(2.0)
    assert result[metric].mde is None
    note = "the baseline is not comparable: torch 2.11 -> 2.13, cores 4 -> 8"
    assert finding_text(result[metric].note) == note


def test_ungated_metrics_never_decide() -> None:
    skewed = measured(series("step_time", STEADY), series("straggler_skew", [0.9] * 8))
    result = judged(skewed, beside(series("step_time", STEADY), series("straggler_skew", [0.1] * 8)))
    assert result["straggler_skew"].verdict is Verdict.REGRESSED
    assert result.verdict is Verdict.UNCHANGED


def test_the_worst_gated_metric_decides() -> None:
    new = measured(series("step_time", STEADY, factor=0.5), series("peak_allocated", [1.2e9] * 8))
    result = judged(new, beside(series("step_time", STEADY), series("peak_allocated", [1e9] * 8)))
    assert [one.verdict for one in result.comparisons] == [Verdict.IMPROVED, Verdict.REGRESSED]
    assert result.verdict is Verdict.REGRESSED


def test_findings_of_the_measurement_come_with_the_result() -> None:
    crowded = replace(ENVIRONMENT, world_size=16)
    launch = make_launch(ranks=(make_rank_launch(rank=0, step_times=(0.04,) * 60),))
    new = replace(measured(environment=crowded, findings=(Finding("said before"),)), launches=(launch,))
    result = judged(new, StoredBaseline(record=None, origin="no baseline"))
    assert findings(result)[0] == "said before"
    assert findings(result)[1].startswith("oversubscribed: 16 ranks share 8 cores")


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (StoredBaseline(record=None, origin="no baseline"), Verdict.NEW),
        (found(differs=("cores 4 -> 8",)), Verdict.INCOMPATIBLE),
        (found(), Verdict.UNCHANGED),
    ],
)
def test_without_gated_metrics_the_baseline_alone_decides(base: StoredBaseline, expected: Verdict) -> None:
    assert judged(measured(), base).verdict is expected


def test_a_baseline_that_differs_in_options_alone_is_hinted_at() -> None:
    nothing = StoredBaseline(record=None, origin="no baseline for ddp no_sync=false of t in baselines", alike=("ddp",))
    result = judged(measured(series("step_time", STEADY)), nothing)
    assert result.verdict is Verdict.NEW
    said = "there is a baseline with other options: `ddp`; options are part of a benchmark's name"
    assert findings(result) == (said,)
    several = judged(measured(), replace(nothing, alike=("ddp", "ddp[bucket_cap_mb=5]")))
    assert "there are baselines with other options: `ddp`, `ddp[bucket_cap_mb=5]`; " in findings(several)[0]


def test_facts_that_leave_a_baseline_comparable_are_reported_if_they_differ() -> None:
    base = replace(found(series("peak_allocated", STEADY)), recorded_differ=("NCCL 2.27.5 -> 2.28.9",))
    result = judged(measured(series("peak_allocated", STEADY)), base)
    assert result.verdict is Verdict.UNCHANGED
    assert "the environment differs from the baseline's: NCCL 2.27.5 -> 2.28.9" in findings(result)


def test_an_undecided_metric_does_not_hide_an_improvement_over_the_other_revision() -> None:
    """Nor is it hidden itself; beside a baseline, the whole of which would be stale, it stays undecided."""
    wild = (1.0, 3.0, 0.5, 2.0)
    new = measured(
        series("peak_allocated", STEADY, factor=0.8), series("peak_resident", [5e8 * each for each in wild[::-1]])
    )
    then = (series("peak_allocated", STEADY), series("peak_resident", [5e8 * each for each in wild]))
    result = judged(new, beside(*then))
    assert (result.verdict, result["peak_resident"].verdict) == (Verdict.IMPROVED, Verdict.INCONCLUSIVE)
    assert judged(new, found(*then)).verdict is Verdict.INCONCLUSIVE
    undecided = series("step_time", wild[::-1]), series("step_time", wild)
    slower = judged(measured(*new.series, undecided[0]), beside(*then, undecided[1]))
    assert (slower.verdict, slower["step_time"].verdict) == (Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE)


def quotient(samples: Sequence[float]) -> Series:
    """An efficiency, which may turn a result red and keeps none from green while it is undecided."""
    rules = MetricRules(partnered=True, alarm_only=True)
    return replace(series("throughput", samples), metric="scaling_efficiency", unit="1", rules=rules)


WILD = (1.0, 3.0, 0.5, 2.0, 1.5, 0.7)


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.0, Verdict.UNCHANGED), (0.8, Verdict.IMPROVED), (1.2, Verdict.REGRESSED)]
)
def test_an_undecided_alarm_leaves_the_verdict_to_the_step_time(factor: float, expected: Verdict) -> None:
    new = measured(series("step_time", STEADY, factor=factor), quotient(WILD[::-1]))
    result = judged(new, beside(series("step_time", STEADY), quotient(WILD)))
    assert (result.verdict, result["scaling_efficiency"].verdict) == (expected, Verdict.INCONCLUSIVE)


def test_green_memory_does_not_hide_a_count_that_may_have_doubled() -> None:
    """Green times would, but those of ranks that share cores are not gated."""
    then, now = (
        Counts(
            totals={"synchronisations": mean},
            details={},
            unstable={"synchronisations": "irregular"},
            varying={"synchronisations": {"": (steps,)}},
        )
        for mean, steps in ((1.0, (1.0, 0.0, 2.0, 1.0)), (4.0, (4.0, 3.0, 8.0, 1.0)))
    )
    memory, time = series("peak_resident", [1e9 * each for each in STEADY]), series("step_time", STEADY)
    new = replace(measured(memory, *counted_series(now)), counts=now)
    assert judged(new, beside(memory, then=then)).verdict is Verdict.INCONCLUSIVE
    timed = replace(new, series=(time, *new.series))
    assert judged(timed, beside(time, memory, then=then)).verdict is Verdict.UNCHANGED


def test_an_alarm_makes_a_result_red_and_alone_stays_undecided() -> None:
    less = measured(series("step_time", STEADY), quotient([0.8 * sample for sample in STEADY]))
    assert judged(less, beside(series("step_time", STEADY), quotient(STEADY))).verdict is Verdict.REGRESSED
    assert judged(measured(quotient(WILD[::-1])), beside(quotient(WILD))).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("step", "work", "gated"),
    [
        ((1.1, 1.2, 1.0, 1.3, 0.9, 1.1, 1.2, 0.8), 1.1, True),  # longer, but who knows
        ((1.1, 1.2, 1.0, 1.3, 0.9, 1.1, 1.2, 0.8), 0.9, False),  # less work is no shorter step
        ((0.9, 1.2, 0.9, 1.0, 0.9, 1.1, 1.0, 0.7), 1.1, False),  # more work may make steps shorter
        (UNSTEADY, 1.1, False),  # shown to be as long as before
    ],
)
def test_more_cpu_time_decides_if_steps_may_be_longer(step: tuple[float, ...], work: float, *, gated: bool) -> None:
    cpu_time = replace(series("cpu_time", STEADY, factor=work), gated=True)
    base = beside(series("step_time", UNSTEADY), series("cpu_time", STEADY))
    result = judged(measured(series("step_time", step), cpu_time), base, last=True)
    assert result["cpu_time"].gated is gated
    assert (
        finding_text(result["cpu_time"].note).startswith("the step time is undecided, so the CPU time decides") is gated
    )


@pytest.mark.parametrize(
    ("step", "work", "last", "verdict"),
    [
        (1.001, 1.1, False, Verdict.INCONCLUSIVE),  # measured on
        (1.001, 1.1, True, Verdict.UNCHANGED),
        (1.001, 1.0, False, Verdict.UNCHANGED),
        (0.999, 1.1, False, Verdict.UNCHANGED),  # a step that is shorter is proven whatever its work looks like
    ],
)
def test_a_step_time_is_not_unchanged_if_its_cpu_time_seems_larger(
    step: float, work: float, verdict: Verdict, *, last: bool
) -> None:
    cpu_time = replace(series("cpu_time", STEADY, factor=work), gated=True)
    base = beside(series("step_time", STEADY), series("cpu_time", STEADY))
    result = judged(measured(series("step_time", STEADY, factor=step), cpu_time), base, last=last)
    assert (result["step_time"].verdict, result["cpu_time"].gated) == (verdict, verdict is Verdict.INCONCLUSIVE)
    assert result.verdict is verdict


def test_metrics_of_the_diagnosis_are_not_missed_if_no_launch_was_diagnosed() -> None:
    """A budget of a session may have no time for it."""
    base = found(series("peak_allocated", STEADY), series("memory_growth", [0.0] * 4))
    new = measured(series("peak_allocated", STEADY))
    assert judged(new, base).verdict is Verdict.UNCHANGED
    diagnosed = replace(new, diagnoses=(make_launch((1.0,)),))
    assert judged(diagnosed, base).verdict is Verdict.INCOMPATIBLE


def test_work_that_may_be_more_keeps_no_step_time_from_ok() -> None:
    wild = [1 + (one - 1) * 160 for one in STEADY]
    wilder = [1 + (one - 1) * 300 for one in STEADY]
    base = beside(series("step_time", [*wild[3:], *wild[:3]]), series("cpu_time", [*wilder[3:], *wilder[:3]]))
    cpu_time = replace(series("cpu_time", wilder, factor=1.02), gated=True)
    result = judged(measured(series("step_time", wild, factor=1.02), cpu_time), base, resolution=0.12, last=True)
    assert (result.verdict, result["step_time"].verdict) == (Verdict.OK, Verdict.OK)
    assert (result["cpu_time"].verdict, result["cpu_time"].gated) == (Verdict.INCONCLUSIVE, True)


def test_cpu_time_that_a_run_does_not_report_is_not_missed() -> None:
    base = found(series("step_time", STEADY), replace(series("cpu_time", STEADY), gated=True))
    assert judged(measured(series("step_time", STEADY)), base).findings == ()


def test_the_metric_of_a_probe_decides_whatever_the_step_time_says() -> None:
    """And the tolerance is as given: 5 %, though a step lasts ten times as long as it has a core."""
    step, cpu_time = (replace(series(name, STEADY), gated=name == "cpu_time") for name in ("step_time", "cpu_time"))
    ten_times = replace(series("step_time", STEADY, factor=10), gated=False)
    result = judged(
        measured(step, replace(series("cpu_time", STEADY, factor=1.1), gated=True)), beside(ten_times, cpu_time)
    )
    assert result.verdict is Verdict.REGRESSED
    assert result["cpu_time"].tolerance == 0.05
    wide = judged(measured(step, cpu_time), beside(series("step_time", STEADY, factor=10), cpu_time))
    assert wide["cpu_time"].tolerance == pytest.approx(0.5, rel=0.01)


def test_time_that_steps_wait_for_cores_does_not_widen_the_tolerance_of_cpu_time() -> None:
    """A step of 2 s has 1 s of CPU time, for others took half of the cores: 5 % of the step are 5 % of the work."""
    step, cpu_time = series("step_time", STEADY, factor=2), series("cpu_time", STEADY)
    busy = replace(measured(step, cpu_time), launches=(make_launch((2.0,), health=Health(cpu=CpuHealth(others=0.5))),))
    base = beside(step, cpu_time)
    assert judged(busy, base)["cpu_time"].tolerance == pytest.approx(0.05, rel=0.01)
    assert judged(measured(step, cpu_time), base)["cpu_time"].tolerance == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize(
    ("scatter", "factor", "now", "then"),
    [
        (160, 1.1, Verdict.INCONCLUSIVE, Verdict.REGRESSED),
        (160, 1.02, Verdict.OK, Verdict.UNCHANGED),
        (160, 1.05, Verdict.INCONCLUSIVE, Verdict.OK),
    ],
)
def test_the_number_of_launches_that_a_comparison_names_decides_it(
    scatter: float, factor: float, now: Verdict, then: Verdict
) -> None:
    """Of the same scatter; what looks worse is decided as worse, and what is ok as unchanged."""

    def judged_by(launches: int) -> Comparison:
        wild = [1 + (one - 1) * scatter for one in STEADY]
        new, base = (
            [side[number % len(side)] for number in range(launches)] for side in (wild, [*wild[3:], *wild[:3]])
        )
        of_new = measured(series("step_time", new, factor=factor))
        return judged(of_new, beside(series("step_time", base)), resolution=0.12, last=True)["step_time"]

    few = judged_by(len(STEADY))
    assert few.verdict is now
    assert few.enough is not None
    assert judged_by(8 * math.ceil(few.enough / 8)).verdict is then


def test_a_metric_of_only_one_side_hides_nothing_in_a_comparison_with_another_revision() -> None:
    faster, ours = series("step_time", STEADY, factor=0.8), series("throughput", STEADY)
    record = found(series("step_time", STEADY)).record
    beside = PairedRevision(revision="main", commit=None, record=record, launches=8)
    result = judged(measured(faster, ours), beside)
    assert (result.verdict, result["throughput"].verdict) == (Verdict.IMPROVED, Verdict.NEW)
    assert finding_text(result["throughput"].note) == "the other revision has no such metric"
    assert judged(measured(ours), beside).verdict is Verdict.INCOMPATIBLE  # it lacks what the other one has


def paused(share: float, launches: int = 2) -> Measurement:
    """Launches of twenty steps of a second, the fifth and the fifteenth of which take so large a share of the time."""
    long = share / (1 - share) * 18 / 2
    times = tuple(long if step in {4, 14} else 1.0 for step in range(20))
    made = tuple(make_launch(times, round=number) for number in range(launches))
    return replace(measured(series("step_time", STEADY)), launches=made)


NO_LONG = LongSteps(number=0, steps=40, factor=0.0, share=0.0, period=None)


def long_steps(result: Result) -> list[Finding]:
    return [finding for finding in result.findings if finding.code == "long_steps"]


def test_long_steps_that_the_reference_does_not_have_are_reported() -> None:
    """4 of 40 take 84 % of the time: 47.25 s each."""
    side = replace(beside(series("step_time", STEADY)), long_steps=NO_LONG)
    of_commit = replace(found(series("step_time", STEADY)), pair=side)
    for reference in (side, of_commit):
        (told,) = long_steps(judged(paused(0.84), reference))
        now = told.facts["now"]
        assert (now.number, now.steps, now.period) == (4, 40, 10)
        assert (now.factor, now.share) == pytest.approx((47.25, 0.84))
        assert told.facts["before"] == NO_LONG


@pytest.mark.parametrize(("before", "told"), [(0.0, True), (0.199, True), (0.201, False), (0.9, False)])
def test_long_steps_are_reported_if_they_take_a_tenth_more_of_the_time(before: float, *, told: bool) -> None:
    assert LONG_SHARE == 0.1
    side = replace(beside(series("step_time", STEADY)), long_steps=replace(NO_LONG, share=before))
    assert bool(long_steps(judged(paused(0.3), side))) is told


def test_without_a_pair_long_steps_are_reported_if_they_come_regularly() -> None:
    """Four of 40 take 84 % of the time: each tenth step, or once in a launch."""
    (told,) = long_steps(judged(paused(0.84), found(series("step_time", STEADY))))
    assert (told.facts["now"].period, told.facts["before"]) == (10, None)
    times = (47.25,) + (1.0,) * 19
    once = replace(paused(0.84), launches=tuple(make_launch(times, round=number) for number in range(2)))
    assert long_steps(judged(once, found(series("step_time", STEADY)))) == []


def test_the_result_has_the_reason_why_times_are_not_paired() -> None:
    reason = "3f2a1c0 is not in this clone: fetch-depth: 0"
    base = replace(found(series("step_time", STEADY)), unpaired=reason)
    told = Finding("unpaired", {"reason": reason})
    assert told in judged(on_machine(measured(series("step_time", STEADY))), base).findings
    assert told not in judged(measured(), base).findings, "nothing was timed"
    assert told not in judged(on_machine(measured()), replace(base, record=None)).findings


@pytest.mark.parametrize(
    ("calls", "fitted", "verdict"),
    [
        (2.0, False, Verdict.DOES_NOT_FIT),
        (1.0, False, Verdict.DOES_NOT_FIT),
        (3.0, False, Verdict.REGRESSED),
        (2.0, True, Verdict.REGRESSED),
    ],
)
def test_counts_of_a_benchmark_that_does_not_fit_into_memory_are_judged(
    calls: float, verdict: Verdict, *, fitted: bool
) -> None:
    """The baseline makes two calls a step, and was measured where it fitted, or only counted."""

    def counts(calls: float) -> Counts:
        return make_counts({"collective_calls": {"all_reduce": calls}})

    base = found(*((series("step_time", STEADY),) if fitted else ()))
    assert base.record is not None
    base = replace(base, counted=replace(base.record, counts=counts(2.0)))
    result = unfit("t.py::test", measured(), "rank 0 ran out of memory", base, counts(calls))
    assert result.verdict is verdict
    assert result["collective_calls"].change == calls - 2
    assert result.measurement["collective_calls"].value == calls
    with pytest.raises(KeyError, match="does not fit into memory: rank 0 ran out of memory"):
        _ = result.measurement["step_time"]
    text = " ".join(failure_text(result, accept="pytest --ddpperf-save").split())
    assert ("collective_calls 2 3 +1 exact 0 FAIL" in text) is (calls > 2)
    assert ("; the reference fits" in text) is fitted
