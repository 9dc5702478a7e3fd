"""Measurements for tests of metrics, and their series by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_ddpperf.metrics.table import series_of
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Measurement, Series
from tests.factories import make_environment, make_measurement, make_rank_launch


def measurement(*launches: Sequence[RankLaunch], **fields: Any) -> Measurement:
    """Of launches, each given by its ranks."""
    rounds = tuple(Launch(round=i, ranks=tuple(ranks), seconds=1.0) for i, ranks in enumerate(launches))
    environment = make_environment(world_size=len(launches[0]))
    return make_measurement(**{"environment": environment, **fields}, launches=rounds)


def of_ranks(field: str, *launches: Sequence[Any]) -> Measurement:
    """Of launches, each given by this field of its ranks."""
    return measurement(*([make_rank_launch(r, **{field: one}) for r, one in enumerate(ranks)] for ranks in launches))


def by_name(measured: Measurement) -> dict[str, Series]:
    """The series of a measurement."""
    return {series.metric: series for series in series_of(measured)}


def samples(measured: Measurement, metric: str) -> tuple[float, ...] | None:
    """The samples of a metric; None if the measurement does not have it."""
    found = by_name(measured).get(metric)
    return None if found is None else found.samples
