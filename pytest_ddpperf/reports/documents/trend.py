"""The trend document: ``ddpperf trend --json`` writes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Literal

from pytest_ddpperf.baselines.document import Document, Natural, Positive, about
from pytest_ddpperf.baselines.history.change_points import CONFIDENCE, TrendChange
from pytest_ddpperf.baselines.history.database import Benchmark, HistoryRun
from pytest_ddpperf.baselines.history.trend import Point, Trend
from pytest_ddpperf.records.measurement import Better, Interval, Mode, Scale


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


class RunData(Document, of=[HistoryRun]):
    """The code that was measured."""

    commit: str | None = about("Full hash; null outside of a git repository.")
    dirty: bool
    date: str = about(
        "Of the commit, else of the run; ISO 8601, UTC.",
        lambda one: getattr(one, "run", one).commit_date or getattr(one, "run", one).date,
    )


class PointData(RunData, inside="run", of=[Point]):
    """The runs of one commit."""

    branch: str | None
    recorded: str = about("When the first of its runs was recorded; ISO 8601, UTC.", "run.date")
    runs: Positive
    value: float = about("Of several runs their mean, geometric for ratios.")
    interval: Interval | None
    level: float
    change: float | None


class ChangeData(Document, of=[TrendChange]):
    """A change that lasts."""

    kind: Literal["step", "creep"]
    worse: bool = about("Whether it is no improvement.")
    size: float
    interval: Interval = about("Where the size lies.")
    before: RunData = about("The last commit of the old level.")
    after: RunData = about("The first commit of the new level.")
    earliest: RunData = about("A step lies after this commit with 95 % confidence.")
    latest: RunData = about("And not after this one.")
    evidence: float | None = about(
        "By how much a change of the other kind fits worse, as twice a logarithm of likelihood; null for counts, "
        "which have no noise."
    )


class TrendData(Document, inside="benchmark", of=[Trend, Benchmark]):
    """One variant of a benchmark on one kind of machine."""

    test: str = about("pytest node id.")
    name: str = about("Of the variant within its test.")
    strategy: str
    mode: Mode | None = about("Of a point of a scaling curve.")
    recipe: dict[str, str] = about(
        "The settings that are not the defaults.", lambda trend: json.loads(trend.benchmark.recipe)
    )
    world_size: Positive
    environment_key: str
    steps: Natural | None
    beside: bool = about(source="benchmark.interleaved")
    unit: str
    better: Better
    scale: Scale = about("Changes are relative for ratios, else absolute.")
    points: list[PointData]
    changes: list[ChangeData] = about("In order.", _changes)
    outliers: list[Natural]


class TrendsData(Document):
    """What ddpperf trend --json writes: a metric over commits, and where it changed."""

    schema: Literal["pytest-ddpperf/trend/1"] = about("Name and version of this format.")
    metric: str = about("What all trends are of.")
    trends: list[TrendData] = about(
        "Of a test: one for each variant, number of ranks and environment; of all tests: those that changed."
    )
