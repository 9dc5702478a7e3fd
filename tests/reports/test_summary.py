"""What a run ends with on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ddpperf.reports.summary import SummaryData, summary_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_ddpperf.records.results import Result

    Make = Callable[..., Result]


def test_a_run_without_benchmarks_tells_nothing() -> None:
    assert summary_parts(SummaryData()) == []


def test_each_part_that_has_anything_to_say_has_a_title(make_result: Make) -> None:
    told = SummaryData(
        results=[make_result()],
        complaints=["no commit is known"],
        stored=["baselines/a.json: stored"],
        recorded="recorded as run 3 of h.sqlite",
    )
    parts = dict(summary_parts(told, 80, brief=True))

    assert list(parts) == ["ddpperf", "ddpperf errors", "ddpperf baselines", "ddpperf history"]
    assert "test_step[bucketed]" in parts["ddpperf"]
    assert parts["ddpperf errors"] == "no commit is known"
    assert parts["ddpperf baselines"].strip() == "baselines/a.json: stored"
    assert parts["ddpperf history"] == "recorded as run 3 of h.sqlite"


def test_what_tells_only_why_is_left_out_of_a_brief_summary(make_result: Make) -> None:
    told = SummaryData(results=[make_result()])
    brief, full = (dict(summary_parts(told, brief=brief)) for brief in (True, False))

    assert set(brief) <= set(full)
    assert "ddpperf phases" not in brief
