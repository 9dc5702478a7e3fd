"""The last line of a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.records.results import Comparison, PairedRevision, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.names import names_of
from pytest_ddpperf.reports.outputs import Outputs, Stored
from pytest_ddpperf.reports.overall import overall, overall_lines
from pytest_ddpperf.reports.summary import last_lines
from tests.reports.conftest import comparison

Make = Callable[..., Result]


@pytest.fixture
def timed(make_result: Make) -> Callable[..., Result]:
    """A benchmark with a verdict by its step time, which has a bound, and with other metrics."""

    def made(verdict: Verdict, bound: float | None = None, *others: Comparison, name: str = "a") -> Result:
        step = comparison("step_time", 0.04, verdict, bound=bound)
        return make_result(test=f"t.py::test_{name}[bucketed]", verdict=verdict, comparisons=(step, *others))

    return made


def counted(verdict: Verdict) -> Comparison:
    made = comparison("flops", 2.0, verdict)
    return replace(made, series=replace(made.series, scale="exact"))


def test_the_worst_verdict_comes_first_and_0_regressed_are_told(timed: Make) -> None:
    ok = [timed(Verdict.OK, bound) for bound in (0.031, 0.049, 0.092)]
    others = [timed(Verdict.IMPROVED), *(timed(Verdict.UNCHANGED) for _ in range(9))]
    line, *_ = overall_lines([*others, timed(Verdict.INCONCLUSIVE, 0.14, name="larger"), *ok])
    assert line == (
        "14 benchmarks: 0 regressed, 1 inconclusive (could be slower: test_larger[bucketed] +14.0 %), "
        "3 ok (a slowdown beyond 3.1 % to 9.2 % would have shown), 9 unchanged, 1 improved"
    )
    assert overall_lines([timed(Verdict.UNCHANGED)])[0] == "1 benchmark: 0 regressed, 1 unchanged"
    line, *_ = overall_lines([timed(Verdict.REGRESSED), timed(Verdict.BROKEN), timed(Verdict.REGRESSED)])
    assert line == "3 benchmarks: 1 broken, 2 regressed"


def test_benchmarks_that_differ_in_their_ranks_alone_are_named_with_them(timed: Make) -> None:
    def of_ranks(result: Result, world_size: int) -> Result:
        environment = replace(result.measurement.environment, world_size=world_size)
        return replace(result, measurement=replace(result.measurement, environment=environment))

    results = [
        of_ranks(timed(Verdict.OK), 8),
        of_ranks(timed(Verdict.OK), 64),
        of_ranks(timed(Verdict.OK, name="b"), 8),
    ]
    assert [name.rpartition(" ")[2] for name in names_of(results)] == [
        "w8",
        "w64",
        names_of(results[2:])[0].split()[-1],
    ]


def test_regressions_that_became_the_baseline_are_accepted(timed: Make) -> None:
    results = [timed(Verdict.REGRESSED, name="a"), timed(Verdict.REGRESSED, name="b"), timed(Verdict.NEW, name="c")]
    for left_out in (Stored(failed={results[1].test}), Stored(unfit=[results[1]])):
        data = Outputs(results=results, accepting=True, stored=left_out)
        assert last_lines(data) == ["3 benchmarks: 2 regressed (1 accepted), 1 new"]
    assert last_lines(Outputs(results=results)) == ["3 benchmarks: 2 regressed, 1 new"]
    assert last_lines(Outputs(complaints=["no commit is known"])) == ["no commit is known"]


def test_what_stored_times_leave_open_has_no_bound_in_the_last_line(make_result: Make) -> None:
    step = comparison("step_time", 0.04, Verdict.INCONCLUSIVE, note="busy")
    result = make_result(test="t.py::test_a[bucketed]", verdict=Verdict.INCONCLUSIVE, comparisons=(step,))
    assert overall_lines([result])[0] == (
        "1 benchmark: 0 regressed, 1 inconclusive (could be slower: test_a[bucketed] stored times)"
    )
    memory = comparison("peak_resident", 4e8, Verdict.INCONCLUSIVE)
    result = make_result(test="t.py::test_a[bucketed]", verdict=Verdict.INCONCLUSIVE, comparisons=(memory,))
    assert overall_lines([result])[0] == (
        "1 benchmark: 0 regressed, 1 inconclusive (could be worse: test_a[bucketed] peak_resident)"
    )


def test_how_many_are_ok_by_stored_times_alone_is_told(make_result: Make, timed: Make) -> None:
    step = replace(timed(Verdict.OK, 0.049).comparisons[0], paired=True)
    paired = make_result(test="t.py::test_b", verdict=Verdict.OK, comparisons=(step,))
    line, *_ = overall_lines([timed(Verdict.OK), paired, timed(Verdict.OK, name="c")])
    assert line == ("3 benchmarks: 0 regressed, 3 ok (a slowdown beyond 4.9 % would have shown; 2 by stored times)")


def test_of_many_undecided_benchmarks_those_that_could_be_slowest_are_named(timed: Make) -> None:
    bounds = {"a": 0.11, "b": 0.35, "c": None, "d": 0.2, "e": 12.0}
    line, *_ = overall_lines([timed(Verdict.INCONCLUSIVE, bound, name=name) for name, bound in bounds.items()])
    assert line == (
        "5 benchmarks: 0 regressed, 5 inconclusive "
        "(could be slower: test_e[bucketed] >+1000 %, test_b[bucketed] +35.0 %, test_d[bucketed] +20.0 % and 2 more)"
    )


def test_a_benchmark_whose_memory_is_undecided_is_not_called_slower(make_result: Make) -> None:
    memory = comparison("peak_resident", 4e8, Verdict.INCONCLUSIVE, bound=0.12)
    step = comparison("step_time", 0.04, Verdict.UNCHANGED, bound=0.02)
    result = make_result(test="t.py::test_a[bucketed]", verdict=Verdict.INCONCLUSIVE, comparisons=(step, memory))
    assert "1 inconclusive (could be worse: test_a[bucketed] peak_resident +12.0 %)" in overall_lines([result])[0]


def test_counts_that_are_compared_without_times_are_told(timed: Make) -> None:
    new = [timed(Verdict.NEW, None, *counts) for counts in ((), (counted(Verdict.UNCHANGED),), ())]
    foreign = timed(Verdict.INCOMPATIBLE, None, counted(Verdict.IMPROVED))
    assert overall_lines([*new, foreign])[0] == (
        "4 benchmarks: 0 regressed, 1 incompatible (1 with counts changed), 3 new (1 with counts same)"
    )


BESIDE = PairedRevision(revision="3f2a1c0", commit=None, launches=6)


def changed(make_result: Make, test: str, change: float | None, **fields: Any) -> Result:
    """A benchmark that was measured side by side; beside stored times alone if neither side is given."""
    given = {"paired": BESIDE, **fields}
    beside = given["paired"] is not None or "reference" in given
    step = comparison("step_time", 0.04, Verdict.OK, change=change, paired=beside)
    return make_result(test=f"t.py::{test}", verdict=Verdict.OK, comparisons=(step,), **given)


def test_a_slowdown_that_no_test_shows_alone_is_found_in_all_of_them(make_result: Make) -> None:
    results = [changed(make_result, f"test_{number}", 0.03 + 0.002 * (number - 2)) for number in range(5)]
    line, last = overall_lines(results)
    assert line == "5 tests together: step_time +3.0 % [95 % CI +2.6 .. +3.4] slower"
    assert last == "5 benchmarks: 0 regressed, 5 ok"
    same = [changed(make_result, f"test_{number}", 0.002 * (number - 2)) for number in range(5)]
    assert overall_lines(same)[0] == "5 tests together: step_time +0.0 % [95 % CI -0.4 .. +0.4]"


def test_what_is_no_part_of_the_common_change(make_result: Make) -> None:
    """Variants of one test are one figure; new and broken benchmarks and changes without a known error have none."""
    variants = [changed(make_result, "test_a", 0.01 * number, measured={"name": str(number)}) for number in range(3)]
    others = [changed(make_result, "test_b", 0.01), changed(make_result, "test_new", None)]
    stored = [changed(make_result, f"test_stored_{number}", 0.5, paired=None) for number in range(3)]
    assert overall([*variants, *others, *stored]).common_change is None
    found = overall([*variants, *others, *stored, changed(make_result, "test_c", 0.01)]).common_change
    assert found is not None
    assert (found.tests, round(found.change, 3)) == (3, 0.01)


def test_what_was_measured_beside_the_baselines_commit_has_a_common_change(make_result: Make) -> None:
    stored = StoredBaseline(record=None, origin="cpu", pair=BESIDE)
    results = [changed(make_result, f"test_{i}", 0.03 + 0.001 * i, paired=None, reference=stored) for i in range(3)]
    assert overall_lines(results)[0] == "3 tests together: step_time +3.1 % [95 % CI +2.9 .. +3.3] slower"


def test_the_figures_of_a_session_have_every_verdict(make_result: Make) -> None:
    verdicts = overall([changed(make_result, "test_a", 0.01)]).verdicts
    assert verdicts == dict.fromkeys((verdict.value for verdict in Verdict), 0) | {"ok": 1}
