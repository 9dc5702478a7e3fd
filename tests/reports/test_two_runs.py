"""Two results documents beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.metrics.table import counted_series
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.launch import CpuHealth, Health
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.two_runs import two_runs
from tests.factories import judged_anew, make_counts, make_environment, make_launch, make_results_document, read_again
from tests.reports.made import make_comparison, make_document, make_result

QUIET = ((0.010,) * 4,) * 3
PAUSES = ((0.010, 0.010, 0.010, 0.030),) * 3  # 15 ms on average


def run(launches: Sequence[tuple[float, ...]], nbytes: float = 1e9, **step: Any) -> Run:
    """A document of a benchmark with these steps of its launches, twice as fast as base."""
    samples = tuple(sum(times) / len(times) for times in launches)
    metrics = (
        make_comparison("step_time", sum(samples) / len(samples), Verdict.NEW, samples=samples, **step),
        make_comparison("speedup", 2.0, Verdict.NEW, samples=(2.0,) * len(launches)),
        make_comparison("peak_resident", nbytes, Verdict.NEW, samples=(nbytes,) * len(launches)),
    )
    timed = tuple(make_launch(times, round=number) for number, times in enumerate(launches))
    return make_document(make_result(comparisons=metrics, measured={"launches": timed}))


def told(before: Run, after: Run) -> tuple[dict[str, tuple[str, str, str]], list[str]]:
    """By metric both values and the change; and the notes but for the last one, on what an interval has."""
    table = two_runs(before, after, judged_anew(before, after))
    return {metric: (then, now, change) for _, metric, then, now, change in table.rows}, list(table.notes[:-1])


def test_step_times_are_the_means_of_all_steps() -> None:
    rows, notes = told(run(QUIET), run(PAUSES))
    assert rows["step_time"][:2] == ("10.0 ms", "15.0 ms")
    assert rows.keys() == {"step_time", "speedup", "peak_resident"}
    assert notes == []


def test_a_change_that_is_no_quotient_of_its_two_values_is_marked() -> None:
    """The usual launch is as long as before, and one is twice as long."""
    rows, notes = told(run(QUIET), run((*QUIET, *QUIET, (0.020,) * 4)))
    assert rows["step_time"][:2] == ("10.0 ms", "11.4 ms")
    assert rows["step_time"][2].endswith("*")
    assert notes == ["* mean change of the usual launches; both values are means of all launches"]


def test_a_count_that_is_not_finite_is_not_compared() -> None:
    calls = make_comparison("collective_calls", 2.0, Verdict.NEW)
    calls = replace(calls, series=replace(calls.series, scale="exact"))
    unknown = replace(calls, series=replace(calls.series, value=float("nan"), samples=(float("nan"),)))
    before, after = (make_document(make_result(comparisons=(each,))) for each in (calls, unknown))
    assert told(before, after)[0] == {}


ALONE = Health(cpu=CpuHealth(others=0.0, steal=0.0, throttled=0.0))
BUSY = Health(cpu=CpuHealth(others=0.5, steal=0.0))


def of_counts(
    verdict: Verdict,
    counts: Counts,
    launches: int = 0,
    *,
    gated: bool = True,
    time: float = 0.010,
    health: Health = ALONE,
) -> Run:
    """A document of a benchmark with one count; with ``launches``, of steps of 10 ms on a quiet machine."""
    (exact,) = counted_series(counts)
    metrics = [replace(make_comparison("step_time", 1.0, verdict, gated=gated), series=exact)]
    if launches:
        metrics.append(make_comparison("step_time", time, Verdict.NEW, samples=(time,) * launches))
    made = tuple(make_launch((time,) * 4, round=number, health=health) for number in range(launches))
    measured = {"launches": made, "counts": counts, "environment": make_environment(recorded={"host": "here"})}
    return make_document(make_result(comparisons=tuple(metrics), measured=measured, verdict=verdict))


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        ((0.010, ALONE, 2.0), Verdict.OK),
        ((0.030, ALONE, 2.0), Verdict.REGRESSED),  # a gross slowdown
        ((0.030, BUSY, 2.0), Verdict.INCONCLUSIVE),
        ((0.010, ALONE, 3.0), Verdict.REGRESSED),
    ],
)
def test_a_second_run_is_judged_as_if_the_first_one_were_its_baseline(
    now: tuple[float, Health, float], verdict: Verdict
) -> None:
    def made(time: float, health: Health, calls: float) -> Run:
        counts = make_counts({"collective_calls": {"all_reduce": calls}})
        return of_counts(Verdict.NEW, counts, 4, time=time, health=health)

    (result,) = judged_anew(made(0.010, ALONE, 2.0), made(*now))
    assert result.verdict is verdict


def test_runs_of_which_one_interleaved_its_launches_are_not_compared() -> None:
    made = [make_document(make_result(comparisons=(), measured={"turns": turns})) for turns in (False, True)]
    (result,) = judged_anew(*made)
    assert result.reference.differs == ("only one run interleaved its launches",)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (Verdict.DOES_NOT_FIT, Verdict.REGRESSED),  # the first run fitted into memory
        (Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE),  # it was only counted, for want of time
        (Verdict.UNCHANGED, Verdict.UNCHANGED),  # a run that only counts
    ],
)
def test_a_second_run_without_times_keeps_its_verdict(now: Verdict, expected: Verdict) -> None:
    made = make_results_document([make_result(comparisons=())], None)
    made["results"][0] |= {"verdict": now.value, "metrics": {}}
    assert [each.verdict for each in judged_anew(run(QUIET), read_again(made))] == [expected]


def irregular(mean: float, *steps: float) -> Counts:
    varying = {"synchronisations": {"": (steps,)}}
    unstable = {"synchronisations": "irregular"}
    return Counts(totals={"synchronisations": mean}, details={}, unstable=unstable, varying=varying)


@pytest.mark.parametrize(("launches", "expected"), [(0, Verdict.INCONCLUSIVE), (4, Verdict.OK)])
def test_a_count_that_may_have_doubled_is_undecided_unless_times_are_good(launches: int, expected: Verdict) -> None:
    """And it is no lack of time."""
    before = of_counts(Verdict.NEW, irregular(1.0, 1.0, 0.0, 2.0, 1.0), launches)
    (result,) = judged_anew(before, of_counts(Verdict.INCONCLUSIVE, irregular(4.0, 4.0, 3.0, 8.0, 1.0), launches))
    assert result.verdict is expected
    assert "no_time_to_measure" not in {finding.code for finding in result.findings}


def test_a_count_that_its_own_baseline_could_not_judge_is_judged_by_the_first_run() -> None:
    """That baseline lacked it, for instance."""
    once, twice = (make_counts({}, synchronisations=n) for n in (1.0, 2.0))
    (result,) = judged_anew(of_counts(Verdict.NEW, once), of_counts(Verdict.NEW, twice, gated=False))
    assert result.verdict is Verdict.REGRESSED


@pytest.mark.parametrize(("tolerance", "expected"), [(0.2, Verdict.UNCHANGED), (0.015, Verdict.REGRESSED)])
def test_the_tolerance_of_a_test_holds_for_two_runs(tolerance: float, expected: Verdict) -> None:
    (result,) = judged_anew(run(QUIET, tolerance=tolerance), run(QUIET, nbytes=1.1e9, tolerance=tolerance))
    assert result["peak_resident"].verdict is expected
