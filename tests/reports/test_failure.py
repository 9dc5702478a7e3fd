from __future__ import annotations

import shlex
from dataclasses import replace
from itertools import takewhile
from typing import Any

import pytest

from pytest_ddpperf.errors import RankFailed
from pytest_ddpperf.judge.decision import failing_verdict
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import LongSteps
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.results import Comparison, PairedRevision, Provenance, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.causes import parts_text, reason_text
from pytest_ddpperf.reports.failure import error_text, failures_text
from pytest_ddpperf.reports.findings import finding_text
from pytest_ddpperf.reports.remarks import cause_in_words
from tests.factories import failure_text, make_interval
from tests.reports import failing
from tests.reports.made import BASELINE, REGRESSED, make_comparison, make_result

ACCEPT = 'pytest "perf_tests/test_strategies.py::test_step[bucketed]" --ddpperf-save'
MORE = "More       -v, --ddpperf-report=html:FILE"
MIB = 2.0**20


def fails(*comparisons: Comparison, accept: str = "", width: int = 80, **fields: Any) -> str:
    """The failure of a benchmark with these metrics."""
    return failure_text(make_result(comparisons=comparisons, **fields), accept=accept, width=width)


def counted(metric: str, base: float, value: float, note: str, **fields: bool) -> Comparison:
    verdict = Verdict.REGRESSED if value > base else Verdict.IMPROVED
    made = make_comparison(metric, value, verdict, baseline=base, change=value - base, note=note, **fields)
    return replace(made, series=replace(made.series, scale="exact"))


def rows_of(text: str) -> dict[str, list[str]]:
    """The cells of the table by metric, without its header."""
    lines = text.splitlines()
    (start,) = [number for number, line in enumerate(lines) if line.split()[:2] in (["reference", "now"], ["now"])]
    rows = [line.split("  ") for line in lines[start + 1 :]]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    return {name: values for name, *values in cells[: cells.index([])]}


def paragraph(text: str, label: str) -> str:
    """What stands behind a label, in one line."""
    first, *others = text.partition(f"\n{label:<11}")[2].splitlines() or [""]
    return " ".join([first, *(line.strip() for line in takewhile(lambda line: line.startswith(" " * 11), others))])


# The whole.


@pytest.mark.parametrize("kind", failing.FAILURES)
@pytest.mark.parametrize("width", [60, 67, 80, 100, 137, 200])
def test_no_line_but_a_command_is_wider_than_the_terminal_and_a_failure_is_one_screen(kind: str, width: int) -> None:
    text = failing.FAILURES[kind](width)
    own = text.replace(failing.STACKS_OF.get(kind, "\0"), "")
    lines = [line for line in own.splitlines() if not line.startswith("  --ddpperf-allow=")]
    assert [line for line in lines if len(line) > width] == []
    assert len(own.splitlines()) <= 19  # and the line of the test
    assert len(text.splitlines()) <= len(failing.FAILURES[kind](width, verbose=True).splitlines())


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_command_in_several_lines_is_one_for_the_shell(width: int) -> None:
    accept = f"{ACCEPT[:-15]} --ddpperf-world-size=2 --ddpperf-tolerance=900% --ddpperf-max-time=20 --ddpperf-save"
    text = failure_text(make_result(), accept=accept, width=width)
    command = text.partition("Intended?")[2].partition("More ")[0].replace("\\\n", "")
    assert shlex.split(command) == shlex.split(accept)


def test_many_counts_do_not_push_out_the_time() -> None:
    """Of 9 counts and a time, all red, 7 have a row below four lines of causes."""
    result = make_result(comparisons=(*[counted(f"count_{number}", 1, 2, "") for number in range(9)], REGRESSED))
    text = failure_text(result, accept="pytest --ddpperf-save", width=100)
    assert list(rows_of(text)) == [*(f"count_{number}" for number in range(6)), "step_time", "3 more: -v"]
    whole = failure_text(result, verbose=True)
    assert list(rows_of(whole)) == [*(f"count_{number}" for number in range(9)), "step_time"]


def test_option_v_shows_notes_and_all_metrics() -> None:
    result = make_result(findings=(Finding("slow disk"),))
    text, whole = (failure_text(result, accept=ACCEPT, width=120, verbose=verbose) for verbose in (False, True))
    assert "slow disk" not in text
    assert paragraph(whole, "Note") == "slow disk"
    assert rows_of(whole)["step_time"] == ["41.8 ms", "47.3 ms", "+13.2 %", "+11.9 .. +14.6", "+3 %", "FAIL"]
    assert paragraph(whole, "More") == "--ddpperf-report=html:FILE"


def test_certain_regressions_come_before_undecided_metrics() -> None:
    open_step = make_comparison("step_time", 0.04, Verdict.INCONCLUSIVE, baseline=0.04, change=0.0)
    broken = make_result(verdict=Verdict.BROKEN, findings=(Finding("broken", {"reason": "killed"}),))
    undecided = make_result(verdict=Verdict.INCONCLUSIVE, comparisons=(open_step,))
    text = failures_text([(undecided, Verdict.INCONCLUSIVE), (broken, Verdict.BROKEN)], accept="")
    assert text.startswith("bucketed: BROKEN")
    result = make_result(comparisons=(open_step, make_comparison("final_loss", 2.7, Verdict.REGRESSED, baseline=2.2)))
    text = failure_text(result, failing={Verdict.INCONCLUSIVE, Verdict.REGRESSED})
    assert list(rows_of(text)) == ["final_loss", "step_time"]
    assert all(cells[-1] == "FAIL" for cells in rows_of(text).values())
    assert rows_of(failure_text(result))["step_time"][-1] == "inconclusive"


# The title.


def test_a_baseline_of_uncommitted_code_and_counts_of_another_day_are_marked() -> None:
    changed = replace(BASELINE, dirty=True)
    assert "baseline 3f2a1c0+changes of 2026-01-12," in failure_text(make_result(baseline=changed), accept=ACCEPT)
    renewed = replace(BASELINE, counted=Provenance(date="2026-02-01", commit="9c1e2aa" + "0" * 33, dirty=True))
    text = " ".join(failure_text(make_result(baseline=renewed), accept=ACCEPT).split())
    assert "of 2026-01-12 (counts of 2026-02-01, 9c1e2aa+changes), 2 ranks" in text


def test_the_title_distinguishes_a_scaling_point_and_a_named_variant() -> None:
    weak = make_result(measured={"name": "weak", "mode": "weak", "strategy": "ddp"})
    assert failure_text(weak, accept=ACCEPT).startswith("ddp, weak scaling: REGRESSED compared with")
    named = make_result(measured={"name": "big batch", "strategy": "ddp"})
    assert failure_text(named, accept=ACCEPT).startswith("big batch: REGRESSED compared with")


def test_an_option_in_one_line_can_be_copied_though_it_is_wider_than_the_terminal() -> None:
    text = failing.FAILURES["times_against_a_revision"](40)
    assert "  --ddpperf-allow='perf/test_trainer.py::test_step step_time'" in text.splitlines()


def test_a_broken_result_has_no_option_that_accepts_it() -> None:
    text = failing.judged(replace(failing.TIMES, verdict=Verdict.BROKEN))(100)
    assert "Intended?" in failing.FAILURES["times_against_a_revision"](100)
    assert "Intended?" not in text


# The cause.


OPERATORS = counted("operators", 15, 19, "aten.mul 5 -> 8 per step (+3)")
WAITS = counted("synchronisations", 1, 2, "item 1 -> 2 waits for the device per step (+1)")
STATE = counted("model_state_bytes", 100, 200, "parameters 100 B -> 200 B per step (+100 B)")
FEWER = counted("collective_calls", 2, 1, "all_gather 2 -> 1 calls per step (-1): 1 gone from a:2")
SAME = replace(counted("collective_calls", 2, 2, ""), verdict=Verdict.UNCHANGED)


@pytest.mark.parametrize(
    ("comparisons", "cause"),
    [
        pytest.param((OPERATORS,), "aten.mul 5 -> 8 per step (+3)", id="operators alone"),
        pytest.param((OPERATORS, WAITS), "item 1 -> 2 waits for the device per step (+1)", id="what they are made of"),
        pytest.param(
            (STATE, FEWER),
            "parameters 100 B -> 200 B per step (+100 B) in exchange: collective_calls 2 -> 1 "
            "all_gather 2 -> 1 calls per step (-1): 1 gone from a:2",
            id="what a step does less of",
        ),
        pytest.param(
            (REGRESSED, SAME), "not known: by its counts a step does the same as before", id="counts are the same"
        ),
    ],
)
def test_the_cause_is_the_change_that_explains_most(comparisons: tuple[Comparison, ...], cause: str) -> None:
    assert paragraph(fails(*comparisons), "Cause") == cause


def test_counts_of_all_kinds_are_named_in_exchange_the_largest_shares_first() -> None:
    """They are named even if the cause is too long for a failure: -100 %, -30 %, -25 %; the fourth, -10 %, is not."""
    casts = counted("operators", 215, 221, "; ".join(f"aten.cast{number} 0 -> 1 per step (+1)" for number in range(20)))
    less = [
        counted("synchronisations", 10, 9, ""),
        counted("collective_bytes", 8 * MIB, 6 * MIB, ""),
        counted("full_precision_flops", 4e6, 0, ""),
        counted("peak_tensor_bytes", 10 * MIB, 7 * MIB, ""),
        counted("collective_send_bytes", 8 * MIB, 1 * MIB, "", gated=False),
    ]
    cause = paragraph(fails(casts, *less), "Cause")
    assert cause.startswith("aten.cast0 0 -> 1 per step (+1)")
    assert cause.endswith(
        "in exchange: full_precision_flops 4 MFLOP -> 0 MFLOP, peak_tensor_bytes "
        "10.0 MiB -> 7.00 MiB, collective_bytes 8.00 MiB -> 6.00 MiB"
    )


def test_as_many_of_something_else_is_no_change_in_number() -> None:
    buckets = counted("ddp_buckets", 1, 1, "1 bucket as before, 4.00 MiB -> 5.00 MiB")
    buckets = replace(buckets, verdict=Verdict.REGRESSED)
    text = fails(buckets)
    assert rows_of(text)["ddp_buckets"] == ["1", "1", "other", "exact", "0", "FAIL"]
    assert paragraph(text, "Cause") == "1 bucket as before, 4.00 MiB -> 5.00 MiB"


def test_bytes_that_follow_from_calls_of_some_steps_have_no_separate_row() -> None:
    """8 B in each 15th step: 0.533 B a step say no more than 0.067 calls do."""

    values = {"collective_calls": (1.0, 1 + 1 / 15), "collective_bytes": (16.0, 16 + 8 / 15)}
    comparisons = tuple(
        replace(each, baseline=values[metric][0], series=replace(each.series, value=values[metric][1]), note=None)
        for each in failing.COUNTS.comparisons
        if (metric := each.series.metric) in values
    )
    text = failure_text(replace(failing.COUNTS, comparisons=comparisons))
    assert list(rows_of(text)) == ["collective_calls", "1 more: -v"]
    assert list(rows_of(failure_text(replace(failing.COUNTS, comparisons=comparisons[1:])))) == ["collective_bytes"]


def test_a_straggler_a_leak_and_long_steps_are_causes() -> None:
    skew = make_comparison("straggler_skew", 0.15, Verdict.REGRESSED, baseline=0.03, change=0.12, gated=False)
    text = fails(REGRESSED, skew)
    assert paragraph(text, "Cause") == "rank 1 was the slowest in 8 of 8 launches"
    leak = make_comparison("memory_growth", 391 * 1024.0, Verdict.REGRESSED, baseline=0.0, change=391 * 1024.0)
    grows = Finding(
        "memory_growth",
        {"device": "cpu", "least": 4e5, "most": 4e5, "ranks": (0,), "world_size": 2, "steps": 60, "launches": 8},
    )
    text = fails(leak, findings=(grows,))
    assert paragraph(text, "Cause").startswith("memory grows by 391 KiB a step on rank 0, seen in 60 steps")
    long = LongSteps(number=6, steps=60, factor=9.0, share=0.5, period=10, phase="data_wait")
    stalls = make_result(findings=(Finding("long_steps", {"now": long, "before": None}),))
    assert paragraph(failure_text(stalls), "Cause").startswith("6 of 60 steps are on average 9 times as long")


def test_counts_come_before_leaks_times_and_losses() -> None:
    """A count names the cause. Operators, which all others are made of, are the last of them."""
    leak = make_comparison("memory_growth", 391 * 1024.0, Verdict.REGRESSED, baseline=0.0, change=391 * 1024.0)
    leak = replace(leak, series=replace(leak.series, rules=replace(leak.series.rules, diagnosed=True, drifts=False)))
    comparisons = (
        *(make_comparison(name, 2.0, Verdict.REGRESSED, baseline=1.0) for name in ("final_loss", "step_time")),
        *(make_comparison(name, 2.0, Verdict.REGRESSED, baseline=1.0) for name in ("cpu_time", "peak_resident")),
        leak,
        counted("operators", 88, 112, ""),
        counted("collective_calls", 2, 4, ""),
    )
    assert list(rows_of(fails(*comparisons))) == [
        *("collective_calls", "operators", "memory_growth", "step_time", "cpu_time", "peak_resident", "final_loss")
    ]


def test_a_time_that_is_not_the_codes_says_so_as_its_cause() -> None:
    text = fails(replace(REGRESSED, note=Finding("not_the_code", {"change": 0.8})))
    assert paragraph(text, "Cause").startswith("not caused by this repository's code: the commit of")


UNDECIDED = make_comparison(
    "step_time",
    0.043,
    Verdict.INCONCLUSIVE,
    baseline=0.042,
    change=0.024,
    bound=0.135,
    note="about 30 launches would decide it",
)


def test_an_undecided_metric_that_fails_names_the_launches_it_needs_and_no_way_to_accept_it() -> None:
    text = fails(UNDECIDED, accept=ACCEPT, verdict=Verdict.INCONCLUSIVE)
    assert paragraph(text, "Cause") == "step_time could be +13.5 % slower: about 30 launches would decide it"
    assert "--ddpperf-save" not in text


def test_an_undecided_metric_next_to_a_red_one_has_a_row_and_its_note_needs_option_v() -> None:
    memory = make_comparison("peak_resident", 400 * MIB, Verdict.REGRESSED, baseline=380 * MIB, change=0.053)
    hint = make_comparison("forward_time", 0.02, Verdict.INCONCLUSIVE, baseline=0.01, gated=False)
    result = make_result(comparisons=(memory, UNDECIDED, hint))
    text = failure_text(result, accept=ACCEPT)
    verdicts = {name: cells[-1] for name, cells in rows_of(text).items()}
    assert verdicts == {"peak_resident": "FAIL", "step_time": "inconclusive"}
    assert "30 launches" not in text
    open_metric = paragraph(failure_text(result, width=120, verbose=True), "Open")
    assert open_metric == "step_time could be +13.5 % slower: about 30 launches would decide it"


def test_a_missing_baseline_is_named_once() -> None:
    metrics = tuple(make_comparison(name, 1.0, Verdict.NEW) for name in ("step_time", "peak_resident"))
    reason = "no baseline for bucketed of x in baselines"
    result = make_result(comparisons=metrics, verdict=Verdict.NEW, baseline=None, origin=reason)
    told = ["bucketed: NEW, 2 ranks, gloo", "", f"Cause      {reason}", "", f"Save one   {ACCEPT}", MORE]
    assert failure_text(result, accept=ACCEPT, width=100).splitlines() == told


def test_a_metric_that_the_baseline_lacks_is_named() -> None:
    loss = make_comparison("final_loss", 1.2, Verdict.NEW, note="the baseline has no such metric")
    text = fails(loss, verdict=Verdict.NEW)
    assert paragraph(text, "Cause") == "final_loss new: the baseline has no such metric"
    assert "final_loss  1.20  FAIL" in text


def test_a_foreign_baseline_names_the_facts_that_differ() -> None:
    foreign = replace(BASELINE, commit=None)
    differs = ("cores 64 -> 2", "torch 2.11 -> 2.13")
    result = make_result(verdict=Verdict.INCOMPATIBLE, baseline=foreign, differs=differs)
    text = failure_text(result, accept=ACCEPT, width=100)
    assert text.startswith("bucketed: INCOMPATIBLE compared with baseline of 2026-01-12, 2 ranks, gloo\n")
    assert paragraph(text, "Cause") == "the baseline is not comparable: cores 64 -> 2, torch 2.11 -> 2.13"
    assert paragraph(text, "Save one") == ACCEPT


def test_an_undecided_metric_does_not_hide_one_without_a_reference() -> None:
    """Where a comparable baseline is required, or asked for by fail_on."""
    step = make_comparison("step_time", 0.0429, Verdict.INCONCLUSIVE, baseline=0.0418, change=0.026)
    loss = make_comparison("final_loss", 1.25, Verdict.NEW)
    lost = Finding("lost_metric", {"metric": "final_loss", "paired": False})
    missing = {Verdict.NEW, Verdict.INCOMPATIBLE}

    added = make_result(comparisons=(step, loss), verdict=Verdict.INCONCLUSIVE)
    assert failing_verdict(added, missing) is Verdict.NEW
    text = failure_text(added, Verdict.NEW, accept=ACCEPT, failing=missing)
    assert paragraph(text, "Cause") == "final_loss new"
    assert "Save one   pytest" in text

    less = make_result(comparisons=(step,), verdict=Verdict.INCONCLUSIVE, findings=(lost,))
    assert failing_verdict(less, missing) is Verdict.INCOMPATIBLE
    text = failure_text(less, Verdict.INCOMPATIBLE, accept=ACCEPT, failing=missing)
    assert paragraph(text, "Cause") == finding_text(lost)

    for result in (added, less):
        assert failing_verdict(result, {Verdict.REGRESSED}) is None
        assert failing_verdict(result, {Verdict.INCONCLUSIVE, *missing}) is Verdict.INCONCLUSIVE
    paired = replace(added, reference=PairedRevision(revision="main", commit="c", launches=2, modules={}))
    assert failing_verdict(paired, missing) is None  # the candidate alone has it


def test_counts_that_differ_from_a_foreign_baseline_are_shown() -> None:
    obstacle = "the baseline is not comparable: torch 2.11 -> 2.13"

    def foreign(metric: str, base: float, value: float, difference: str) -> Comparison:
        made = counted(metric, base, value, obstacle)
        return replace(made, verdict=Verdict.INCOMPATIBLE, difference=Finding(difference) if difference else None)

    calls = foreign("collective_calls", 2, 9, "all_reduce 2 -> 9 calls per step (+7)")
    operators = foreign("operators", 5, 9, "aten.mul 5 -> 8 per step (+3); aten.add 0 -> 1 per step (+1)")
    same = foreign("optimizer_steps", 1, 1, "")
    differs = ("torch 2.11 -> 2.13",)
    result = make_result(verdict=Verdict.INCOMPATIBLE, comparisons=(calls, operators, same), differs=differs)
    changes = [
        "collective_calls: all_reduce 2 -> 9 calls per step (+7)",
        "operators: aten.mul 5 -> 8 per step (+3); aten.add 0 -> 1 per step (+1)",
    ]
    assert paragraph(failure_text(result, accept=ACCEPT, width=120), "Cause") == " ".join([obstacle, *changes])
    assert reason_text(result, Verdict.INCOMPATIBLE, ()).splitlines() == [f"incompatible: {obstacle}", *changes]
    # If only kernels differ, it is told metric by metric.
    alike = replace(result, reference=StoredBaseline(record=result.baseline, origin=""))
    assert reason_text(alike, Verdict.INCOMPATIBLE, ()).splitlines()[-1] == (
        f"operators: {obstacle}; aten.mul 5 -> 8 per step (+3); aten.add 0 -> 1 per step (+1)"
    )


def test_a_broken_benchmark_has_its_reason_once() -> None:
    findings = (Finding("slow disk"), Finding("broken", {"reason": "rank 1 was killed by SIGKILL"}))
    measured = {"launches": (), "plan": Plan(warmup=0, steps=0), "findings": findings[1:]}
    result = make_result(verdict=Verdict.BROKEN, comparisons=(), baseline=None, findings=findings, measured=measured)
    told = ["bucketed: BROKEN, 2 ranks, gloo", "", "Cause      rank 1 was killed by SIGKILL", ""]
    assert failure_text(result, accept=ACCEPT).splitlines() == [*told, MORE]
    assert failure_text(result, verbose=True).count("SIGKILL") == 1


# The parts of a step.


def part(metric: str, before: float, now: float, low: float, high: float) -> Comparison:
    """Makes a part of a step: its metric, seconds before and now, and the ends of the interval of its change."""
    interval = make_interval(low, high)
    made = make_comparison(
        metric, now, Verdict.UNCHANGED, baseline=before, change=now - before, change_interval=interval
    )
    return replace(made, series=replace(made.series, unit="s", scale="difference"), gated=False)


def test_a_longer_step_names_the_parts_that_are_longer_for_certain() -> None:
    """Of a step of 41.8 ms 3 % are 1.254 ms. The largest change comes first."""
    result = make_result(
        comparisons=(
            REGRESSED,
            part("exposed_communication", 0.0012, 0.0034, 0.0001, 0.0043),
            part("phase_forward", 0.012, 0.0132, 0.001, 0.0014),  # for certain, and less than what is tolerated
            part("phase_backward", 0.02, 0.0247, -0.001, 0.011),  # may be chance
            part("phase_gradient_sync", 0.009, 0.0115, 0.002, 0.003),
            part("phase_optimizer", 0.009, 0.0065, -0.0035, -0.0015),  # shorter, which makes no step longer
        )
    )
    line = (
        "gradient sync +2.50 ms [95 % CI +2.00 ms .. +3.00 ms]; "
        "exposed communication +2.20 ms [95 % CI +100 us .. +4.30 ms]"
    )
    assert parts_text(result) == line
    text = failure_text(result, width=120)
    assert paragraph(text, "Cause") == line
    assert "gradient_sync" not in text  # each fact once


def test_no_part_is_named_without_a_change_of_the_step() -> None:
    assert parts_text(make_result()) == ""
    new = make_comparison("step_time", 0.04, Verdict.NEW)
    assert parts_text(make_result(comparisons=(new, part("phase_forward", 0.012, 0.02, 0.007, 0.009)))) == ""


def test_parts_are_behind_v_if_a_count_is_the_cause() -> None:
    calls = counted("collective_calls", 2, 4, "all_reduce 2 -> 4 calls per step (+2)")
    result = make_result(comparisons=(calls, REGRESSED, part("phase_backward", 0.02, 0.025, 0.004, 0.006)))
    assert "backward" not in failure_text(result)
    whole = failure_text(result, width=100, verbose=True)
    assert paragraph(whole, "Phases") == "backward +5.00 ms [95 % CI +4.00 ms .. +6.00 ms]"


# The table.


def test_metrics_that_follow_from_the_step_time_have_no_row() -> None:
    throughput = make_comparison("throughput", 676.0, Verdict.REGRESSED, baseline=765.0, change=-0.116)
    epoch, longest = (
        make_comparison(metric, 1 + change, Verdict.REGRESSED, baseline=1.0, change=change, gated=False)
        for metric, change in (("epoch_time", 0.132), ("step_time_max", 0.8))
    )
    assert list(rows_of(fails(throughput, REGRESSED, epoch, longest))) == ["step_time", "3 more: -v"]
    assert rows_of(fails(throughput))["throughput"] == ["765 samples/s", "676 samples/s", "-11.6 %", "-3 %", "FAIL"]


def test_others_that_moved_are_rows_without_a_verdict() -> None:
    rate = make_comparison("cpu_time", 2.58, Verdict.REGRESSED, baseline=1.0, change=1.58, gated=False)
    result = make_result(comparisons=(REGRESSED, rate, counted("synchronisations", 2, 1, "")))
    rows = rows_of(failure_text(result, width=100))
    assert rows["cpu_time"][-1] == "+3 %"
    assert rows["synchronisations"] == ["2", "1", "-1", "exact", "0", "improved"]


def test_less_work_of_a_broken_benchmark_is_no_improvement() -> None:
    fewer = counted("collective_calls", 1.0, 0.0, "all_reduce 1 -> 0 calls per step (-1)")
    findings = (Finding("broken", {"reason": "ranks train alone"}),)
    result = make_result(verdict=Verdict.BROKEN, comparisons=(fewer,), findings=findings)
    assert rows_of(failure_text(result))["collective_calls"] == ["1", "0", "-1", "exact", "0"]
    assert rows_of(failure_text(replace(result, verdict=Verdict.IMPROVED)))["collective_calls"][-1] == "FAIL"


def test_a_change_that_is_the_quotient_of_both_values_is_not_marked() -> None:
    """The golden file has one that is another: 36.7 / 23.8 is 1.542, and the mean change of the rounds +57 %."""
    step = next(c for c in failing.BOTH.comparisons if c.series.metric == "step_time")
    agreeing = replace(step, baseline=0.0367 / 1.5699)  # 57.0 % in the digits that are shown
    text = failure_text(replace(failing.BOTH, comparisons=(agreeing,)))
    assert "+57.0 %" in text
    assert "*" not in text


@pytest.mark.parametrize(
    ("metric", "values", "told"),
    [
        ("collective_bytes", (1e6, 1e6 + 4), ["+4 B", "0"]),
        ("peak_tensor_bytes", (1e8, 2e8), ["+100.0 %", "+97.7 KiB"]),  # 0.1 % of 100,000,000
        ("python_objects", (0.0, 20.0), ["+20", "+8"]),
        ("retained_bytes", (0.0, 1028.0), ["+1,028 B", "+1,024 B"]),
        ("retained_bytes", (0.0, 2048.0), ["+2.00 KiB", "+1.00 KiB"]),
    ],
)
def test_the_limit_of_a_count_is_its_floor(metric: str, values: tuple[float, float], told: list[str]) -> None:
    assert rows_of(fails(counted(metric, *values, ""), width=120))[metric][2:5:2] == told


# How it was confirmed.


def test_launches_slower_than_the_median_of_the_baseline_are_counted() -> None:
    step = make_comparison("step_time", 0.047, Verdict.REGRESSED, samples=(0.047, 0.043, 0.047, 0.049))
    step = replace(step, change=0.1, base_samples=(0.041, 0.042, 0.048, 0.041), worse_in=3)
    assert paragraph(fails(step), "Confirmed") == "slower than the baseline's median in 3 of 4 launches"


def test_a_suspicion_of_another_metric_is_not_shown() -> None:
    loss = make_comparison("final_loss", 2.7, Verdict.REGRESSED, baseline=2.2)
    assert "suspicion" not in fails(loss, findings=(failing.SUSPECTED,))


def test_a_gross_slowdown_says_that_it_is_compared_with_stored_times() -> None:
    text = fails(replace(REGRESSED, note=Finding("gross")), width=120)
    assert paragraph(text, "Confirmed") == (
        "a gross slowdown compared with the stored times, on a machine that was not busy"
    )


def test_a_failure_of_counts_does_not_mention_the_machine() -> None:
    assert "Machine" not in failure_text(replace(failing.COUNTS, findings=(failing.MACHINE,)))


# In a line.


def test_the_summary_says_the_cause_with_its_line() -> None:
    def words(result: Result, verdict: Verdict = Verdict.REGRESSED) -> str:
        return cause_in_words(replace(result, failure=reason_text(result, verdict, ())))

    assert words(failing.BOTH) == "all_reduce 2 -> 8 calls (trainer.py:16), step time +57.0 %"
    assert words(failing.TIMES) == "step time +13.2 %"
    flops = counted("flops", 1e9, 2e9, "head 1 GFLOP -> 2 GFLOP per step (+1 GFLOP, +100 %)")
    assert words(make_result(comparisons=(flops,))) == "head 1 GFLOP -> 2 GFLOP"
    assert words(make_result(comparisons=(counted("collective_calls", 2, 8, ""),))) == "collective calls 2 -> 8"
    through = "all_reduce 1 -> 2 calls per step (+1): the new one at a.py:4 in main, through lib/b.py:24 in train"
    library = counted("collective_calls", 1, 2, through)
    assert words(make_result(comparisons=(library,))) == "all_reduce 1 -> 2 calls (a.py:4)"
    undecided = make_comparison("step_time", 0.04, Verdict.INCONCLUSIVE)
    result = make_result(comparisons=(undecided,), verdict=Verdict.INCONCLUSIVE)
    assert words(result, Verdict.INCONCLUSIVE) == "step time inconclusive"


# Ranks that fail.


def test_an_error_of_ranks_has_a_summary_and_without_a_benchmark_no_title() -> None:
    assert failing.CRASH.summary == "rank 1 of 2 raised ValueError: boom (trainer.py:12)"
    assert failing.INCORRECT.summary == (
        "gradients differ from a single process: the rank kept its own gradient, which was not synchronised"
    )
    asked_for = RankFailed(str(failing.CRASH), stack=failing.CRASH.stack)  # by ddpperf_group, which measures nothing
    assert error_text(asked_for).startswith("Cause      rank 1 of 2 raised")


def test_the_stacks_of_other_ranks_are_behind_v() -> None:
    assert failing.STACKS[1] not in error_text(failing.HANG)
    assert error_text(failing.HANG, verbose=True).endswith(failing.STACKS[1])


def test_many_ranks_that_end_differently_are_cut() -> None:
    fates = "\n".join(f"rank {rank}: exited with status {rank}" for rank in range(1, 40))
    error = RankFailed(f"rank 0 of 40 exited with status 9\n\n{fates}", rank=0)
    assert len(error_text(error).splitlines()) <= 19
    assert "rank 39: exited with status 39" in error_text(error, verbose=True)
