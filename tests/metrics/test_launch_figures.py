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
    long_steps_of,
    mean_step,
    moved_step,
    of_cpu,
    of_rates,
    of_steps,
    once,
    step_time_median,
)
from pytest_ddpperf.metrics.table import series_of
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Measurement, Plan, Series
from pytest_ddpperf.records.phases import FORWARD, PHASES, PhaseTimes
from pytest_ddpperf.stats.launches import OWN_ALONE, variance_of
from tests.factories import make_environment, make_measurement, make_rank_launch


def launch(*step_times: float) -> Launch:
    return Launch(round=0, ranks=(make_rank_launch(rank=0, step_times=step_times),), seconds=1.0)


def test_a_figure_is_computed_once_for_each_launch() -> None:
    asked: list[Launch] = []

    @once
    def steps(one: Launch) -> int | None:
        asked.append(one)
        return len(one.step_times) or None

    some, none = launch(1.0, 2.0), launch()
    assert [steps(one) for one in (some, none, some, none)] == [2, None, 2, None]
    assert asked == [some, none]


def test_the_mean_step_is_that_of_all_steps_however_long_they_are() -> None:
    """Nine of 10 ms and one of 0.7 s, in two blocks: 0.79 s of ten steps. The median step hardly knows of it."""
    times = (0.01,) * 9 + (0.7,)
    one = Launch(round=0, ranks=(rank(times, [4, 6]),), seconds=1.0)
    assert mean_step(one) == pytest.approx(0.079, rel=1e-12)
    assert step_time_median(one) == 0.01


def test_a_step_of_the_mean_and_of_the_median_lasts_as_long_as_its_slowest_rank() -> None:
    """1 3 2 and 2 1 5 are 2 3 5."""
    one = Launch(round=0, ranks=(rank([1.0, 3.0, 2.0]), rank([2.0, 1.0, 5.0], number=1)), seconds=1.0)
    assert (mean_step(one), step_time_median(one)) == (10 / 3, 3.0)


def test_what_is_kept_changes_no_launch_and_follows_no_copy() -> None:
    one = launch(1.0, 2.0, 3.0, 4.0, 5.0)
    assert mean_step(one) == 3.0
    assert one == launch(1.0, 2.0, 3.0, 4.0, 5.0)
    assert "mean_step" not in repr(one)
    assert mean_step(replace(one, ranks=launch(7.0).ranks)) == 7.0


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
    return make_rank_launch(
        rank=number,
        step_times=tuple(times),
        samples_per_step=8.0,
        cpu_time=cpu,
        blocks=tuple(blocks),
        cpu_blocks=tuple(cpu_blocks),
    )


def measurement(*ranks: RankLaunch) -> Measurement:
    """Of one launch."""
    environment = make_environment(world_size=len(ranks))
    return make_measurement(
        plan=Plan(warmup=2, steps=5), environment=environment, launches=(Launch(round=0, ranks=ranks, seconds=1.0),)
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
    """Of 1 1, 4 4 4 and 2: without one after the other 4 4 4 2, 1 1 2 and 1 1 4 4 4, with means of 3.5, 4/3 and 2.8."""
    moved = known(of_steps(measurement(rank([1.0, 1.0, 4.0, 4.0, 4.0, 2.0], [2, 3, 1]))))
    without = [math.log(3.5), math.log(4 / 3), math.log(2.8)]
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
    times = [float(one) for one in draw.normal(0.1, 0.002, 45)]
    moved = known(of_steps(measurement(rank(times, [1] * 45))))
    assert math.sqrt(variance_of(moved)) == pytest.approx(stdev(times) / math.sqrt(45) / 0.1, rel=0.02)


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


def test_a_pause_counts_in_the_scatter_of_a_launch_as_far_as_it_moves_the_mean() -> None:
    """Four blocks of two steps of 1 s, and a pause of 7 s in the last: 15 s of eight steps.

    Without its block a step takes 1 s; without another one 13 / 6 s.
    """
    without = [math.log(13 / 6)] * 3 + [0.0]
    moved = known(of_steps(measurement(rank([1.0] * 7 + [8.0], [2] * 4))))
    assert moved == pytest.approx([3 * (sum(without) / 4 - one) for one in without])


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
    assert fmean(one.step_times) / fmean(eight.step_times) < 0.97
    assert mean_step(one) / mean_step(eight) == pytest.approx(1.0, abs=1e-3)
    assert mean_step(eight) == pytest.approx(0.01, rel=1e-3)


def test_pauses_are_in_the_mean_step_of_a_device_as_of_the_host() -> None:
    """Every tenth step takes twice as long: 10 % more."""
    pausing = on_devices(2, 20, pauses=range(0, 200, 10))
    on_host = replace(pausing, ranks=tuple(replace(each, unseen=None) for each in pausing.ranks))
    assert mean_step(pausing) == pytest.approx(0.011)
    assert mean_step(on_host) == pytest.approx(0.011)
    assert step_time_median(pausing) == pytest.approx(0.01)


def test_a_block_on_devices_lasts_as_long_as_on_its_slowest_rank() -> None:
    """3 and 5 s on one rank, 4 and 4 s on the other: 4 and 5 s, of two and three steps; and by 5 / 3 or 2 s a step."""
    ranks = [
        replace(rank([1.0, 2.0, 1.0, 1.0, 3.0], [2, 3]), unseen=0.0),
        replace(rank([2.0, 2.0, 1.0, 2.0, 1.0], [2, 3], number=1), unseen=0.0),
    ]
    one = Launch(round=0, ranks=tuple(ranks), seconds=1.0)
    assert mean_step(one) == pytest.approx(9 / 5)
    half = math.log(2 / (5 / 3)) / 2
    assert known(of_steps(measurement(*ranks))) == pytest.approx((half, -half))
    single = Launch(round=0, ranks=(replace(rank([1.0] * 4, [4]), unseen=0.0),), seconds=1.0)
    assert (mean_step(single), moved_step(single)) == (1.0, ())


def by_name(one: Measurement) -> dict[str, Series]:
    return {series.metric: series for series in series_of(one)}


def test_series_know_their_scatter_and_single_launches_have_an_interval() -> None:
    one = measurement(rank([0.1, 0.11] * 10))
    series = by_name(one)
    step = series["step_time"]
    assert (step.within, step.own) == (of_steps(one).moved, OWN_ALONE)
    assert series["throughput"].within == of_rates(one).moved
    assert step.interval is not None
    assert step.interval.low < step.value < step.interval.high


def test_the_median_step_of_few_launches_has_no_interval() -> None:
    one = measurement(rank([0.1, 0.11] * 10))
    two = replace(one, launches=(one.launches[0], replace(one.launches[0], ranks=(rank([0.12] * 20),))))
    median = by_name(two)["step_time_median"]
    assert (median.within, median.interval, median.gated) == ((), None, False)


LONG = [0.01] * 9 + [0.11]  # the mean is 0.02 s, the median 0.01


def of_launches(*launches: Sequence[float]) -> Measurement:
    """Of one rank, whose launches have these steps."""
    one = measurement(rank(launches[0]))
    made = tuple(Launch(round=i, ranks=(rank(times),), seconds=1.0) for i, times in enumerate(launches))
    return replace(one, launches=made)


def test_values_are_those_of_all_steps_of_all_launches() -> None:
    """Of launches of equal length: the mean of all steps, and all samples over all seconds; each step has 8 samples.

    Long steps in one launch alone count as much as if they were in each.
    """
    launches = [0.01] * 10, [0.012] * 10, LONG
    steps = [time for times in launches for time in times]
    series = by_name(of_launches(*launches))
    assert series["step_time"].value == pytest.approx(fmean(steps), rel=1e-12)
    assert series["throughput"].value == pytest.approx(8 * len(steps) / math.fsum(steps), rel=1e-12)
    assert series["throughput_per_rank"].value == series["throughput"].value
    assert series["step_time"].value * series["throughput"].value == pytest.approx(8)
    assert series["step_time_median"].value == pytest.approx((0.01 + 0.012 + 0.01) / 3)


def test_the_interval_of_a_mean_is_that_of_the_logarithms_around_it() -> None:
    """Samples of 1, 1.1 and 1.21 s: the geometric mean is 1.1, the mean 3.31 / 3. Of single steps no scatter is known.

    Student's t of 2 degrees is 4.3027, and the error of the mean of logarithms ln 1.1 / sqrt(3).
    """
    series = by_name(of_launches([1.0], [1.1], [1.21]))
    half = 4.3027 * math.log(1.1) / math.sqrt(3)
    for name, value in (("step_time", 3.31 / 3), ("throughput", 8 * 3 / 3.31)):
        found = series[name]
        assert found.value == pytest.approx(value)
        assert found.interval is not None
        assert math.log(found.interval.high / value) == pytest.approx(half, rel=1e-4)
        assert math.log(value / found.interval.low) == pytest.approx(half, rel=1e-4)


def test_an_epoch_and_a_rate_of_flops_are_made_of_the_mean_step_too() -> None:
    """10 steps of an epoch; 3e9 FLOPs in each step."""
    one = of_launches([0.01] * 10, LONG)
    ranks = [replace(launch.ranks[0], epoch_steps=10.0) for launch in one.launches]
    counts = Counts(totals={"flops": 3e9}, details={}, unstable={})
    launches = tuple(replace(each, ranks=(own,)) for each, own in zip(one.launches, ranks, strict=True))
    series = by_name(replace(one, launches=launches, counts=counts))
    assert series["epoch_time"].value == pytest.approx(0.15)
    assert series["flops_rate"].value == pytest.approx(3e9 / 0.015)


def test_long_steps_are_those_of_the_group_in_all_launches() -> None:
    """Rank 1 has the long step of 0.11 s of the second launch: 0.11 s of 0.1 + 0.2 s."""
    calm, paused = (rank(times, number=number) for number, times in ((0, [0.01] * 10), (1, LONG)))
    one = measurement(calm, replace(calm, rank=1))
    one = replace(one, launches=(*one.launches, Launch(round=1, ranks=(calm, paused), seconds=1.0)))
    found = long_steps_of(one)
    assert (found.number, found.steps, found.period) == (1, 20, None)
    assert (found.factor, found.share) == pytest.approx((11.0, 0.11 / 0.3))


def diagnosed(*ranks: dict[str, float], steps: int = 10) -> Measurement:
    """Steps of 0.01 s in forward on each rank; the last one takes longer, by these seconds of phases."""
    calm, paused = (rank(times, number=number) for number, times in ((0, [0.01] * 10), (1, LONG * 3)))
    taken = [
        {phase: ((0.01 if phase == FORWARD else 0.0),) * (steps - 1) + (more.get(phase, 0.0),) for phase in PHASES}
        for more in ranks
    ]
    launch = Launch(
        round=0,
        ranks=tuple(
            replace(calm, rank=number, phases=PhaseTimes(seconds=seconds)) for number, seconds in enumerate(taken)
        ),
        seconds=1.0,
    )
    return replace(measurement(paused), diagnoses=(launch,))


@pytest.mark.parametrize(
    ("ranks", "phase"),
    [
        pytest.param([{"data_wait": 0.1, "forward": 0.01}] * 2, "data_wait", id="both ranks wait for data"),
        pytest.param([{"other": 0.1}, {"backward": 0.1}], "other", id="one rank waits for the other in backward"),
        pytest.param([{"backward": 0.1}] * 2, "backward", id="backward itself is longer on both"),
        pytest.param([{"data_wait": 0.05, "other": 0.04, "optimizer": 0.03}], None, id="no phase has half of it"),
        pytest.param([{"forward": 0.015}] * 2, None, id="no diagnosed step is long"),
        pytest.param([], None, id="nothing was taken apart"),
    ],
)
def test_long_steps_are_long_in_the_phase_that_takes_most_of_what_they_take_more(
    ranks: Sequence[dict[str, float]], phase: str | None
) -> None:
    found = long_steps_of(diagnosed(*ranks) if ranks else measurement(rank(LONG * 3)))
    assert (found.number, found.period, found.phase) == (3, 10, phase)


def test_no_phase_is_named_if_long_steps_have_no_period() -> None:
    """The diagnosed step that is long may have been held up by something else."""
    once = replace(diagnosed({"data_wait": 0.1}), launches=measurement(rank(LONG)).launches)
    assert (long_steps_of(once).number, long_steps_of(once).phase) == (1, None)


def test_what_is_not_made_of_steps_knows_nothing() -> None:
    one = measurement(replace(rank([0.1] * 20), memory={"peak_resident": 1e6}, loss=1.0))
    assert [(by_name(one)[name].within, by_name(one)[name].interval) for name in ("peak_resident", "final_loss")] == [
        ((), None)
    ] * 2
