from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

import numpy as np
import pytest

from pytest_ddpperf.metrics.launch_figures import (
    Moved,
    Within,
    busiest_cpu,
    moved_by_blocks,
    moved_step,
    of_cpu,
    of_rates,
    of_steps,
    of_tails,
    once,
    typical_step,
)
from pytest_ddpperf.metrics.table import series_of
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Measurement, Plan, Series
from pytest_ddpperf.stats.blocks import OWN_ALONE, OWN_IN_TURNS, variance_of
from pytest_ddpperf.stats.summaries import typical
from tests.factories import make_environment


def launch(*step_times: float) -> Launch:
    return Launch(
        round=0,
        ranks=(
            RankLaunch(
                rank=0, step_times=step_times, memory={}, loss=None, samples_per_step=None, tokens_per_step=None
            ),
        ),
        seconds=1.0,
    )


def test_a_figure_is_computed_once_for_each_launch() -> None:
    asked: list[Launch] = []

    @once
    def steps(one: Launch) -> int | None:
        asked.append(one)
        return len(one.step_times) or None

    some, none = launch(1.0, 2.0), launch()
    assert [steps(one) for one in (some, none, some, none)] == [2, None, 2, None]
    assert asked == [some, none]


def test_what_is_kept_changes_no_launch_and_follows_no_copy() -> None:
    one = launch(1.0, 2.0, 3.0, 4.0, 5.0)
    assert typical_step(one) == 2.5
    assert one == launch(1.0, 2.0, 3.0, 4.0, 5.0)
    assert "typical" not in repr(one)
    assert typical_step(replace(one, ranks=launch(7.0).ranks)) == 7.0


def test_figures_of_one_name_are_kept_apart() -> None:
    """Two functions of one module and one qualified name would overwrite each other; those of two scopes do not."""

    def shortest() -> int:
        @once
        def figure(_: Launch) -> int:
            return 1

        return figure(one)

    def longest() -> int:
        @once
        def figure(_: Launch) -> int:
            return 2

        return figure(one)

    one = launch(1.0)
    assert (shortest(), longest()) == (1, 2)


def rank(
    times: Sequence[float],
    blocks: Sequence[int] = (),
    *,
    cpu: float | None = None,
    cpu_blocks: Sequence[float] = (),
    number: int = 0,
) -> RankLaunch:
    return RankLaunch(
        rank=number,
        step_times=tuple(times),
        memory={},
        loss=None,
        samples_per_step=8.0,
        tokens_per_step=None,
        cpu_time=cpu,
        blocks=tuple(blocks),
        cpu_blocks=tuple(cpu_blocks),
    )


def measurement(*ranks: RankLaunch) -> Measurement:
    """Of one launch."""
    environment = make_environment(world_size=len(ranks))
    return Measurement(
        name="ddp",
        strategy="ddp",
        mode=None,
        plan=Plan(warmup=2, steps=5),
        environment=environment,
        launches=(Launch(round=0, ranks=ranks, seconds=1.0),),
    )


def known_cpu(one: RankLaunch) -> float:
    """The CPU time of a launch of one rank."""
    seconds = busiest_cpu(Launch(round=0, ranks=(one,), seconds=1.0))
    assert seconds is not None
    return seconds


def known(within: Within | None) -> Moved:
    """What the only launch knows."""
    assert within is not None
    (moved,) = within.moved
    return moved


LN2 = math.log(2)


def test_a_launch_that_ran_alone_is_cut_into_equal_blocks() -> None:
    """Of 1 1 and 2 2 s: without the first block a step takes 2 s, without the second 1 s. Their mean is ln 2 / 2."""
    within = of_steps(measurement(rank([1.0, 1.0, 2.0, 2.0])))
    assert known(within) == pytest.approx((-LN2 / 2, LN2 / 2))
    assert within.own == OWN_ALONE


def test_blocks_that_took_turns_are_those_that_count() -> None:
    """Of 1 1, 4 4 4 and 2: without one after the other 4 4 4 2, 1 1 2 and 1 1 4 4 4.

    The typical steps are the means of the faster three quarters: 10 / 3, (1 + 1) / 2 and (1 + 1 + 4 + 4) / 4.
    """
    moved = known(of_steps(measurement(rank([1.0, 1.0, 4.0, 4.0, 4.0, 2.0], [2, 3, 1]))))
    without = [math.log(10 / 3), math.log(1.0), math.log(2.5)]
    assert moved == pytest.approx([2 * (sum(without) / 3 - one) for one in without])
    assert sum(moved) == pytest.approx(0.0)


def test_blocks_that_do_not_add_up_to_the_steps_are_not_believed() -> None:
    times = [1.0, 1.0, 2.0, 2.0]
    assert of_steps(measurement(rank(times, [2, 3]))) == of_steps(measurement(rank(times)))


def test_a_step_of_a_block_lasts_as_long_as_its_slowest_rank() -> None:
    both = rank([1.0, 1.0, 2.0, 1.0]), rank([1.0, 1.0, 1.0, 2.0], number=1)
    assert known(of_steps(measurement(*both))) == pytest.approx((-LN2 / 2, LN2 / 2))


@pytest.mark.parametrize("times", [(), (1.0,), (1.0, 1.0, 1.0), (0.0, 0.0, 1.0, 1.0)], ids=len)
def test_a_single_block_or_a_clock_that_stands_still_tells_nothing(times: tuple[float, ...]) -> None:
    assert moved_step(Launch(round=0, ranks=(rank(times),), seconds=1.0)) == ()


def test_of_a_mean_it_is_the_textbooks_standard_error() -> None:
    """Relative to the mean, for it is the logarithm that they move."""
    draw = np.random.default_rng(3)
    means = tuple(float(one) for one in draw.normal(0.1, 0.002, 45))
    moved = moved_by_blocks(means, [1] * 45, fmean)
    assert math.sqrt(variance_of(moved)) == pytest.approx(stdev(means) / math.sqrt(45) / 0.1, rel=0.02)


def test_blocks_tell_by_how_much_the_cpu_time_of_launches_scatters() -> None:
    """Of 400 launches, whose blocks are disturbed by exponential times; 45 blocks are enough for the jackknife."""
    draw = np.random.default_rng(5)
    launches = [
        rank([0.1] * 45, [1] * 45, cpu=0.1, cpu_blocks=[float(one) for one in 0.1 + draw.exponential(0.02, 45)])
        for _ in range(400)
    ]
    figures = [math.log(known_cpu(one)) for one in launches]
    told = [variance_of(known(of_cpu(measurement(one)))) for one in launches]
    assert math.sqrt(fmean(told)) == pytest.approx(stdev(figures), rel=0.15)


def test_a_longer_step_is_a_lower_rate() -> None:
    one = measurement(rank([1.0, 1.0, 2.0, 2.0]))
    assert known(of_rates(one)) == pytest.approx((LN2 / 2, -LN2 / 2))
    assert of_rates(one).own == OWN_ALONE


def test_a_block_with_a_pause_moves_the_tail() -> None:
    """Four blocks of a second a step, and a pause of another second in one of eight: 9 / 8 of the typical step.

    Without its block there is none, 1; without another one it is 7 / 6.
    """
    within = of_tails(measurement(rank([1.0] * 7 + [2.0], [2] * 4)))
    without = [math.log(7 / 6)] * 3 + [0.0]
    assert known(within) == pytest.approx([3 * (sum(without) / 4 - one) for one in without])
    assert within.own < OWN_IN_TURNS  # what makes a whole launch slower cancels out in it


def test_cpu_time_is_that_of_the_least_blocks_of_the_busiest_rank() -> None:
    """Blocks of 2 and 3 steps at 1 and 2 s each: without the first 2 s a step, without the second 1 s.

    Of blocks of 1, 2 and 3 steps at 3, 1.5 and 1 s a third of the steps is two, of the last one. Without that one they
    are a step of 1.5 s.
    """
    busy = rank([1.0] * 5, [2, 3], cpu=1.6, cpu_blocks=[1.0, 2.0])
    idle = rank([1.0] * 5, [2, 3], cpu=1.7, cpu_blocks=[0.1, 2.9], number=1)
    assert busiest_cpu(Launch(round=0, ranks=(idle, busy), seconds=1.0)) == pytest.approx(1.0)
    assert known(of_cpu(measurement(idle, busy))) == pytest.approx((-LN2 / 2, LN2 / 2))
    three = rank([1.0] * 6, [1, 2, 3], cpu=1.5, cpu_blocks=[3.0, 1.5, 1.0])
    assert known_cpu(three) == pytest.approx(1.0)
    without = [0.0, 0.0, math.log(1.5)]
    assert known(of_cpu(measurement(three))) == pytest.approx([2 * (sum(without) / 3 - one) for one in without])


def test_cpu_time_of_a_launch_that_ran_alone_is_that_of_all_steps() -> None:
    assert known_cpu(rank([1.0] * 5, cpu=1.6)) == 1.6


@pytest.mark.parametrize(
    "other",
    [
        rank([1.0] * 4, [2, 2], number=1),
        rank([1.0] * 4, [2, 2], cpu=1.0, cpu_blocks=[1.0], number=1),
        rank([1.0] * 4, [2, 2], cpu=0.0, cpu_blocks=[0.0, 0.0], number=1),
    ],
    ids=["not told", "a single block", "no ticks of the clock"],
)
def test_cpu_time_that_a_rank_does_not_tell_is_not_known(other: RankLaunch) -> None:
    known = rank([1.0] * 4, [2, 2], cpu=0.0 if other.cpu_time == 0 else 2.0, cpu_blocks=[0.0, 0.0])
    assert of_cpu(measurement(known, other)).moved == ((),)


def test_what_was_skipped_shrinks_its_block() -> None:
    """As ``training.loop`` tells it: of blocks of two and four, one step of the second is left out."""
    assert known(of_steps(measurement(rank([1.0, 1.0, 2.0, 2.0, 2.0], [2, 3])))) == pytest.approx((-LN2 / 2, LN2 / 2))


def on_devices(ranks: int, steps: int, *, jitter: float = 0.0, pauses: Sequence[int] = (), blocks: int = 10) -> Launch:
    """Steps of 10 ms whose marks jitter on each rank by itself, and pauses of another 10 ms in some steps."""
    draw = np.random.default_rng(7)
    length = np.full(blocks * steps, 0.01)
    length[list(pauses)] += 0.01
    told = []
    for number in range(ranks):
        marks = np.concatenate([[0.0], np.cumsum(length)])
        # The mark at the end of a block, and the one at the beginning of the next, are two.
        times = [
            np.diff(marks[at : at + steps + 1] + draw.normal(0.0, jitter, steps + 1))
            for at in range(0, blocks * steps, steps)
        ]
        one = rank([float(time) for time in np.concatenate(times)], [steps] * blocks, number=number)
        told.append(replace(one, unseen=0.0))
    return Launch(round=0, ranks=tuple(told), seconds=1.0)


def test_jitter_of_eight_ranks_is_no_loss_of_efficiency() -> None:
    """Marks jitter by 0.2 ms, 2 % of a step, and so by 0.06 % of a block of a hundred steps.

    By the slowest rank of each step eight ranks would seem 4 % less efficient than one.
    """
    one, eight = (on_devices(ranks, 100, jitter=2e-4) for ranks in (1, 8))
    assert typical(one.step_times) / typical(eight.step_times) < 0.96
    assert typical_step(one) / typical_step(eight) == pytest.approx(1.0, abs=1e-3)
    assert typical_step(eight) == pytest.approx(0.01, rel=1e-3)


def test_work_that_comes_back_within_a_block_is_in_the_typical_step_of_a_device() -> None:
    """Every tenth step takes twice as long: 10 % more, which the fastest 75 % of steps are blind to."""
    pausing = on_devices(2, 20, pauses=range(0, 200, 10))
    assert typical(pausing.step_times) == pytest.approx(0.01)
    assert typical_step(pausing) == pytest.approx(0.011)


def test_a_block_on_devices_lasts_as_long_as_on_its_slowest_rank() -> None:
    """3 and 5 s on one rank, 4 and 4 s on the other: 4 and 5 s, of two and three steps; and by 5 / 3 or 2 s a step."""
    ranks = [
        replace(rank([1.0, 2.0, 1.0, 1.0, 3.0], [2, 3]), unseen=0.0),
        replace(rank([2.0, 2.0, 1.0, 2.0, 1.0], [2, 3], number=1), unseen=0.0),
    ]
    one = Launch(round=0, ranks=tuple(ranks), seconds=1.0)
    assert typical_step(one) == pytest.approx(9 / 5)
    half = math.log(2 / (5 / 3)) / 2
    assert known(of_steps(measurement(*ranks))) == pytest.approx((half, -half))
    single = Launch(round=0, ranks=(replace(rank([1.0] * 4, [4]), unseen=0.0),), seconds=1.0)
    assert (typical_step(single), moved_step(single)) == (1.0, ())


def by_name(one: Measurement) -> dict[str, Series]:
    return {series.metric: series for series in series_of(one)}


def test_series_know_their_scatter_and_single_launches_have_an_interval() -> None:
    one = measurement(rank([0.1, 0.11] * 10))
    series = by_name(one)
    step = series["step_time"]
    assert (step.within, step.own) == (of_steps(one).moved, OWN_ALONE)
    assert series["throughput"].within == of_rates(one).moved
    assert (series["step_time_tail"].within, series["step_time_tail"].own) == (of_tails(one).moved, of_tails(one).own)
    assert step.interval is not None
    assert step.interval.low < step.value < step.interval.high


def test_what_is_not_made_of_steps_knows_nothing() -> None:
    one = measurement(replace(rank([0.1] * 20), memory={"peak_resident": 1e6}, loss=1.0))
    assert [(by_name(one)[name].within, by_name(one)[name].interval) for name in ("peak_resident", "final_loss")] == [
        ((), None)
    ] * 2
