from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.metrics import findings_of, series_of
from pytest_ddpperf.metrics.memory import GROWTH_SLACK
from pytest_ddpperf.records import Environment, Launch, Measurement, Plan, RankLaunch

MIB = 2**20


def steady(growth: int) -> tuple[int, ...]:
    """Readings around ten steps that each keep so many bytes."""
    return tuple(5 * MIB + growth * step for step in range(11))


def measurement(*launches: Sequence[tuple[int, ...]]) -> Measurement:
    """Of launches, each given by what its ranks held."""
    environment = Environment("cpu", "chip", 0, "chip", 8, 1, 1, "gloo", len(launches[0]), "2.13", None)
    done = tuple(
        Launch(i, tuple(RankLaunch(r, (1.0,), {}, None, None, None, held=held) for r, held in enumerate(ranks)), 1.0)
        for i, ranks in enumerate(launches)
    )
    return Measurement("ddp", "ddp", None, Plan(5, 10), environment, done)


def test_growth_is_that_of_the_rank_that_grows_most() -> None:
    series = {one.metric: one for one in series_of(measurement([steady(10), steady(30)], [steady(50), steady(20)]))}
    growth = series["memory_growth"]
    assert growth.samples == (30, 50)
    assert (growth.unit, growth.scale, growth.value, growth.gated) == ("B", "difference", 40, True)


def test_what_a_rank_cannot_read_the_group_does_not_have() -> None:
    assert "memory_growth" not in {one.metric for one in series_of(measurement([steady(10), ()]))}
    assert findings_of(measurement([steady(10), ()])) == ()


def test_a_leak_is_named_with_its_rank() -> None:
    """On rank 1 by 1.2 MiB in each launch, on rank 0 by less."""
    (finding,) = findings_of(measurement(*[[steady(1000), steady(1_258_291)]] * 3))
    assert finding.startswith("memory grows by 1.20 MiB a step on rank 1, seen in 10 steps of each of 3 launches")


def test_growth_within_the_slack_is_not_named() -> None:
    assert findings_of(measurement(*[[steady(GROWTH_SLACK)]] * 3)) == ()
    assert len(findings_of(measurement(*[[steady(GROWTH_SLACK + 1)]] * 3))) == 1


def test_growth_that_only_one_launch_shows_is_not_named() -> None:
    """0, 0 and 3 MiB: 1 MiB a step on average, but the interval reaches below nothing."""
    assert findings_of(measurement([steady(0)], [steady(0)], [steady(3 * MIB)])) == ()
