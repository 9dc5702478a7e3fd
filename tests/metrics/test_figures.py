from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_ddpperf.metrics.table import series_of
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Measurement, Plan, Series
from tests.factories import make_environment, make_rank_launch


def measurement(*launches: tuple[RankLaunch, ...], **fields: Any) -> Measurement:
    rounds = tuple(Launch(round=i, ranks=ranks, seconds=1.0) for i, ranks in enumerate(launches))
    environment = fields.pop("environment", make_environment(world_size=len(launches[0])))
    defaults: dict[str, Any] = {"name": "ddp", "strategy": "ddp", "mode": None, "plan": Plan(warmup=2, steps=5)}
    return Measurement(**{**defaults, **fields}, environment=environment, launches=rounds)


def found(measured: Measurement) -> dict[str, Series]:
    return {series.metric: series for series in series_of(measured)}


def test_a_launch_has_its_shortest_and_longest_step_and_their_scatter() -> None:
    """The group's steps are 1, 3 and 5 s in one launch, and 2, 2, 5 in the other; standard deviations 2 and root 3."""
    slower = measurement(
        (make_rank_launch(0, (1.0, 2.0, 5.0)), make_rank_launch(1, (0.5, 3.0, 4.0))),
        (make_rank_launch(0, (2.0, 2.0, 5.0)), make_rank_launch(1, (2.0, 1.0, 4.0))),
    )
    series = found(slower)
    assert series["step_time_min"].samples == (1.0, 2.0)
    assert series["step_time_max"].samples == (5.0, 5.0)
    assert series["step_time_scatter"].samples == pytest.approx((2 / 3, math.sqrt(3) / 3))
    assert not any(series[f"step_time_{name}"].gated for name in ("min", "max", "scatter"))
    assert "step_time_scatter" not in found(measurement((make_rank_launch(0, (1.0,)),)))


def test_the_mean_loss_is_that_of_steps_and_ranks() -> None:
    ranks = tuple(make_rank_launch(i, mean_loss=loss, loss=0.5) for i, loss in enumerate((-3.0, 1.0)))
    series = found(measurement(ranks))
    assert (series["mean_loss"].samples, series["mean_loss"].gated) == ((-1.0,), False)
    assert "mean_loss" not in found(measurement((ranks[0], make_rank_launch(1, loss=0.5))))
