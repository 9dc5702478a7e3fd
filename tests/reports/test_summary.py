"""What a run ends with on the terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.results import PairedRevision, Result
from pytest_ddpperf.records.verbs import Search, Trial
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.lines import with_names
from pytest_ddpperf.reports.outputs import Outputs
from pytest_ddpperf.reports.remarks import every_remark, told_once, undecided_lines
from pytest_ddpperf.reports.summary import brief_table, summary_parts, summary_table
from tests.factories import failure_text, make_interval
from tests.reports.made import counted, make_comparison, make_result

CHANGE = "change of the step time from the reference to now"
BOUND = (
    "upper limit of the slowdown, one-sided, with 95 % confidence; includes long steps that recur at least every 60th "
    "step"
)
MEMORY = "peak resident memory above the level before the model was built, without mapped files"


def remarks_on(*results: Result, accepting: bool = False) -> tuple[str, ...]:
    """All remarks on benchmarks, and before them what is undecided."""
    named = with_names(results)
    remarks = [(name, remark) for name, result in named for remark in every_remark(result, accepting=accepting)]
    return (*([] if accepting else undecided_lines(named)), *told_once(remarks, len(results)))


def test_several_notes_on_one_benchmark_do_not_count_as_several_benchmarks() -> None:
    remarks = [("test_step", Finding("a", {"share": share})) for share in range(5)]
    assert told_once(remarks, 1) == [f"test_step: a: share={share}" for share in range(5)]
    others = [("test_other", Finding("a", {"share": 9})), *((f"test_{name}", Finding("a")) for name in range(3))]
    (line,) = told_once([*remarks, *others], 6)
    assert line == "5 of 6 benchmarks, such as test_step: a: share=0"


def test_a_row_has_the_measured_values_and_their_changes() -> None:
    others = (
        make_comparison("throughput", 676.4, Verdict.UNCHANGED),
        make_comparison("peak_resident", 412 * 2.0**20, Verdict.UNCHANGED),
    )
    step = replace(*make_result().comparisons, bound=0.149)
    table = summary_table([make_result(comparisons=(step, *others, counted("operators", Verdict.REGRESSED)))])
    assert table.title == "cpu AMD EPYC, 2 cores, 1 thread per rank, gloo, torch 2.13, 2 ranks"
    assert dict(zip(table.headers, table.rows[0], strict=True)) == {
        "benchmark": "test_step[bucketed]",
        "step time\nms [95 % CI]": "47.3 [46.8, 47.8]",
        "throughput\nsamples/s": "676",
        "memory\nMiB": "412",
        "change\n% [95 % CI]": "+13.2 [+11.9, +14.6]",
        "at most\n%": "+14.9",
        "counts": "1 changed",
        "verdict": "regressed",
    }
    assert table.notes == ()
    assert table.legend == {"memory": MEMORY, "change": CHANGE, "at most": BOUND}


def test_a_row_says_how_many_counts_are_the_same_or_changed() -> None:
    same, lost = counted("flops", Verdict.UNCHANGED), counted("operators", Verdict.NEW)
    unsteady = replace(counted("buffers", Verdict.REGRESSED), gated=False)
    fewer = counted("collective_calls", Verdict.IMPROVED)
    results = [
        make_result(test=f"t.py::test_{number}", comparisons=counts)
        for number, counts in enumerate(((same, lost, unsteady), (same, fewer, lost), (lost, unsteady)))
    ]
    table = summary_table(results)
    column = table.headers.index("counts")
    assert [row[column] for row in table.rows] == ["1 same", "1 changed", "-"]


def test_a_green_row_says_which_counts_fell() -> None:
    fewer = replace(counted("operators", Verdict.IMPROVED), baseline=3.0)
    time = make_comparison("step_time", 0.04, Verdict.IMPROVED)
    better = make_result(verdict=Verdict.IMPROVED, comparisons=(time, fewer))
    assert [row[0] for row in brief_table([better]).rows][1:] == ["    operators 3 -> 2"]
    assert len(brief_table([make_result(verdict=Verdict.UNCHANGED, comparisons=(time,))]).rows) == 1


def test_a_brief_row_marks_a_change_that_is_no_quotient_of_its_two_times() -> None:
    """A reader with a calculator finds +59.2 % in it."""
    figures = {"baseline": 0.0206, "change": 0.576, "paired": True}
    time = make_comparison("step_time", 0.0328, Verdict.REGRESSED, **figures)
    table = brief_table([make_result(comparisons=(time,))])
    assert (table.headers[2], table.rows[0][1:3]) == ("change\n%", ("20.6 -> 32.8", "+57.6*"))
    assert table.notes == ("* mean change of the rounds; both values are means of all launches",)
    whole = summary_table([make_result(comparisons=(time,))])
    assert (whole.rows[0][1], whole.notes) == ("+57.6*", table.notes)
    assert brief_table([make_result(comparisons=(replace(time, change=0.592),))]).notes == ()


def test_a_row_says_in_a_few_words_why_a_benchmark_broke() -> None:
    """Its failure's message has the rest. What only does not fit into memory has no such message."""
    same = Finding("same_data", {"ranks": (0, 1), "drawn": True, "paired": None, "alone": False, "sites": ()})
    rows = brief_table([make_result(verdict=Verdict.BROKEN, findings=(same,), comparisons=())]).rows
    assert rows[1][0] == "    ranks 0 and 1 draw the same samples from the dataset"


def test_a_mark_in_a_row_that_is_summed_up_has_no_note() -> None:
    time = make_comparison("step_time", 0.0328, Verdict.OK, baseline=0.0206, change=0.576, paired=True)
    quiet = replace(time, change=0.592)
    table = brief_table([make_result(verdict=Verdict.OK, comparisons=(quiet if i < 30 else time,)) for i in range(33)])
    assert table.notes == ()
    assert not any("*" in row[2] for row in table.rows)


def test_a_row_shows_a_new_time_and_compared_counts() -> None:
    time, foreign = (make_comparison("step_time", 0.04, verdict) for verdict in (Verdict.NEW, Verdict.INCOMPATIBLE))
    same = counted("flops", Verdict.UNCHANGED)
    results = [
        make_result(test="t.py::new", verdict=Verdict.NEW, comparisons=(time, same), baseline=None),
        make_result(
            test="t.py::foreign", verdict=Verdict.INCOMPATIBLE, comparisons=(foreign, same), differs=("cores 4 -> 2",)
        ),
    ]
    assert [row[-2:] for row in summary_table(results).rows] == [("1 same", "incompatible"), ("1 same", "new")]
    assert [row[-2:] for row in brief_table(results).rows] == [("same", "incompatible"), ("same", "new")]


def test_a_time_that_cannot_be_compared_shows_no_change() -> None:
    """Its baseline is of another machine, so the change is that of the machines; the failure has none either."""
    known = {"baseline": 0.04, "change": 0.2, "change_interval": make_interval(0.1, 0.3)}
    foreign = make_comparison("step_time", 0.048, Verdict.INCOMPATIBLE, **known)
    loss = make_comparison("final_loss", 1.2, Verdict.INCOMPATIBLE, **known | {"baseline": 1.0})
    alike = make_comparison("step_time", 0.048, Verdict.INCONCLUSIVE, **known)
    results = [
        make_result(
            test="t.py::foreign", verdict=Verdict.INCOMPATIBLE, comparisons=(foreign,), differs=("cores 4 -> 2",)
        ),
        make_result(test="t.py::alike", verdict=Verdict.INCONCLUSIVE, comparisons=(alike,)),
    ]
    table = summary_table(results)
    column = table.headers.index("change\n% [95 % CI]")
    assert [row[column] for row in table.rows] == ["+20.0 [+10.0, +30.0]", "-"]
    of_another_length = make_result(verdict=Verdict.INCOMPATIBLE, comparisons=(loss,))
    assert "%" not in failure_text(of_another_length, accept="")
    assert "%" not in " ".join(remarks_on(of_another_length))


def test_tests_of_several_modules_keep_the_module_if_names_repeat() -> None:
    repeated = [make_result(test="p/test_a.py::test_x"), make_result(test="p/test_b.py::test_x")]
    assert [row[0] for row in summary_table(repeated).rows] == [f"test_{x}::test_x bucketed" for x in "ab"]
    distinct = [make_result(test="p/test_a.py::test_x"), make_result(test="p/test_b.py::test_y")]
    assert [row[0] for row in summary_table(distinct).rows] == ["test_x bucketed", "test_y bucketed"]


def test_a_note_is_shown_once_with_its_benchmarks() -> None:
    crowded = "4 ranks share 2 cores"
    results = [make_result(test=f"t.py::test_{name}", findings=(Finding(crowded),)) for name in "abcde"]
    slow = replace(results[1], findings=(Finding(crowded), Finding("launch 3 was slow")))
    assert remarks_on(results[0], slow) == (f"both benchmarks: {crowded}", "test_b bucketed: launch 3 was slow")
    assert remarks_on(*results[:2], make_result(test="t.py::test_x")) == (
        f"test_a bucketed, test_b bucketed: {crowded}",
    )
    assert remarks_on(*results) == (f"all 5 benchmarks: {crowded}",)
    assert remarks_on(*results, make_result(test="t.py::test_x")) == (f"5 of 6 benchmarks: {crowded}",)
    others = [make_result(test=f"t.py::test_x{number}") for number in range(6)]
    assert remarks_on(*results, *others) == (
        f"test_a bucketed, test_b bucketed, test_c bucketed and 2 more: {crowded}",
    )


def test_an_undecided_benchmark_names_the_launches_that_would_decide_it() -> None:
    step_time = make_comparison(
        "step_time", 0.0429, Verdict.INCONCLUSIVE, baseline=0.0418, change=0.026, note="30 launches would decide"
    )
    for bound, words in (
        (None, "inconclusive"),
        (0.352, "could be +35.2 % slower"),
        (11.0, "could be >+1000 % slower"),
    ):
        known = replace(step_time, bound=bound)
        assert remarks_on(make_result(comparisons=(known,), verdict=Verdict.INCONCLUSIVE)) == (
            f"undecided: test_step[bucketed]: step_time {words}: 30 launches would decide",
        )


STALE = ": the baseline is stale; renew it with --ddpperf-save if the improvement is intended"


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        *((verdict, True) for verdict in (Verdict.IMPROVED, Verdict.UNCHANGED, Verdict.OK)),
        *((verdict, False) for verdict in (Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.NEW)),
    ],
)
def test_renewing_a_stale_baseline_is_advised_only_if_the_result_may_be_stored(verdict: Verdict, *, told: bool) -> None:
    """An undecided one may hide a slowdown, and less beside something worse may be part of the same fault."""
    result = make_result(comparisons=(counted("flops", Verdict.IMPROVED),), verdict=verdict)
    assert any(note.endswith(f"improved: flops{STALE}") for note in remarks_on(result)) is told
    assert not any(STALE in note for note in remarks_on(result, accepting=True))


def test_of_many_metrics_with_the_same_note_three_are_named() -> None:
    lacking = tuple(make_comparison(metric, 2.0, Verdict.NEW, note="not in the baseline") for metric in "abcde")
    assert remarks_on(make_result(comparisons=lacking, verdict=Verdict.NEW)) == (
        "test_step[bucketed]: a, b, c and 2 more: not in the baseline",
    )


def test_a_verdict_that_no_row_has_is_not_explained() -> None:
    step = make_comparison("step_time", 0.04, Verdict.UNCHANGED, margin=0.05)
    assert "unchanged" not in summary_table([make_result(comparisons=(step,), verdict=Verdict.REGRESSED)]).legend
    legend = summary_table([make_result(comparisons=(step,), verdict=Verdict.UNCHANGED)]).legend
    assert legend["unchanged"] == "the run rules out a slowdown of 5 % or more"


def test_a_result_that_is_ok_by_stored_times_is_marked() -> None:
    """It has no bound, so that nothing is promised of slowdowns that are not gross."""
    step = make_comparison("step_time", 0.0405, Verdict.OK, baseline=0.04, change=0.0125, note="stored_times")
    paired = make_comparison("step_time", 0.0405, Verdict.OK, baseline=0.04, change=0.0125, bound=0.05, paired=True)
    alone = summary_table([make_result(comparisons=(step,), verdict=Verdict.OK)])
    assert alone.rows[0][-1] == "ok (stored times)"
    assert "ok" not in alone.legend
    assert alone.legend["stored times"] == (
        "not slower by more than the tolerance; stored times show only gross slowdowns"
    )
    both = summary_table(
        [
            make_result(test="t.py::test_a", comparisons=(step,), verdict=Verdict.OK),
            make_result(test="t.py::test_b", comparisons=(paired,), verdict=Verdict.OK),
        ]
    )
    assert [row[-1] for row in both.rows] == ["ok (stored times)", "ok"]
    assert "stored times" in both.legend
    assert both.legend["ok"] == "the run rules out a slowdown of --ddpperf-must-detect or more"
    memory = make_comparison("peak_resident", 463 * 2.0**20, Verdict.REGRESSED, baseline=412 * 2.0**20, change=0.124)
    assert summary_table([make_result(comparisons=(step, memory))]).rows[0][-1] == "regressed"


def test_a_value_or_a_change_without_a_telling_interval_is_noisy() -> None:
    """From 0.6 times to 1.9 times is more than a factor of three; two launches show no scatter, one has none."""
    known = {"baseline": 0.04, "change": 0.1, "change_interval": make_interval(-0.4, 0.9)}
    results = [
        make_result(
            test=f"t.py::test_{name}",
            verdict=Verdict.INCONCLUSIVE,
            comparisons=(make_comparison("step_time", 0.044, Verdict.INCONCLUSIVE, samples=samples, **known),),
        )
        for name, samples in (("two", (0.02, 0.068)), ("one", (0.044,)))
    ]
    table = summary_table(results)
    step, change = (table.headers.index(header) for header in ("step time\nms", "change\n% [95 % CI]"))
    assert [(row[step], row[change]) for row in table.rows] == [("44.0 noisy", "+10.0 noisy"), ("44.0", "+10.0 noisy")]


def test_any_benchmark_names_its_improved_metrics_and_an_undecided_one_its_undecided_metrics() -> None:
    note = "about 30 launches would decide it"
    step = make_comparison("step_time", 0.038, Verdict.INCONCLUSIVE, baseline=0.04, change=-0.05, note=note)
    less = make_comparison("peak_resident", 400 * 2.0**20, Verdict.IMPROVED, baseline=412 * 2.0**20, change=-0.03)
    ours = make_comparison("throughput", 100.0, Verdict.NEW, note="not in the other revision")
    calls = replace(make_comparison("collective_calls", 2.0, Verdict.IMPROVED, baseline=3.0), change=-1.0)
    calls = replace(calls, series=replace(calls.series, scale="exact"))
    beside = PairedRevision(revision="3f2a1c0 (main)", commit=None, launches=8)
    result = make_result(verdict=Verdict.IMPROVED, comparisons=(step, less, ours, calls), paired=beside)
    undecided = "undecided: test_step[bucketed]: step_time inconclusive: about 30 launches would decide it"
    named = [("test_step[bucketed]", result)]
    assert undecided_lines(named) == [], "the benchmark is green"
    assert undecided_lines(named, every=True) == [undecided]
    assert undecided_lines([("test_step[bucketed]", replace(result, verdict=Verdict.INCONCLUSIVE))]) == [undecided]
    assert remarks_on(result) == (
        "test_step[bucketed]: improved: collective_calls; peak_resident 412 MiB -> 400 MiB (-3.0 %)",
        "test_step[bucketed]: throughput: not in the other revision",
    )


def test_undecided_metrics_of_a_red_benchmark_are_only_in_its_failure() -> None:
    step = make_comparison("step_time", 0.043, Verdict.INCONCLUSIVE, baseline=0.042, note="30 launches would decide it")
    memory = make_comparison("peak_resident", 400 * 2.0**20, Verdict.REGRESSED, baseline=380 * 2.0**20, change=0.053)
    assert remarks_on(make_result(verdict=Verdict.REGRESSED, comparisons=(memory, step))) == ()


def test_an_improved_metric_is_reported_if_the_others_are_unchanged() -> None:
    faster = make_comparison("step_time", 0.032, Verdict.IMPROVED, baseline=0.04, change=-0.2)
    steady = make_comparison("peak_resident", 412 * 2.0**20, Verdict.UNCHANGED, baseline=412 * 2.0**20, change=0.0)
    assert remarks_on(make_result(verdict=Verdict.UNCHANGED, comparisons=(faster, steady))) == (
        f"test_step[bucketed]: improved: step_time 40.0 ms -> 32.0 ms (-20.0 %){STALE}",
    )


def test_a_row_of_a_batch_size_search_has_the_largest_size_its_memory_and_all_tried_sizes() -> None:
    """5 fit, and of 6 and 8, which do not, 6 is told. The second search ends at its limit; its memory has none."""
    fits = dict.fromkeys((1, 2, 4, 5), True) | dict.fromkeys((6, 8), False)
    search = Search(
        test="p/t.py::test_size[a]",
        training="ddp precision=bf16",
        world_size=2,
        environment_key="cpu",
        limit=8,
        memory_limit=64 * 2**20,
        size=5,
        peak=48.0 * 2**20,
        tried=tuple(Trial(size, fits[size], 1.0) for size in (1, 2, 4, 8, 6, 5)),
    )
    unlimited = replace(search, memory_limit=None, size=8, peak=None, tried=(Trial(8, fits=True, peak=None),))
    table = dict(summary_parts(Outputs(searches=[search, unlimited])))["ddpperf batch sizes"]
    assert table.splitlines()[1:] == [
        "search                           ranks  fits   does not  peak    of  tried",
        "                                                          MiB   MiB",
        "-------------------------------  -----  ----  ---------  ----  ----  ----------------",
        "test_size[a] ddp precision=bf16      2     5          6  48.0  64.0  1, 2, 4, 8, 6, 5",
        "test_size[a] ddp precision=bf16      2     8  the limit     -     -  8",
    ]
