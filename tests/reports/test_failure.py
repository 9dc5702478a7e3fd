from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_ddpperf.judge.decision import failing_verdict
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Interval, Plan
from pytest_ddpperf.records.results import (
    BaselineRecord,
    Comparison,
    PairedRevision,
    Provenance,
    Result,
    StoredBaseline,
)
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.failure import failures_text, parts_text
from pytest_ddpperf.reports.findings import finding_text
from pytest_ddpperf.reports.phrases import seen_in
from tests.factories import failure_text
from tests.reports.conftest import comparison

ACCEPT = 'pytest "perf_tests/test_strategies.py::test_step[bucketed]" --ddpperf-save'
HEAD = "step_time regressed: 41.8 ms -> 47.3 ms, +13.2 % [95 % CI +11.9 .. +14.6], tolerance 3 %, could have seen 2.1 %"
MEASURED = "  strategy bucketed, 2 ranks, gloo, 8 launches x 60 steps"
SKEW = (
    "straggler_skew: 0.030 -> 0.150, +0.120 [95 % CI +0.090 .. +0.150], tolerance 0.030: "
    "rank 1 was the slowest in 8 of 8 launches"
)
ORIGIN = "baseline cpu-amd-epyc-2c-t1-gloo-w2-torch2.13, 2026-01-12, 3f2a1c0"
Make = Callable[..., Result]
Compare = Callable[..., Comparison]


def stored(result: Result) -> BaselineRecord:
    assert result.baseline is not None
    return result.baseline


def test_a_regression_names_fact_origin_and_cure(make_result: Make) -> None:
    assert failure_text(make_result(), accept=ACCEPT).splitlines() == [
        HEAD,
        f"{MEASURED}; {ORIGIN}",
        f"  accept: {ACCEPT}",
    ]


def test_a_failure_names_the_commit_that_times_were_measured_beside(make_result: Make) -> None:
    side = PairedRevision(revision="3f2a1c0", commit=None, launches=4)
    result = make_result()
    beside = replace(result, reference=StoredBaseline(record=stored(result), origin="", pair=side))
    assert f"{MEASURED}; {ORIGIN}, times side by side with 3f2a1c0" in failure_text(beside, accept="")


@pytest.mark.parametrize("stored", [False, True])
def test_in_how_many_rounds_a_step_was_slower_stands_beside_its_change(make_result: Make, *, stored: bool) -> None:
    side = PairedRevision(revision="3f2a1c0", commit=None, launches=4)
    then, now = (0.041, 0.042, 0.048, 0.041), (0.047, 0.043, 0.047, 0.049)
    step = comparison("step_time", 0.047, Verdict.REGRESSED, samples=now)
    step = replace(step, change=0.1, base_samples=then, worse_in=3, paired=True)
    reference = StoredBaseline(record=None, origin="", pair=side) if stored else side
    result = make_result(comparisons=(step,), reference=reference)
    assert failure_text(result, accept="").splitlines()[0] == (
        "step_time regressed: 47.0 ms, +10.0 %, slower in 3 of 4 rounds, tolerance 3 %"
    )


def test_beside_separate_launches_a_step_is_slower_than_the_median_one(make_result: Make) -> None:
    then, now = (0.041, 0.042, 0.090), (0.047, 0.0419, 0.047, 0.049)
    step = comparison("step_time", 0.047, Verdict.REGRESSED, samples=now)
    step = replace(step, change=0.1, base_samples=then, worse_in=3)
    rate = comparison("throughput", 30.0, Verdict.REGRESSED, samples=(30.0, 29.0))
    rate = replace(rate, base_samples=(34.0,), worse_in=2)
    stored, other = (make_result(comparisons=(one,)) for one in (step, rate))
    assert ", slower than the baseline's median in 3 of 4 launches, tolerance" in failure_text(stored, accept="")
    assert seen_in(other["throughput"]) == "worse than the baseline's median in 2 of 2 launches"
    side = PairedRevision(revision="3f2a1c0", commit=None, launches=3)
    assert "slower than the reference's median in 3 of 4 launches" in failure_text(
        make_result(comparisons=(replace(step, paired=True),), reference=side), accept=""
    )


def test_a_change_that_was_found_by_luck_says_nothing_of_what_could_have_been_seen(
    make_result: Make, make_comparison: Compare
) -> None:
    facts = {"baseline": 0.03, "change": 0.373, "mde": 0.538}
    step = make_comparison("step_time", 0.0412, Verdict.REGRESSED, **facts)
    first = failure_text(make_result(comparisons=(step,)), accept=ACCEPT).splitlines()[0]
    assert first == "step_time regressed: 30.0 ms -> 41.2 ms, +37.3 %, tolerance 3 %"


def test_what_several_benchmarks_have_in_common_is_said_once_with_their_names(make_result: Make) -> None:
    note = Finding("suspected", {"metrics": ("step_time of naive and flat",), "launches": 6})
    own, alone = Finding("not_diagnosed", {"reason": "no ranks"}), make_result(findings=(note,))
    results = [
        replace(alone, measurement=replace(alone.measurement, name=name), findings=(note, *findings))
        for name, findings in (("naive", (own,)), ("flat", (own,)), ("ddp", ()))
    ]
    text = failures_text([(result, Verdict.REGRESSED) for result in results], accept=ACCEPT)
    common = "step_time of naive and flat looked worse in the first 6 launches; those after them had to confirm it"
    measured = [f"  benchmark {name}, {MEASURED.strip()}; {ORIGIN}" for name in ("naive", "flat", "ddp")]
    assert text.split("\n\n") == [
        *(f"{HEAD}\n{line}" for line in measured),
        f"  {common}\n  naive and flat: not diagnosed: no ranks\n  accept: {ACCEPT}",
    ]


def test_what_follows_from_the_step_time_is_not_told_twice(make_result: Make, make_comparison: Compare) -> None:
    step_time = make_result().comparisons[0]
    throughput = make_comparison("throughput", 676.0, Verdict.REGRESSED, baseline=765.0, change=-0.116)
    epoch, longest = (
        make_comparison(metric, 1 + change, Verdict.REGRESSED, baseline=1.0, change=change, gated=False)
        for metric, change in (("epoch_time", 0.132), ("step_time_max", 0.8))
    )
    every = (throughput, step_time, epoch, longest)
    lines = failure_text(make_result(comparisons=every), accept=ACCEPT).splitlines()
    assert lines[0] == HEAD
    assert not {"throughput", "epoch_time"} & set(" ".join(lines).split())
    assert "step_time_max" in "".join(lines)  # which changed otherwise


def test_what_remained_undecided_is_told(make_result: Make, make_comparison: Compare) -> None:
    memory = make_comparison("peak_resident", 400 * 2.0**20, Verdict.REGRESSED, baseline=380 * 2.0**20, change=0.053)
    note = "about 30 launches would decide it"
    step = make_comparison(
        "step_time", 0.043, Verdict.INCONCLUSIVE, baseline=0.042, change=0.024, bound=0.135, note=note
    )
    hint = make_comparison("forward_time", 0.02, Verdict.INCONCLUSIVE, baseline=0.01, gated=False)
    result = make_result(comparisons=(memory, step, hint))
    lines = failure_text(result, accept=ACCEPT).splitlines()
    assert lines[2] == f"  undecided: step_time 42.0 ms -> 43.0 ms (+2.4 %) could be +13.5 % slower: {note}"
    failing = failure_text(result, accept=ACCEPT, failing={Verdict.INCONCLUSIVE}).splitlines()
    assert not [line for line in failing if "undecided" in line]


def test_a_note_names_its_metrics_where_several_fail(make_result: Make, make_comparison: Compare) -> None:
    few, many = "about 27 launches would decide it", "about 149 launches (max_time 205 s) would decide it"
    open_ones = [
        make_comparison(metric, 1.1, Verdict.INCONCLUSIVE, baseline=1.0, change=0.1, bound=0.3, note=note)
        for metric, note in (("step_time", many), ("peak_resident", few), ("final_loss", few))
    ]

    def told(*comparisons: Comparison) -> list[str]:
        result = make_result(comparisons=comparisons, verdict=Verdict.INCONCLUSIVE)
        return [line for line in failure_text(result, accept=ACCEPT).splitlines() if "would decide it" in line]

    assert told(*open_ones) == [f"  step_time: {many}", f"  peak_resident and final_loss: {few}"]
    assert told(open_ones[0]) == [f"  {many}"]


def test_throughput_alone_is_told(make_result: Make, make_comparison: Compare) -> None:
    throughput = make_comparison("throughput", 676.0, Verdict.REGRESSED, baseline=765.0, change=-0.116)
    text = failure_text(make_result(comparisons=(throughput,)), accept=ACCEPT)
    assert text.startswith("throughput regressed: 765 samples/s -> 676 samples/s, -11.6 %, tolerance 3 %\n")


def test_every_failing_metric_has_its_line_and_others_that_moved_are_hints(
    make_result: Make, make_comparison: Compare
) -> None:
    memory = make_comparison(
        "peak_resident", 463 * 2.0**20, Verdict.REGRESSED, baseline=412 * 2.0**20, change=0.124, tolerance=0.1
    )
    skew = make_comparison(
        "straggler_skew",
        0.15,
        Verdict.REGRESSED,
        baseline=0.03,
        change=0.12,
        change_interval=Interval(low=0.09, high=0.15, confidence=0.95),
        gated=False,
    )
    loss = make_comparison("final_loss", 1.2, Verdict.UNCHANGED, baseline=1.2, change=0.0)
    result = make_result(comparisons=(*make_result().comparisons, memory, skew, loss), findings=(Finding("slow disk"),))
    assert failure_text(result, accept=ACCEPT).splitlines() == [
        HEAD,
        "peak_resident regressed: 412 MiB -> 463 MiB, +12.4 %, tolerance 10 %",
        f"{MEASURED}; {ORIGIN}",
        f"  {SKEW}",
        "  slow disk",
        f"  accept: {ACCEPT}",
    ]


def test_an_undecided_benchmark_tells_what_it_would_take_and_is_not_to_be_accepted(
    make_result: Make, make_comparison: Compare
) -> None:
    step_time = make_comparison(
        "step_time",
        0.0429,
        Verdict.INCONCLUSIVE,
        baseline=0.0418,
        change=0.026,
        change_interval=Interval(low=-0.01, high=0.063, confidence=0.95),
        mde=0.05,
        note="about 30 launches would decide",
    )
    text = failure_text(make_result(comparisons=(step_time,), verdict=Verdict.INCONCLUSIVE), accept=ACCEPT)
    assert text.splitlines() == [
        "step_time inconclusive: 41.8 ms -> 42.9 ms, +2.6 % [95 % CI -1.0 .. +6.3], tolerance 3 %, could have seen 5 %",
        f"{MEASURED}; {ORIGIN}",
        "  about 30 launches would decide",
    ]


def test_what_is_worse_for_certain_comes_before_what_is_undecided(make_result: Make, make_comparison: Compare) -> None:
    open_ones = make_comparison("step_time", 0.04, Verdict.INCONCLUSIVE), make_comparison("cpu_time", 0.04, Verdict.OK)
    red = make_comparison("final_loss", 2.7, Verdict.REGRESSED, baseline=2.2)
    result = make_result(comparisons=(*open_ones, red))
    failing = {Verdict.INCONCLUSIVE, Verdict.REGRESSED}
    lines = failure_text(result, accept="", failing=failing).splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == ["final_loss regressed", "step_time inconclusive"]


def test_several_failing_verdicts_are_all_told(make_result: Make, make_comparison: Compare) -> None:
    loss = make_comparison("final_loss", 1.25, Verdict.INCONCLUSIVE, baseline=1.2, change=0.042)
    result = make_result(comparisons=(*make_result().comparisons, loss))
    assert "final_loss inconclusive" not in failure_text(result, accept=ACCEPT)
    lines = failure_text(result, accept=ACCEPT, failing={Verdict.INCONCLUSIVE}).splitlines()
    assert lines[1] == "final_loss inconclusive: 1.20 -> 1.25, +4.2 %, tolerance 3 %"


def test_an_undecided_metric_does_not_hide_one_without_a_reference(make_result: Make, make_comparison: Compare) -> None:
    """Where a comparable baseline is required, or asked for by fail_on."""
    step = make_comparison("step_time", 0.0429, Verdict.INCONCLUSIVE, baseline=0.0418, change=0.026)
    loss = make_comparison("final_loss", 1.25, Verdict.NEW)
    lost = Finding("lost_metric", {"metric": "final_loss", "paired": False})
    missing = {Verdict.NEW, Verdict.INCOMPATIBLE}

    added = make_result(comparisons=(step, loss), verdict=Verdict.INCONCLUSIVE)
    assert failing_verdict(added, missing) is Verdict.NEW
    lines = failure_text(added, Verdict.NEW, accept=ACCEPT, failing=missing).splitlines()
    assert lines[0].startswith("final_loss new: ")
    assert lines[-1] == f"  save one: {ACCEPT}"

    less = make_result(comparisons=(step,), verdict=Verdict.INCONCLUSIVE, findings=(lost,))
    assert failing_verdict(less, missing) is Verdict.INCOMPATIBLE
    first = failure_text(less, Verdict.INCOMPATIBLE, accept=ACCEPT, failing=missing).splitlines()[0]
    assert first == f"incompatible: {finding_text(lost)}"

    for result in (added, less):
        assert failing_verdict(result, {Verdict.REGRESSED}) is None
        assert failing_verdict(result, {Verdict.INCONCLUSIVE, *missing}) is Verdict.INCONCLUSIVE
    paired = replace(added, reference=PairedRevision(revision="main", commit="c", launches=2, modules={}))
    assert failing_verdict(paired, missing) is None  # the candidate alone has it


def test_a_missing_baseline_is_one_line_not_one_for_each_metric(make_result: Make, make_comparison: Compare) -> None:
    metrics = tuple(make_comparison(name, 1.0, Verdict.NEW) for name in ("step_time", "peak_resident"))
    reason = "no baseline for bucketed of x in baselines"
    result = make_result(comparisons=metrics, verdict=Verdict.NEW, baseline=None, origin=reason)
    assert failure_text(result, accept=ACCEPT).splitlines() == [f"new: {reason}", MEASURED, f"  save one: {ACCEPT}"]


def test_a_metric_that_the_baseline_lacks_is_named(make_result: Make, make_comparison: Compare) -> None:
    loss = make_comparison("final_loss", 1.2, Verdict.NEW, note="the baseline has no such metric")
    lines = failure_text(make_result(comparisons=(loss,), verdict=Verdict.NEW), accept=ACCEPT).splitlines()
    assert lines == [
        "final_loss new: 1.20",
        f"{MEASURED}; {ORIGIN}",
        "  the baseline has no such metric",
        f"  save one: {ACCEPT}",
    ]


def test_a_foreign_baseline_names_the_facts_that_differ(make_result: Make) -> None:
    baseline = stored(make_result())
    foreign = replace(baseline, environment=replace(baseline.environment, torch="2.11", cores=64), commit=None)
    differs = ("cores 64 -> 2", "torch 2.11 -> 2.13")
    result = make_result(verdict=Verdict.INCOMPATIBLE, baseline=foreign, differs=differs)
    assert failure_text(result, accept=ACCEPT).splitlines() == [
        "incompatible: the baseline is not comparable: cores 64 -> 2, torch 2.11 -> 2.13",
        f"{MEASURED}; baseline cpu-amd-epyc-64c-t1-gloo-w2-torch2.11, 2026-01-12",
        f"  save one that is comparable: {ACCEPT}",
    ]


def test_counts_that_differ_from_those_of_a_foreign_baseline_are_shown(
    make_result: Make, make_comparison: Compare
) -> None:
    obstacle = "the baseline is not comparable: torch 2.11 -> 2.13"

    def foreign(metric: str, base: float, value: float, difference: str) -> Comparison:
        made = counted(make_comparison, metric, base, value, obstacle)
        return replace(made, verdict=Verdict.INCOMPATIBLE, difference=Finding(difference) if difference else None)

    calls = foreign("collective_calls", 2, 9, "all_reduce 2 -> 9 calls per step (+7)")
    operators = foreign("operators", 5, 9, "aten.mul 5 -> 8 per step (+3); aten.add 0 -> 1 per step (+1)")
    same = foreign("optimizer_steps", 1, 1, "")
    differs = ("torch 2.11 -> 2.13",)
    result = make_result(verdict=Verdict.INCOMPATIBLE, comparisons=(calls, operators, same), differs=differs)
    changes = [
        "collective_calls, counted: all_reduce 2 -> 9 calls per step (+7)",
        "operators, counted: 5 -> 9 per step; aten.mul 5 -> 8 per step (+3); aten.add 0 -> 1 per step (+1)",
    ]
    assert failure_text(result, accept=ACCEPT).splitlines()[:3] == [f"incompatible: {obstacle}", *changes]
    # Where only kernels differ, it is told metric by metric.
    alike = replace(result, reference=StoredBaseline(record=result.baseline, origin=""))
    assert failure_text(alike, accept=ACCEPT).splitlines()[2] == (
        f"operators incompatible, counted: 5 -> 9 per step; {obstacle}; "
        "aten.mul 5 -> 8 per step (+3); aten.add 0 -> 1 per step (+1)"
    )


def test_a_baseline_of_changed_code_is_marked(make_result: Make) -> None:
    changed = replace(stored(make_result()), dirty=True)
    assert f"{ORIGIN}+changes" in failure_text(make_result(baseline=changed), accept=ACCEPT)


def test_counts_of_another_day_are_told_apart(make_result: Make) -> None:
    renewed = replace(
        stored(make_result()), counted=Provenance(date="2026-02-01", commit="9c1e2aa" + "0" * 33, dirty=True)
    )
    assert f"{ORIGIN}, counts of 2026-02-01, 9c1e2aa+changes" in failure_text(
        make_result(baseline=renewed), accept=ACCEPT
    )


def counted(make_comparison: Compare, metric: str, base: float, value: float, note: str, **fields: bool) -> Comparison:
    verdict = Verdict.REGRESSED if value > base else Verdict.IMPROVED
    made = make_comparison(metric, value, verdict, baseline=base, change=value - base, note=note, **fields)
    return replace(made, series=replace(made.series, scale="exact"))


def test_a_count_that_failed_is_told_once(make_result: Make, make_comparison: Compare) -> None:
    """Where one thing makes the whole change its line has all the numbers; else those of the sum come first.

    What moves with a count that failed is not told; what fell is a finding, and told there. Operators, which all others
    are made of, come last.
    """
    counts = (
        counted(make_comparison, "collective_calls", 5, 9, "all_reduce 5 -> 9 calls per step (+4), bytes unchanged"),
        counted(make_comparison, "operators", 15, 19, "aten.mul 5 -> 8 per step (+3); aten.add 4 -> 5 per step (+1)"),
        replace(
            counted(make_comparison, "ddp_buckets", 1, 1, "1 bucket as before, 4.00 MiB -> 5.00 MiB"),
            verdict=Verdict.REGRESSED,
        ),
        counted(make_comparison, "flops_forward", 1, 2, "head 1 -> 2 per step (+1)", gated=False),
        counted(make_comparison, "synchronisations", 2, 1, "item 2 -> 1 waits for the device per step (-1)"),
    )
    lines = failure_text(make_result(comparisons=counts, findings=(Finding("synchronisations fell"),)), accept=ACCEPT)
    assert lines.splitlines() == [
        "collective_calls regressed, counted: all_reduce 5 -> 9 calls per step (+4), bytes unchanged",
        "ddp_buckets regressed, counted: 1 bucket as before, 4.00 MiB -> 5.00 MiB",
        (
            "operators regressed, counted: 15 -> 19 per step; aten.mul 5 -> 8 per step (+3); "
            "aten.add 4 -> 5 per step (+1)"
        ),
        f"{MEASURED}; {ORIGIN}",
        "  synchronisations fell",
        f"  accept: {ACCEPT}",
    ]


def test_growth_of_memory_comes_before_times(make_result: Make, make_comparison: Compare) -> None:
    step = make_comparison("step_time", 2.0, Verdict.REGRESSED, baseline=1.0)
    leak = make_comparison("memory_growth", 391 * 1024.0, Verdict.REGRESSED, baseline=0.0, change=391 * 1024.0)
    leak = replace(leak, series=replace(leak.series, rules=replace(leak.series.rules, diagnosed=True, drifts=False)))
    lines = failure_text(make_result(comparisons=(step, leak)), accept=ACCEPT).splitlines()
    assert [line.partition(" ")[0] for line in lines[:2]] == ["memory_growth", "step_time"]


def test_a_figure_that_is_not_gated_has_no_word_of_a_verdict(make_result: Make, make_comparison: Compare) -> None:
    step = make_comparison("step_time", 2.0, Verdict.REGRESSED, baseline=1.0, change=1.0)
    rate = make_comparison("flops_rate", 2.58, Verdict.IMPROVED, baseline=1.0, change=1.58, gated=False)
    lines = failure_text(make_result(comparisons=(step, rate)), accept=ACCEPT).splitlines()
    (told,) = [line for line in lines if "flops_rate" in line]
    assert told.startswith("  flops_rate: ")
    assert "improved" not in told


def test_counts_come_before_times_and_these_before_losses(make_result: Make, make_comparison: Compare) -> None:
    """A count names the cause. Operators, which all others are made of, are the last of them."""
    comparisons = (
        *(make_comparison(name, 2.0, Verdict.REGRESSED, baseline=1.0) for name in ("final_loss", "step_time")),
        *(make_comparison(name, 2.0, Verdict.REGRESSED, baseline=1.0) for name in ("cpu_time", "peak_resident")),
        counted(make_comparison, "operators", 88, 112, ""),
        counted(make_comparison, "collective_calls", 2, 4, ""),
    )
    lines = failure_text(make_result(comparisons=comparisons), accept=ACCEPT).splitlines()
    assert [line.partition(" ")[0] for line in lines[:6]] == [
        *("collective_calls", "operators", "step_time", "cpu_time", "peak_resident", "final_loss")
    ]


def test_an_incomparable_metric_says_why(make_result: Make, make_comparison: Compare) -> None:
    loss = make_comparison("final_loss", 1.2, Verdict.INCOMPATIBLE, note="after 60 steps, the baseline's after 30")
    text = failure_text(make_result(comparisons=(loss,), verdict=Verdict.INCOMPATIBLE), accept=ACCEPT)
    assert text.startswith("final_loss incompatible: 1.20\n")
    assert "  after 60 steps, the baseline's after 30\n" in text


def test_a_broken_benchmark_tells_its_reason_once(make_result: Make) -> None:
    findings = (Finding("slow disk"), Finding("broken", {"reason": "rank 1 was killed by SIGKILL"}))
    result = make_result(
        verdict=Verdict.BROKEN,
        comparisons=(),
        baseline=None,
        findings=findings,
        measured={"launches": (), "plan": Plan(warmup=0, steps=0), "findings": findings[1:]},
    )
    assert failure_text(result, accept=ACCEPT).splitlines() == [
        "broken: rank 1 was killed by SIGKILL",
        "  strategy bucketed, 2 ranks, gloo",
        "  slow disk",
    ]


def test_a_scaling_point_and_a_named_variant_are_told_apart(make_result: Make) -> None:
    weak = make_result(measured={"name": "weak", "mode": "weak", "strategy": "ddp"})
    assert "  strategy ddp, weak scaling, 2 ranks, gloo, 8 launches" in failure_text(weak, accept=ACCEPT)
    named = make_result(measured={"name": "big batch", "strategy": "ddp"})
    assert "  benchmark big batch, strategy ddp, 2 ranks" in failure_text(named, accept=ACCEPT)


def test_beside_another_revision_that_is_named_and_nothing_is_to_be_stored(make_result: Make) -> None:
    beside = make_result(
        paired=PairedRevision(
            revision="3f2a1c0 (main)", commit="3f2a1c0", record=make_result().baseline, launches=8, candidate_launches=8
        )
    )
    assert failure_text(beside, accept=ACCEPT).splitlines() == [
        HEAD,
        f"{MEASURED}; revision 3f2a1c0 (main), side by side, 8+8 launches",
        "  accept: if intended: --ddpperf-allow='TEST METRIC' for this run, or accept={METRIC: LIMIT} for the test",
    ]


@pytest.fixture
def part(make_comparison: Compare) -> Compare:
    """Makes a part of a step: its metric, seconds before and now, and the ends of the interval of its change."""

    def make(metric: str, before: float, now: float, low: float, high: float) -> Comparison:
        interval = Interval(low=low, high=high, confidence=0.95)
        made = make_comparison(
            metric, now, Verdict.UNCHANGED, baseline=before, change=now - before, change_interval=interval
        )
        return replace(made, series=replace(made.series, unit="s", scale="difference"), gated=False)

    return make


def test_a_step_time_that_regressed_names_what_changed_and_what_did_not(make_result: Make, part: Compare) -> None:
    """Of a step of 41.8 ms 3 % are 1.254 ms. Nothing can be said of backward, and other takes less than that.

    The phases change by 0.1 + 4.7 - 0.5 + 0.1 ms, and the step by 4.97 to 6.1 ms.
    """
    result = make_result(
        comparisons=(
            *make_result().comparisons,
            part("exposed_communication", 0.0012, 0.0063, 0.004, 0.0062),
            part("phase_forward", 0.012, 0.0121, -0.0009, 0.0011),
            part("phase_backward", 0.02, 0.0247, -0.001, 0.011),
            part("phase_optimizer", 0.005, 0.0045, -0.001, -0.0001),  # significant, and less than what is tolerated
            part("phase_other", 0.0001, 0.0002, 0.00009, 0.00011),
        )
    )
    line = (
        "exposed communication +5.10 ms [95 % CI +4.00 ms .. +6.20 ms]; "
        "forward and optimizer unchanged, each within 1.25 ms"
    )
    assert parts_text(result) == line
    assert failure_text(result, accept="pytest").splitlines()[2] == f"  {line}"


def test_communication_that_did_not_change_points_at_the_computation(make_result: Make, part: Compare) -> None:
    result = make_result(
        comparisons=(
            *make_result().comparisons,
            part("exposed_communication", 0.004, 0.0041, -0.0009, 0.0011),
            part("phase_gradient_sync", 0.009, 0.0115, 0.002, 0.003),
            part("phase_backward", 0.02, 0.023, 0.002, 0.004),
        )
    )
    assert parts_text(result) == (
        "backward +3.00 ms [95 % CI +2.00 ms .. +4.00 ms]; gradient sync +2.50 ms [95 % CI +2.00 ms .. +3.00 ms]; "
        "exposed communication unchanged, within 1.25 ms"
    )


def test_the_part_that_changed_most_comes_first(make_result: Make, part: Compare) -> None:
    result = make_result(
        comparisons=(
            *make_result().comparisons,
            part("exposed_communication", 0.0012, 0.0034, 0.0001, 0.0043),
            part("phase_forward", 0.012, 0.020, 0.007, 0.009),
            part("phase_optimizer", 0.009, 0.0065, -0.0035, -0.0015),
        )
    )
    assert parts_text(result) == (
        "forward +8.00 ms [95 % CI +7.00 ms .. +9.00 ms]; optimizer -2.50 ms [95 % CI -3.50 ms .. -1.50 ms]; "
        "exposed communication +2.20 ms [95 % CI +100 us .. +4.30 ms]"
    )


@pytest.mark.parametrize(
    ("seconds", "told"), [(-0.025, False), (0.0038, False), (0.0039, True), (0.0072, True), (0.0073, False)]
)
def test_phases_are_told_where_they_add_up_to_the_change_of_the_step(
    make_result: Make,
    make_comparison: Compare,
    part: Compare,
    seconds: float,
    told: bool,  # noqa: FBT001 - a parameter
) -> None:
    """The step changed by 11.9 % to 14.6 % of 41.8 ms: 4.97 to 6.10 ms. Widened by 1.13 ms that is 3.85 to 7.23 ms."""
    backward = part("phase_backward", 0.03, 0.03 + seconds, seconds - 0.001, seconds + 0.001)
    backward = replace(backward, verdict=Verdict.IMPROVED if seconds < 0 else Verdict.REGRESSED)
    result = make_result(comparisons=(*make_result().comparisons, backward))
    assert ("backward" in failure_text(result, accept="")) is told
    calls = counted(make_comparison, "collective_calls", 2, 4, "")
    alone = replace(result, comparisons=(calls, *(replace(c, gated=False) for c in result.comparisons)))
    assert ("backward" in failure_text(alone, accept="")) is told


def test_phases_that_became_shorter_do_not_explain_a_longer_step(make_result: Make, part: Compare) -> None:
    """Though the interval of a busy machine, widened, reaches there: from 1 % - 60 % on."""
    step = replace(make_result().comparisons[0], change_interval=Interval(low=0.01, high=0.61, confidence=0.95))
    shorter = part("phase_backward", 0.03, 0.02, -0.011, -0.009)
    assert parts_text(make_result(comparisons=(step, shorter))) == ""


def test_an_uncertain_phase_does_not_hide_a_certain_one(make_result: Make, part: Compare) -> None:
    """The step changed by 3.85 to 7.23 ms, widened: all phases by 9.8 ms, and the one that is certain by 5.5."""
    result = make_result(
        comparisons=(
            *make_result().comparisons,
            part("phase_backward", 0.02, 0.0243, -0.002, 0.0106),
            part("phase_other", 0.001, 0.0065, 0.0044, 0.0066),
        )
    )
    assert parts_text(result) == "other +5.50 ms [95 % CI +4.40 ms .. +6.60 ms]"


def test_what_may_be_chance_is_not_named(make_result: Make, make_comparison: Compare, part: Compare) -> None:
    chance = part("exposed_communication", 0.0012, 0.0063, -0.001, 0.0112)
    result = make_result(comparisons=(*make_result().comparisons, chance))
    assert parts_text(result) == ""
    assert "exposed" not in failure_text(result, accept="pytest")
    assert parts_text(make_result()) == ""
    new = make_comparison("step_time", 0.04, Verdict.NEW)
    assert parts_text(make_result(comparisons=(new, part("phase_forward", 0.012, 0.02, 0.007, 0.009)))) == ""
