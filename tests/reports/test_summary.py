"""What a run ends with on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_ddpperf.records.batch_size import BatchSize, Search, Trial
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import SlowImport
from pytest_ddpperf.records.measurement import Interval, Plan
from pytest_ddpperf.records.results import BaselineRecord, Comparison, PairedRevision, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.outputs import Outputs, Stored
from pytest_ddpperf.reports.summary import summary_parts, summary_table
from pytest_ddpperf.reports.table import Table, render
from tests.factories import failure_text, make_environment
from tests.reports.conftest import comparison, notes_of

BOUND = (
    "the step is slower by no more than this, one-sided, with 95 % confidence; long steps are seen that come at least "
    "in every 60th step"
)
MEMORY = "peak resident memory above the level before the model was built, program files left out"
SAVE = "--ddpperf-save stores one that is"
Make = Callable[..., Result]
Compare = Callable[..., Comparison]


COUNTS = Counts(totals={"flops": 2.0}, details={}, unstable={})


def counted(metric: str, verdict: Verdict) -> Comparison:
    made = comparison(metric, 2.0, verdict, baseline=2.0)
    return replace(made, series=replace(made.series, scale="exact"))


def above(table: Table) -> tuple[str, ...]:
    return notes_of(replace(table, notes=table.above))


def test_a_row_says_what_was_measured_and_how_it_changed(make_result: Make, make_comparison: Compare) -> None:
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
    assert table.legend == {"memory": MEMORY, "change": "of the step time, from the stored baseline", "at most": BOUND}


def test_a_column_has_one_unit(make_result: Make, make_comparison: Compare) -> None:
    results = [
        make_result(comparisons=(make_comparison("step_time", value, Verdict.UNCHANGED),), verdict=Verdict.UNCHANGED)
        for value in (0.0004, 0.040, 1.5)
    ]
    table = summary_table(results)
    column = table.headers.index("step time\nms")
    assert [row[column] for row in table.rows] == ["0.400", "40.0", "1500"]


def test_columns_that_nothing_fills_are_left_out(make_result: Make, make_comparison: Compare) -> None:
    assert summary_table([make_result()]).headers == (
        "benchmark",
        "step time\nms [95 % CI]",
        "change\n% [95 % CI]",
        "verdict",
    )
    new = make_result(comparisons=(make_comparison("step_time", 0.04, Verdict.NEW),), verdict=Verdict.NEW)
    assert summary_table([new]).headers == ("benchmark", "step time\nms", "verdict")


@pytest.mark.parametrize(("change", "shown"), [(0.01, "change"), (None, "step time")])
def test_a_narrow_table_keeps_changes_with_their_intervals_and_step_times_of_rows_without_one(
    make_result: Make, make_comparison: Compare, change: float | None, shown: str
) -> None:
    step = make_comparison("step_time", 0.04, Verdict.OK, change=change, bound=0.03)
    results = [make_result(), make_result(comparisons=(step, counted("flops", Verdict.UNCHANGED)), verdict=Verdict.OK)]
    header, units, *_ = render(summary_table(results), 76).split("\n\n")[1].splitlines()[1:]
    assert (shown == "step time") is ("step time" in header)
    assert (shown == "change") is ("% [95 % CI]" in units)
    assert "change" in header


def test_a_row_says_what_became_of_the_counts_that_are_compared(make_result: Make) -> None:
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


def test_a_time_without_a_baseline_and_counts_with_one_are_both_told(
    make_result: Make, make_comparison: Compare
) -> None:
    time, foreign = (make_comparison("step_time", 0.04, verdict) for verdict in (Verdict.NEW, Verdict.INCOMPATIBLE))
    same = counted("flops", Verdict.UNCHANGED)
    table = summary_table(
        [
            make_result(test="t.py::new", verdict=Verdict.NEW, comparisons=(time, same), baseline=None),
            make_result(
                test="t.py::foreign",
                verdict=Verdict.INCOMPATIBLE,
                comparisons=(foreign, same),
                differs=("cores 4 -> 2",),
            ),
        ]
    )
    assert [row[-2:] for row in table.rows] == [("1 same", "incompatible"), ("1 same", "new, counts same")]
    assert notes_of(table) == (
        f"foreign bucketed: times of the baseline are not comparable: cores 4 -> 2; counts same; {SAVE}",
        "new bucketed: no baseline of times, counts same; --ddpperf-save stores one",
    )


def test_a_time_that_cannot_be_compared_shows_no_change(make_result: Make, make_comparison: Compare) -> None:
    """Its baseline is of another machine, so the change is that of the machines; the failure has none either."""
    interval = Interval(low=0.1, high=0.3, confidence=0.95)
    known = {"baseline": 0.04, "change": 0.2, "change_interval": interval}
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
    assert "%" not in " ".join(notes_of(summary_table([of_another_length])))


def test_scaling_points_show_their_efficiency(make_result: Make, make_comparison: Compare) -> None:
    step_time = make_comparison("step_time", 0.04, Verdict.UNCHANGED)
    efficiency = make_comparison("scaling_efficiency", 0.874, Verdict.UNCHANGED)
    measured = {"name": "weak", "mode": "weak", "strategy": "ddp"}
    table = summary_table(
        [
            make_result(
                verdict=Verdict.UNCHANGED, comparisons=(step_time,), measured={**measured, "strategy": "single"}
            ),
            make_result(verdict=Verdict.UNCHANGED, comparisons=(step_time, efficiency), measured=measured),
        ]
    )
    column = table.headers.index("eff.")
    assert [(row[0], row[column]) for row in table.rows] == [
        ("test_step[bucketed] weak single", "-"),
        ("test_step[bucketed] weak ddp", "0.874"),
    ]


def test_tests_of_several_modules_keep_the_module_where_names_repeat(make_result: Make) -> None:
    repeated = [make_result(test="p/test_a.py::test_x"), make_result(test="p/test_b.py::test_x")]
    assert [row[0] for row in summary_table(repeated).rows] == [f"test_{x}::test_x bucketed" for x in "ab"]
    distinct = [make_result(test="p/test_a.py::test_x"), make_result(test="p/test_b.py::test_y")]
    assert [row[0] for row in summary_table(distinct).rows] == ["test_x bucketed", "test_y bucketed"]


def test_a_remark_is_made_once(make_result: Make) -> None:
    crowded = "4 ranks share 2 cores"
    results = [
        make_result(test="t.py::test_a", findings=(Finding(crowded),)),
        make_result(test="t.py::test_b", findings=(Finding(crowded), Finding("launch 3 was slow"))),
    ]
    assert notes_of(summary_table(results)) == (f"both benchmarks: {crowded}", "test_b bucketed: launch 3 was slow")


def test_whom_a_remark_concerns_is_named(make_result: Make) -> None:
    crowded = "4 ranks share 2 cores"
    results = [make_result(test=f"t.py::test_{name}", findings=(Finding(crowded),)) for name in "abcde"]
    assert notes_of(summary_table([*results[:2], make_result(test="t.py::test_x")])) == (
        f"test_a bucketed, test_b bucketed: {crowded}",
    )
    assert notes_of(summary_table(results)) == (f"all 5 benchmarks: {crowded}",)
    assert notes_of(summary_table([*results, make_result(test="t.py::test_x")])) == (f"5 of 6 benchmarks: {crowded}",)
    others = [make_result(test=f"t.py::test_x{number}") for number in range(6)]
    assert notes_of(summary_table([*results, *others])) == (f"test_a bucketed, test_b bucketed and 3 more: {crowded}",)


def test_launches_that_hardly_measure_are_told_once_for_all_benchmarks(make_result: Make) -> None:
    facts = {"starting": 8.0, "working": 2.0, "launches": 2, "setting": "max_time"}
    slowest = SlowImport(module="vendor", seconds=3.0, reason="starts a thread")
    results = [
        make_result(test=f"t.py::test_{name}", findings=(Finding("slow_starts", {**facts, "slowest": one}),))
        for name, one in (("a", None), ("b", slowest))
    ]
    (note,) = notes_of(summary_table(results))
    assert note == (
        "both benchmarks: 4 launches spent 16.0 s on starting and 4.00 s on steps, each 3.00 s on the import of "
        "vendor, which is not preloaded because it starts a thread: raise max_time"
    )


def test_several_remarks_on_one_benchmark_have_a_line_each(make_result: Make) -> None:
    result = make_result(test="t.py::test_a", findings=(Finding("launch 3 was slow"), Finding("loud neighbours")))
    assert notes_of(summary_table([result])) == (
        "test_a bucketed: launch 3 was slow",
        "test_a bucketed: loud neighbours",
    )


def test_a_verdict_that_the_row_does_not_show_is_explained(make_result: Make, make_comparison: Compare) -> None:
    calm = make_comparison("step_time", 0.04, Verdict.UNCHANGED, baseline=0.04, change=0.0)
    memory = make_comparison("peak_resident", 463 * 2.0**20, Verdict.REGRESSED, baseline=412 * 2.0**20, change=0.124)
    assert above(summary_table([make_result(comparisons=(calm, memory))])) == (
        "regressed test_step[bucketed]: peak_resident 412 MiB -> 463 MiB (+12.4 %)",
        "what to do: each failed test tells the cause, and the command that accepts what is meant",
    )
    worse = (*make_result().comparisons, memory, make_comparison("final_loss", 1.2, Verdict.REGRESSED, baseline=1.0))
    assert above(summary_table([make_result(comparisons=worse)]))[0] == (
        "regressed test_step[bucketed]: step_time 41.8 ms -> 47.3 ms (+13.2 %); "
        "peak_resident 412 MiB -> 463 MiB (+12.4 %); final_loss 1.00 -> 1.20"
    )


def test_a_slowdown_that_both_sides_share_is_told_in_place_of_their_change(
    make_result: Make, make_comparison: Compare
) -> None:
    step = make_comparison("step_time", 0.0421, Verdict.REGRESSED, baseline=0.042, change=0.002, worse_in=3)
    step = replace(step, note=Finding("not_the_code", {"change": 0.82}))
    first, *_ = above(summary_table([make_result(comparisons=(step,))]))
    assert first == (
        "regressed test_step[bucketed]: step_time not this repository's code: the commit of the baseline takes as long "
        "now, +82.0 % compared with the stored times; packages, data or the machine have changed: "
        "--ddpperf-against-python compares packages"
    )


def test_what_could_not_be_decided_says_what_it_takes(make_result: Make, make_comparison: Compare) -> None:
    step_time = make_comparison(
        "step_time", 0.0429, Verdict.INCONCLUSIVE, baseline=0.0418, change=0.026, note="30 launches would decide"
    )
    for bound, words in (
        (None, "inconclusive"),
        (0.352, "could be +35.2 % slower"),
        (11.0, "could be >+1000 % slower"),
    ):
        known = replace(step_time, bound=bound)
        table = summary_table([make_result(comparisons=(known,), verdict=Verdict.INCONCLUSIVE)])
        assert notes_of(table) == (f"test_step[bucketed]: step_time {words}: 30 launches would decide",)


def test_what_could_not_be_decided_of_several_benchmarks_is_told_once(
    make_result: Make, make_comparison: Compare
) -> None:
    def undecided(test: str, launches: int, bound: float) -> Result:
        note = Finding("launches_needed", {"launches": launches, "max_time": None, "known": None})
        step = replace(make_comparison("step_time", 0.04, Verdict.INCONCLUSIVE, bound=bound), note=note)
        return make_result(test=f"t.py::test_{test}", comparisons=(step,), verdict=Verdict.INCONCLUSIVE)

    assert notes_of(summary_table([undecided("a", 30, 0.352), undecided("b", 20, 0.12)])) == (
        "both benchmarks: step_time could be +12.0 % to +35.2 % slower: about 20 to 30 launches would decide it",
    )


def test_a_row_says_how_much_slower_it_may_be_at_most(make_result: Make, make_comparison: Compare) -> None:
    step = make_comparison("step_time", 0.04, Verdict.OK, baseline=0.04, change=0.01, bound=0.049)
    table = summary_table([make_result(comparisons=(step,), verdict=Verdict.OK)])
    assert (table.rows[0][table.headers.index("at most\n%")], table.rows[0][-1]) == ("+4.9", "ok")
    assert table.legend["ok"] == "slower by no more than the resolution (--ddpperf-must-detect)"


def test_what_is_only_counted_alternates_with_nothing(make_result: Make, make_comparison: Compare) -> None:
    flops = make_comparison("flops", 10.0, Verdict.UNCHANGED)
    counted = make_result(
        comparisons=(flops,),
        verdict=Verdict.UNCHANGED,
        paired=PairedRevision(revision="3f2a1c0 (main)", commit=None),
        measured={"over": "naive", "launches": ()},
    )
    assert summary_table([counted]).legend == {"compared": "with revision 3f2a1c0 (main)"}
    told = summary_table([counted], here="8be01d2+changes").legend
    assert told == {"compared": "with revision 3f2a1c0 (main), this being 8be01d2+changes"}


def test_new_stale_and_foreign_baselines_are_noted(make_result: Make, make_comparison: Compare) -> None:
    fast = make_comparison(
        "step_time",
        0.03,
        Verdict.IMPROVED,
        change=-0.25,
        change_interval=Interval(low=-0.26, high=-0.24, confidence=0.95),
    )
    baseline = make_result().baseline
    assert isinstance(baseline, BaselineRecord)
    foreign = replace(baseline, environment=replace(baseline.environment, world_size=4))
    table = summary_table(
        [
            make_result(test="t.py::new", verdict=Verdict.NEW, baseline=None),
            make_result(test="t.py::fast", verdict=Verdict.IMPROVED, comparisons=(fast,)),
            make_result(
                test="t.py::foreign", verdict=Verdict.INCOMPATIBLE, baseline=foreign, differs=("world size 4 -> 2",)
            ),
        ]
    )
    notes = notes_of(table)
    assert notes[0] == f"foreign bucketed: the baseline is not comparable: world size 4 -> 2; {SAVE}"
    assert notes[1] == "new bucketed: no baseline; --ddpperf-save stores one"
    assert "the baseline is stale" in notes[2]


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        *((verdict, True) for verdict in (Verdict.IMPROVED, Verdict.UNCHANGED, Verdict.OK)),
        *((verdict, False) for verdict in (Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.NEW)),
    ],
)
def test_a_baseline_with_more_counts_is_to_be_renewed_where_it_may_be_stored(
    make_result: Make, verdict: Verdict, *, told: bool
) -> None:
    """An undecided one may hide a slowdown, and less beside something worse may be part of the same fault."""
    facts = {"metric": "flops", "then": COUNTS, "now": replace(COUNTS, totals={"flops": 1.0}), "paired": False}
    fewer = Finding("fewer_counted", facts)
    baseline = {} if verdict is not Verdict.NEW else {"baseline": None}
    flops = counted("flops", Verdict.IMPROVED)
    result = make_result(comparisons=(flops,), verdict=verdict, findings=(fewer,), **baseline)
    advice = "the baseline has more counts: if less is meant, --ddpperf-save renews it"
    assert any(advice in note for note in notes_of(summary_table([result]))) is told
    assert not any(advice in note for note in notes_of(summary_table([result], accepting=True)))


def test_what_an_old_baseline_lacks_is_noted_once(make_result: Make, make_comparison: Compare) -> None:
    lacking = tuple(
        make_comparison(metric, 2.0, Verdict.NEW, note="the baseline has no counts")
        for metric in ("flops", "operators")
    )
    table = summary_table([make_result(comparisons=lacking, verdict=Verdict.NEW)])
    assert notes_of(table) == ("test_step[bucketed]: flops, operators: the baseline has no counts",)


def test_of_many_metrics_with_one_remark_three_are_named(make_result: Make, make_comparison: Compare) -> None:
    lacking = tuple(make_comparison(metric, 2.0, Verdict.NEW, note="not in the baseline") for metric in "abcde")
    table = summary_table([make_result(comparisons=lacking, verdict=Verdict.NEW)])
    assert notes_of(table) == ("test_step[bucketed]: a, b, c and 2 more: not in the baseline",)


def test_a_broken_benchmark_has_a_row_and_a_reason(make_result: Make) -> None:
    broken = make_result(
        verdict=Verdict.BROKEN,
        comparisons=(),
        baseline=None,
        findings=(Finding("broken", {"reason": "rank 1 was killed"}),),
        measured={"launches": (), "plan": Plan(warmup=0, steps=0)},
    )
    table = summary_table([make_result(), broken])
    assert table.rows[1] == ("test_step[bucketed] bucketed", "-", "-", "broken")
    assert above(table)[0] == "broken test_step[bucketed] bucketed: rank 1 was killed"


def test_no_results_make_an_empty_table() -> None:
    table = summary_table([])
    assert (table.rows, table.notes, table.title) == ((), (), "")


def test_beside_another_revision_no_baseline_is_spoken_of(make_result: Make, make_comparison: Compare) -> None:
    fast = make_comparison("step_time", 0.03, Verdict.IMPROVED, baseline=0.04, change=-0.25)
    beside = {"paired": PairedRevision(revision="3f2a1c0 (main)", commit=None, launches=8)}
    new = make_result(
        verdict=Verdict.NEW, findings=(Finding("revision 3f2a1c0 (main) cannot run it: it raised"),), **beside
    )
    table = summary_table([make_result(verdict=Verdict.IMPROVED, comparisons=(fast,), **beside), new])
    assert table.legend["change"] == "of the step time, from revision 3f2a1c0 (main), measured side by side"
    assert notes_of(table) == ("test_step[bucketed] bucketed: revision 3f2a1c0 (main) cannot run it: it raised",)
    told = summary_table([new], here="8be01d2+changes").legend["change"]
    assert told == "of the step time, from revision 3f2a1c0 (main) to 8be01d2+changes, measured side by side"


def test_a_verdict_that_no_row_has_is_not_explained(make_result: Make, make_comparison: Compare) -> None:
    step = make_comparison("step_time", 0.04, Verdict.UNCHANGED, margin=0.05)
    assert "unchanged" not in summary_table([make_result(comparisons=(step,), verdict=Verdict.REGRESSED)]).legend
    legend = summary_table([make_result(comparisons=(step,), verdict=Verdict.UNCHANGED)]).legend
    assert legend["unchanged"] == "shown to be slower by less than 5 %"


def test_the_header_says_what_the_change_is_from(make_result: Make, make_comparison: Compare) -> None:
    """What has no change, such as what is new or broken, is not spoken of."""
    commit = PairedRevision(revision="3f2a1c0", commit=None, launches=8)
    paired = make_result(test="t.py::test_a", reference=StoredBaseline(record=None, origin="", pair=commit))
    new = make_result(
        test="t.py::test_b",
        verdict=Verdict.NEW,
        baseline=None,
        comparisons=(make_comparison("step_time", 0.04, Verdict.NEW),),
    )
    assert summary_table([paired, new]).legend["change"] == (
        "of the step time, from the commit of the baseline, measured side by side"
    )
    assert summary_table([make_result(), paired]).legend["change"] == (
        "of the step time, from the stored baseline; of some from its commit, measured side by side"
    )
    assert summary_table([make_result(), new]).legend["change"] == "of the step time, from the stored baseline"


def unpaired(make_result: Make, test: str, reason: str, **fields: object) -> Result:
    """A benchmark that is compared with stored times alone."""
    return make_result(test=f"t.py::{test}", findings=(Finding("unpaired", {"reason": reason}),), **fields)


def test_why_only_gross_slowdowns_can_fail_stands_first_and_each_reason_once(make_result: Make) -> None:
    shallow, gone = "3f2a1c0 is not in this clone: fetch-depth: 0", "3f2a1c0 is gone after a squash: save again"
    results = [
        unpaired(make_result, "test_a", shallow, verdict=Verdict.REGRESSED),
        unpaired(make_result, "test_b", gone, verdict=Verdict.OK),
        unpaired(make_result, "test_c", shallow, verdict=Verdict.OK),
    ]
    table = summary_table(results)
    assert above(table)[:2] == tuple(f"times: only gross slowdowns can fail ({each})" for each in (shallow, gone))
    assert above(table)[2].startswith("regressed test_a bucketed: step_time")
    assert not any("gross" in note for note in notes_of(table))
    text = render(table, 100)
    assert text.startswith("times: only gross slowdowns can fail")
    assert text.count("can fail") == 2


def test_what_is_ok_by_stored_times_is_told_apart(make_result: Make, make_comparison: Compare) -> None:
    """It has no bound, so that nothing is promised of slowdowns that are not gross."""
    step = make_comparison("step_time", 0.0405, Verdict.OK, baseline=0.04, change=0.0125, note="stored_times")
    paired = make_comparison("step_time", 0.0405, Verdict.OK, baseline=0.04, change=0.0125, bound=0.05, paired=True)
    alone = summary_table([make_result(comparisons=(step,), verdict=Verdict.OK)])
    assert alone.rows[0][-1] == "ok (stored times)"
    assert "ok" not in alone.legend
    assert alone.legend["stored times"] == (
        "not slower by more than the tolerance, of times that show gross slowdowns alone"
    )
    both = summary_table(
        [
            make_result(test="t.py::test_a", comparisons=(step,), verdict=Verdict.OK),
            make_result(test="t.py::test_b", comparisons=(paired,), verdict=Verdict.OK),
        ]
    )
    assert [row[-1] for row in both.rows] == ["ok (stored times)", "ok"]
    assert {"ok", "stored times"} <= both.legend.keys()
    memory = make_comparison("peak_resident", 463 * 2.0**20, Verdict.REGRESSED, baseline=412 * 2.0**20, change=0.124)
    assert summary_table([make_result(comparisons=(step, memory))]).rows[0][-1] == "regressed"


def test_a_value_or_a_change_without_a_telling_interval_is_noisy(make_result: Make, make_comparison: Compare) -> None:
    """From 0.6 times to 1.9 times is more than a factor of three; two launches show no scatter, one has none."""
    wide = Interval(low=-0.4, high=0.9, confidence=0.95)
    known = {"baseline": 0.04, "change": 0.1, "change_interval": wide}
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


def test_beside_another_revision_what_improved_and_what_is_undecided_is_told(
    make_result: Make, make_comparison: Compare
) -> None:
    note = "about 30 launches would decide it"
    step = make_comparison("step_time", 0.038, Verdict.INCONCLUSIVE, baseline=0.04, change=-0.05, note=note)
    less = make_comparison("peak_resident", 400 * 2.0**20, Verdict.IMPROVED, baseline=412 * 2.0**20, change=-0.03)
    ours = make_comparison("throughput", 100.0, Verdict.NEW, note="not in the other revision")
    calls = replace(make_comparison("collective_calls", 2.0, Verdict.IMPROVED, baseline=3.0), change=-1.0)
    calls = replace(calls, series=replace(calls.series, scale="exact"))
    beside = {"paired": PairedRevision(revision="3f2a1c0 (main)", commit=None, launches=8)}
    table = summary_table([make_result(verdict=Verdict.IMPROVED, comparisons=(step, less, ours, calls), **beside)])
    assert notes_of(table) == (
        "test_step[bucketed]: improved: collective_calls; peak_resident 412 MiB -> 400 MiB (-3.0 %)",
        "test_step[bucketed]: step_time inconclusive: about 30 launches would decide it",
        "test_step[bucketed]: throughput: not in the other revision",
    )


def test_why_a_metric_is_undecided_is_told_beside_a_red_one(make_result: Make, make_comparison: Compare) -> None:
    step = make_comparison(
        "step_time", 0.043, Verdict.INCONCLUSIVE, baseline=0.042, note="about 30 launches would decide it"
    )
    memory = make_comparison("peak_resident", 400 * 2.0**20, Verdict.REGRESSED, baseline=380 * 2.0**20, change=0.053)
    red = make_result(verdict=Verdict.REGRESSED, comparisons=(memory, step))
    assert "test_step[bucketed]: step_time inconclusive: about 30 launches would decide it" in notes_of(
        summary_table([red])
    )


def test_what_looks_better_than_another_revision_is_told(make_result: Make, make_comparison: Compare) -> None:
    note = "looks better, though not for certain"
    faster = make_comparison("step_time", 0.038, Verdict.UNCHANGED, baseline=0.04, change=-0.05, note=note)
    same = make_comparison("peak_resident", 1e8, Verdict.UNCHANGED, baseline=1e8, change=0.0)
    beside = {"paired": PairedRevision(revision="3f2a1c0 (main)", commit=None, launches=8)}
    table = summary_table([make_result(verdict=Verdict.UNCHANGED, comparisons=(faster, same), **beside)])
    assert notes_of(table) == (
        "test_step[bucketed]: step_time 40.0 ms -> 38.0 ms (-5.0 %) looks better, though not for certain",
    )


def test_what_got_better_is_told_where_the_rest_stayed(make_result: Make, make_comparison: Compare) -> None:
    faster = make_comparison("step_time", 0.032, Verdict.IMPROVED, baseline=0.04, change=-0.2)
    steady = make_comparison("peak_resident", 412 * 2.0**20, Verdict.UNCHANGED, baseline=412 * 2.0**20, change=0.0)
    stale = "step_time 40.0 ms -> 32.0 ms (-20.0 %): the baseline is stale, --ddpperf-save renews it"
    table = summary_table([make_result(verdict=Verdict.UNCHANGED, comparisons=(faster, steady))])
    assert notes_of(table) == (f"test_step[bucketed]: {stale}",)
    # To save would store what has regressed.
    regressed = summary_table([make_result(verdict=Verdict.REGRESSED, comparisons=(faster, steady))])
    assert not any("stale" in note for note in notes_of(regressed))


def test_nothing_is_to_be_saved_beside_a_metric_that_is_undecided_and_worse(
    make_result: Make, make_comparison: Compare
) -> None:
    memory = make_comparison("peak_resident", 3e8, Verdict.IMPROVED, baseline=4e8, change=-0.25)
    for change, stale in ((0.05, False), (-0.05, True)):
        step = make_comparison("step_time", 0.04 * (1 + change), Verdict.INCONCLUSIVE, baseline=0.04, change=change)
        table = summary_table([make_result(verdict=Verdict.INCONCLUSIVE, comparisons=(step, memory))])
        assert any("stale" in note for note in notes_of(table)) is stale


def test_a_run_without_benchmarks_tells_nothing() -> None:
    assert summary_parts(Outputs()) == []


def test_each_part_that_has_anything_to_say_has_a_title(make_result: Make) -> None:
    told = Outputs(
        results=[make_result()],
        complaints=["no commit is known"],
        stored=Stored(failed={"t.py::test_a"}),
        recorded="this run is number 3 of h.sqlite",
    )
    parts = dict(summary_parts(replace(told, added=[("of a hook", "42")]), 80, verbosity=-2))

    assert list(parts) == [
        *("ddpperf", "ddpperf errors", "ddpperf baselines", "ddpperf history", "of a hook", "ddpperf session")
    ]
    assert parts["ddpperf session"] == "1 benchmark: 1 regressed"
    assert "test_step[bucketed]" in parts["ddpperf"]
    assert parts["ddpperf errors"] == "no commit is known"
    assert parts["ddpperf baselines"].strip() == "failed, so not stored: test_a"
    assert parts["ddpperf history"] == "this run is number 3 of h.sqlite"


def test_what_tells_only_why_is_left_out_of_a_brief_summary(make_result: Make) -> None:
    told = Outputs(results=[make_result()])
    brief, full = (dict(summary_parts(told, verbosity=verbosity)) for verbosity in (-2, -1))

    assert set(brief) <= set(full)
    assert "ddpperf phases" not in brief


MIB = 2**20
CPU = make_environment(cpu_model="AMD EPYC", cores=2)


def search(found: BatchSize, memory_limit: int | None = 64 * MIB) -> Search:
    return Search(
        test="p/t.py::test_size[a]",
        training="ddp precision=bf16",
        environment=CPU,
        limit=8,
        memory_limit=memory_limit,
        found=found,
    )


def batch_sizes(*searches: Search) -> str:
    return dict(summary_parts(Outputs(searches=[*searches])))["ddpperf batch sizes"]


def test_a_row_says_what_fits_what_it_takes_and_what_was_tried() -> None:
    """5 fit, and of 6 and 8, which do not, 6 is told."""
    fits = dict.fromkeys((1, 2, 4, 5), True) | dict.fromkeys((6, 8), False)
    tried = tuple(Trial(size, fits[size], 1.0) for size in (1, 2, 4, 8, 6, 5))
    table = batch_sizes(search(BatchSize(size=5, peak=48.0 * MIB, tried=tried)))
    assert table.splitlines()[1:] == [
        "search                           ranks  fits  does not  peak    of  tried",
        "                                                         MiB   MiB",
        "-------------------------------  -----  ----  --------  ----  ----  ----------------",
        "test_size[a] ddp precision=bf16      2     5         6  48.0  64.0  1, 2, 4, 8, 6, 5",
    ]


def test_a_search_for_the_largest_batch_may_end_at_its_limit() -> None:
    tried = tuple(Trial(size, fits=True, peak=None) for size in (4, 8))
    line = batch_sizes(search(BatchSize(size=8, peak=None, tried=tried)))
    assert line.split()[-9:] == ["2", "8", "the", "limit", "-", "64.0", "4,", "8"] or line.endswith("64.0  4, 8")


def test_without_a_memory_limit_the_peak_stands_alone() -> None:
    tried = (Trial(8, fits=True, peak=48.0 * MIB),)
    line = batch_sizes(search(BatchSize(size=8, peak=48.0 * MIB, tried=tried), memory_limit=None))
    assert line.endswith("48.0    -  8")


def test_only_a_regression_that_was_stored_is_called_accepted(make_result: Callable[..., Result]) -> None:
    results = [replace(make_result(test=f"t.py::test_{x}"), verdict=Verdict.REGRESSED) for x in "ab"]
    table = summary_table(results, accepting=True, unstored={"t.py::test_b"})
    column = table.headers.index("verdict")
    assert [row[column] for row in table.rows] == ["regressed (accepted)", "regressed"]
