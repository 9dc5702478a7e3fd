"""The trend document: ``ddpperf trend --json`` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pytest_ddpperf.baselines.history.trend import Trend
from pytest_ddpperf.reports.documents.entries import JsonEntry


class TrendsFile(JsonEntry, frozen=True):
    """What ddpperf trend --json writes: a metric over commits, and where it changed; places are numbers of points."""

    schema: Literal["pytest-ddpperf/trend/2"]  # name and version of this format
    metric: str  # what all trends are of
    trends: tuple[Trend, ...]  # of a test: one for each variant, number of ranks and environment; else changed ones


def trend_document(trends: Sequence[Trend], metric: str) -> dict[str, Any]:
    """The trends as a document."""
    return {"schema": "pytest-ddpperf/trend/2", "metric": metric, "trends": [*trends]}
