"""The verdict on a session as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_ddpperf.records.results import Comparison, PairedRevision, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.lines import with_names
from pytest_ddpperf.reports.outputs import Outputs, Stored
from pytest_ddpperf.reports.remarks import common_text, headline, overall_lines
from pytest_ddpperf.reports.summary import colour_of, last_lines, summary_parts
from pytest_ddpperf.stats.intervals import change_of_suite
from tests.factories import known, make_interval
from tests.reports.golden_runs import outputs
from tests.reports.made import BASELINE, counted, make_comparison, make_result


def line_of(results: Sequence[Result]) -> str:
    """The verdict on a run with these results."""
    return headline(Outputs(results=[*results]))


def timed(verdict: Verdict, bound: float | None = None, *others: Comparison, name: str = "a") -> Result:
    """A benchmark with a verdict by its step time, which has a bound, and with other metrics."""
    interval = None if bound is None else make_interval(bound - 0.1, bound)
    step = make_comparison("step_time", 0.04, verdict, bound=bound, change_interval=interval)
    return make_result(test=f"t.py::test_{name}[bucketed]", verdict=verdict, comparisons=(step, *others))


def test_the_worst_verdict_comes_first_and_only_green_benchmarks_have_passed() -> None:
    passed = [timed(Verdict.OK), timed(Verdict.IMPROVED), *(timed(Verdict.UNCHANGED) for _ in range(9))]
    assert line_of(passed) == "PASSED: 11 | against the baseline of 3f2a1c0"
    others = [timed(Verdict.INCONCLUSIVE), timed(Verdict.REGRESSED), timed(Verdict.BROKEN), timed(Verdict.DOES_NOT_FIT)]
    assert line_of([*passed, *others]).startswith(
        "PASSED: 1 broken (does not fail), 1 regressed (does not fail), 1 inconclusive (does not fail), "
        "1 does not fit, 11 passed |"
    )
    failed = [replace(one, failure="it failed") for one in others[1:3]]
    twice = [timed(Verdict.INCONCLUSIVE)] * 2
    assert line_of([*passed, *twice, *failed]).startswith(
        "FAILED: 1 broken, 1 regressed, 2 inconclusive (do not fail), 11 passed |"
    )


def test_a_run_has_not_passed_if_a_test_could_not_be_measured() -> None:
    """It has no result: its settings were wrong."""
    assert last_lines(Outputs(results=[timed(Verdict.OK)], unmeasured={"perf/test_a.py::test_b": "no such file"})) == [
        "ddpperf: FAILED: 1 test could not be measured, 1 passed | against the baseline of 3f2a1c0"
    ]


def test_a_run_that_ended_early_has_not_passed() -> None:
    made = Outputs(results=[timed(Verdict.OK)], interrupted="stopping after 1 failures")
    assert headline(made) == "INCOMPLETE: 1 passed | against the baseline of 3f2a1c0"
    assert [colour_of(each) for each in (made, replace(made, interrupted=None))] == ["yellow", "green"]
    made.unmeasured["t.py::test_b"] = "no such file"
    assert (headline(made).partition(":")[0], colour_of(made)) == ("FAILED", "red")


def test_a_benchmark_whose_test_failed_has_not_passed() -> None:
    failed = [replace(timed(verdict), failure="its test failed") for verdict in (Verdict.UNCHANGED, Verdict.NEW)]
    assert line_of(failed).startswith("FAILED: 1 failed (new), 1 failed (unchanged) |")
    assert line_of([failed[0], timed(Verdict.OK)]).startswith("FAILED: 1 failed (unchanged), 1 passed")


def test_the_line_ends_with_the_reference_of_the_results() -> None:
    beside = make_result(verdict=Verdict.OK, paired=PairedRevision(revision="3f2a1c0 (main)", commit=None))
    assert line_of([beside]) == "PASSED: 1 | against 3f2a1c0 (main)"
    older = replace(BASELINE, commit="8be01d2" + "0" * 33, date="2025-12-24")
    of_another = make_result(verdict=Verdict.OK, baseline=older)
    assert line_of([timed(Verdict.OK), of_another]) == "PASSED: 2 | against the baseline of 2025-12-24 to 2026-01-12"
    assert line_of([make_result(verdict=Verdict.NEW, baseline=None)]) == "PASSED: 1 new (no baseline)"


def test_benchmarks_that_differ_in_their_ranks_alone_are_named_with_them() -> None:
    def of_ranks(result: Result, world_size: int) -> Result:
        environment = replace(result.measurement.environment, world_size=world_size)
        return replace(result, measurement=replace(result.measurement, environment=environment))

    results = [
        of_ranks(timed(Verdict.OK), 8),
        of_ranks(timed(Verdict.OK), 64),
        of_ranks(timed(Verdict.OK, name="b"), 8),
    ]
    assert [name for name, _ in with_names(results)] == [
        *(f"test_a[bucketed] bucketed w{ranks}" for ranks in (8, 64)),
        "test_b[bucketed]",
    ]


def test_regressions_that_became_the_baseline_are_accepted() -> None:
    results = [timed(Verdict.REGRESSED, name="a"), timed(Verdict.REGRESSED, name="b")]
    for left_out in (Stored(failed={results[1].test}), Stored(unfit=[results[1]])):
        data = Outputs(results=results, accepting=True, stored=left_out)
        assert last_lines(data) == [
            "ddpperf: PASSED: 1 regressed (accepted), 1 regressed (does not fail) | against the baseline of 3f2a1c0"
        ]
    assert last_lines(Outputs(results=results)) == [
        "ddpperf: PASSED: 2 regressed (do not fail) | against the baseline of 3f2a1c0"
    ]
    assert last_lines(Outputs(complaints=["no commit is known"])) == ["no commit is known"]


def test_for_new_benchmarks_the_missing_reference_is_named() -> None:
    def new(*comparisons: Comparison) -> Result:
        return make_result(verdict=Verdict.NEW, comparisons=comparisons, baseline=None)

    same = new(counted("flops", Verdict.UNCHANGED))
    assert line_of([same, same]) == "PASSED: 2 new (no times stored; counts same)"
    assert line_of([same, new()]) == "PASSED: 1 new (no times stored; counts same), 1 new (no baseline)"
    assert line_of([timed(Verdict.NEW)]) == "PASSED: 1 new"
    beside = PairedRevision(revision="3f2a1c0 (main)", commit=None, lacking="rank 0 raised ValueError")
    raised = make_result(verdict=Verdict.NEW, paired=beside)
    assert line_of([raised]).startswith("PASSED: 1 new (not measured in the other revision) |")


def test_the_facts_that_make_benchmarks_incompatible_are_named() -> None:
    def of(*facts: str, times: tuple[str, ...] = ()) -> Result:
        stored = StoredBaseline(record=None, origin="", counted_differs=facts, differs=times)
        return replace(make_result(verdict=Verdict.INCOMPATIBLE, baseline=None), reference=stored)

    flag, torch = "env FLAG 1 -> 2", "torch 2.11 -> 2.13"
    assert line_of([of(flag, torch), of(flag)]) == f"PASSED: 2 incompatible ({flag})"
    assert line_of([of(flag), of(times=(torch,)), of()]) == (
        f"PASSED: 1 incompatible ({flag}), 1 incompatible ({torch}), 1 incompatible"
    )


def test_the_largest_bound_of_passed_benchmarks_is_shown_if_all_have_one() -> None:
    ok = [timed(Verdict.OK, bound) for bound in (0.031, 0.092, -0.01)]
    assert overall_lines(ok) == ["passed: none slower by more than 9.2 % (95 % confidence for each benchmark)"]
    assert overall_lines([*ok, timed(Verdict.OK)]) == []  # by stored times
    assert overall_lines([*ok, timed(Verdict.INCONCLUSIVE, 0.5)]) == overall_lines(ok)


BESIDE = PairedRevision(revision="3f2a1c0", commit=None, launches=6)


def changed(test: str, change: float | None, **fields: Any) -> Result:
    """A benchmark that was measured side by side, unless it is not paired."""
    given = {"paired": BESIDE, **fields}
    step = make_comparison("step_time", 0.04, Verdict.OK, change=change, paired=given["paired"] is not None)
    return make_result(test=f"t.py::{test}", verdict=Verdict.OK, comparisons=(step,), **given)


def test_a_slowdown_that_no_test_shows_alone_is_found_in_all_of_them() -> None:
    results = [changed(f"test_{number}", 0.03 + 0.002 * (number - 2)) for number in range(5)]
    told = "all 5 tests together: step time +3.0 % [95 % CI +2.6 .. +3.4] slower"
    assert common_text(change_of_suite(results)) == [told]
    same = [changed(f"test_{number}", 0.002 * (number - 2)) for number in range(5)]
    told = "all 5 tests together: step time +0.0 % [95 % CI -0.4 .. +0.4]"
    assert common_text(change_of_suite(same)) == [told]
    shown = {more: summary_parts(outputs(*same), verbosity=more)[0][1] for more in (0, 1)}
    assert [told in text for text in shown.values()] == [False, True]


def test_new_broken_and_uncertain_benchmarks_are_not_part_of_the_common_change() -> None:
    """Variants of one test are one figure; new and broken benchmarks and changes without a known error have none."""
    variants = [changed("test_a", 0.01 * number, measured={"name": str(number)}) for number in range(3)]
    others = [changed("test_b", 0.01), changed("test_new", None)]
    stored = [changed(f"test_stored_{number}", 0.5, paired=None) for number in range(3)]
    assert change_of_suite([*variants, *others, *stored]) is None
    found = known(change_of_suite([*variants, *others, *stored, changed("test_c", 0.01)]))
    assert (found.tests, round(found.change, 3)) == (3, 0.01)
