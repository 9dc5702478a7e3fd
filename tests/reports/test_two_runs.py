"""Two results documents beside each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pytest_ddpperf.baselines.jsonfile import render
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.documents.reading import typed
from pytest_ddpperf.reports.documents.results import ResultsData
from pytest_ddpperf.reports.formats.page.two_runs import two_runs_page
from pytest_ddpperf.reports.two_runs import two_runs
from tests.factories import make_launch, make_results_document
from tests.reports.conftest import as_before
from tests.reports.formats.page.test_pages import data_of

Make = Callable[..., Result]
Compare = Callable[..., Comparison]
QUIET = ((0.010,) * 4,) * 3
PAUSES = ((0.010, 0.010, 0.010, 0.030),) * 3  # 15 ms on average
ANEW = "step_time is the mean of all steps, computed anew from the steps of both files: "


@pytest.fixture
def run(make_result: Make, make_comparison: Compare) -> Callable[..., ResultsData]:
    """A document of a benchmark with these steps of its launches, whose usual ones take 10 ms, twice as fast as base.

    Before, that was its step time.
    """

    def made(launches: Sequence[tuple[float, ...]], *, before: bool = False) -> ResultsData:
        means = tuple(sum(times) / len(times) for times in launches)
        samples = (0.010,) * len(launches) if before else means
        metrics = (
            make_comparison("step_time", sum(samples) / len(samples), Verdict.NEW, samples=samples),
            make_comparison("speedup", 2.0, Verdict.NEW, samples=(2.0,) * len(launches)),
            make_comparison("peak_resident", 1e8, Verdict.NEW, samples=(1e8,) * len(launches)),
        )
        timed = tuple(make_launch(times, round=number) for number, times in enumerate(launches))
        document: dict[str, Any] = json.loads(
            render(make_results_document([make_result(comparisons=metrics, measured={"launches": timed})], None))
        )
        return typed(ResultsData, as_before(document) if before else document)

    return made


def told(before: ResultsData, after: ResultsData) -> tuple[dict[str, tuple[str, str, str]], list[str]]:
    """By metric both values and the change; and the notes but for the last one, on what an interval has."""
    rows, notes = two_runs(before, after)
    return {row.metric: (row.before, row.after, row.change) for row in rows}, notes[:-1]


def test_the_step_time_of_a_file_of_before_is_computed_anew_from_its_steps(run: Callable[..., ResultsData]) -> None:
    """Its pauses make it 15 ms; quotients of times in it are not those of today."""
    rows, notes = told(run(PAUSES, before=True), run(PAUSES))
    assert rows["step_time"] == ("15.0 ms", "15.0 ms", "+0.0 % [+0.0 % .. +0.0 %]")
    assert rows.keys() == {"step_time", "peak_resident"}
    assert notes == [f"{ANEW}the first file is from before it was that"]
    rows, notes = told(run(QUIET), run(PAUSES, before=True))
    assert rows["step_time"] == ("10.0 ms", "15.0 ms", "+50.0 % [+50.0 % .. +50.0 %]")
    assert notes == [f"{ANEW}the second file is from before it was that"]


def test_quotients_of_times_of_two_files_of_before_are_compared(run: Callable[..., ResultsData]) -> None:
    rows, notes = told(run(QUIET, before=True), run(PAUSES, before=True))
    assert rows.keys() == {"step_time", "speedup", "peak_resident"}
    assert rows["step_time"][:2] == ("10.0 ms", "15.0 ms")
    assert notes == [f"{ANEW}both files are from before it was that"]


def test_files_of_today_are_compared_as_they_are(run: Callable[..., ResultsData]) -> None:
    rows, notes = told(run(QUIET), run(PAUSES))
    assert rows["step_time"][:2] == ("10.0 ms", "15.0 ms")
    assert rows.keys() == {"step_time", "speedup", "peak_resident"}
    assert notes == []


def test_a_page_draws_the_launches_that_were_computed_anew(run: Callable[..., ResultsData]) -> None:
    charts = data_of(two_runs_page(run(PAUSES, before=True), run(QUIET)))["charts"]
    (steps,) = [chart for chart in charts if chart["title"] == "step_time by launch"]
    assert [(each["name"], each["y"]) for each in steps["series"]] == [("after", [10] * 3), ("before", [15] * 3)]
    assert steps["x"]["name"] == "launch"


def test_a_change_whose_interval_says_nothing_is_noisy(run: Callable[..., ResultsData]) -> None:
    """Launches of 5 and 20 ms are 10 ms in the middle; a factor of 4 between two of them leaves any change open."""
    rows, _ = told(run(((0.005,), (0.020,))), run(((0.005,), (0.020,))))
    assert rows["step_time"][2] == "+0.0 % (noisy)"
