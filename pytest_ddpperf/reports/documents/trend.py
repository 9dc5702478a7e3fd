"""The trend document: ``ddpperf trend --json`` writes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Literal

from pytest_ddpperf.baselines.history.change_points import CONFIDENCE
from pytest_ddpperf.baselines.history.trend import Trend
from pytest_ddpperf.records.measurement import Better, Interval, Mode, Scale
from pytest_ddpperf.reports.document import Document, Natural, Positive, about


def trend_document(trends: Sequence[Trend], metric: str) -> dict[str, Any]:
    """The trends as JSON data."""
    return TrendsData.filled_from(SimpleNamespace(schema="pytest-ddpperf/trend/1", metric=metric, trends=trends))


def _changes(trend: Trend) -> list[SimpleNamespace]:
    places = ("before", "after", "earliest", "latest")
    return [
        SimpleNamespace(
            kind=change.kind,
            worse=trend.worsening(change) > 0,
            size=change.size,
            interval=Interval(low=change.low, high=change.high, confidence=CONFIDENCE),
            evidence=change.evidence,
            **{place: trend.points[getattr(change, place)].run for place in places},
        )
        for change in trend.changes
    ]


class TrendIntervalData(Document):
    """A confidence interval."""

    low: float = about()
    high: float = about()
    confidence: float = about()


class RunData(Document):
    """The code that was measured."""

    commit: str | None = about("Full hash; null outside of a git repository.")
    dirty: bool = about("Whether tracked files differed from the commit.")
    date: str = about("Of the commit, else of the run; ISO 8601, UTC.", lambda run: run.commit_date or run.date)


class PointData(Document, inside="run"):
    """The runs of one commit."""

    commit: str | None = about("Full hash; null outside of a git repository.")
    dirty: bool = about("Whether tracked files differed from the commit.")
    date: str = about(
        "Of the commit, else of the run; ISO 8601, UTC.", lambda point: point.run.commit_date or point.run.date
    )
    branch: str | None = about()
    recorded: str = about("When the first of its runs was recorded; ISO 8601, UTC.", lambda point: point.run.date)
    runs: Positive = about()
    value: float = about("Of several runs their mean, geometric for ratios.")
    interval: TrendIntervalData | None = about("That of the launches of a single run.")
    level: float = about("The value without noise, as fitted.")
    change: float | None = about("Of the value against the level before; null for the first point.")


class ChangeData(Document):
    """A change that lasts."""

    kind: Literal["step", "creep"] = about()
    worse: bool = about()
    size: float = about()
    interval: TrendIntervalData = about()
    before: RunData = about("The last commit of the old level.")
    after: RunData = about("The first commit of the new level.")
    earliest: RunData = about("A step lies after this commit with 95 % confidence.")
    latest: RunData = about("And not after this one.")
    evidence: float | None = about(
        "By how much a change of the other kind fits worse, as twice a logarithm of likelihood; null for counts, "
        "which have no noise."
    )


class TrendData(Document, inside="benchmark"):
    """One variant of a benchmark on one kind of machine."""

    test: str = about("pytest node id.")
    name: str = about("Of the variant within its test.")
    strategy: str = about()
    mode: Mode | None = about("Of a point of a scaling curve.")
    recipe: dict[str, str] = about(
        "The settings that are not the defaults.", lambda trend: json.loads(trend.benchmark.recipe)
    )
    world_size: Positive = about()
    environment_key: str = about()
    steps: Natural | None = about(
        "After how many steps, warm-up included, a final_loss is; null for other metrics, and where that was not "
        "recorded."
    )
    beside: bool = about(
        "Whether steps were timed in turns with those of other launches, and so last a little longer; false for "
        "counts, which do not depend on it.",
        "benchmark.interleaved",
    )
    unit: str = about()
    better: Better = about()
    scale: Scale = about("Changes are relative for ratios, else absolute.")
    points: list[PointData] = about("One for each commit, in order.")
    changes: list[ChangeData] = about("In order.", _changes)
    outliers: list[Natural] = about("Numbers, from 0, of the points that are out of line with their neighbours.")


class TrendsData(Document):
    """What ddpperf trend --json writes: a metric over commits, and where it changed."""

    schema: Literal["pytest-ddpperf/trend/1"] = about("Name and version of this format.")
    metric: str = about("What all trends are of.")
    trends: list[TrendData] = about(
        "Of a test: one for each variant, number of ranks and environment; of all tests: those that changed."
    )
