from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_ddpperf.metrics import launch_figures
from pytest_ddpperf.metrics.launch_figures import Moved, Within, busiest_cpu, mean_step, of_cpu, of_rates, of_steps
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.phases import FORWARD, PHASES, PhaseTimes
from pytest_ddpperf.stats.launches import OWN_ALONE
from tests.factories import make_launch, make_rank_launch
from tests.metrics import made
from tests.metrics.made import by_name


def test_a_figure_is_computed_once_for_each_launch() -> None:
    asked: list[Launch] = []

    @launch_figures.once
    def steps(one: Launch) -> int | None:
        asked.append(one)
        return len(one.step_times) or None

    some, none = make_launch((1.0, 2.0)), make_launch(())
    assert [steps(one) for one in (some, none, some, none)] == [2, None, 2, None]
    assert asked == [some, none]


def test_a_kept_figure_changes_no_launch_and_follows_no_copy() -> None:
    one = make_launch((1.0, 2.0, 3.0, 4.0, 5.0))
    assert mean_step(one) == 3.0
    assert one == make_launch((1.0, 2.0, 3.0, 4.0, 5.0))
    assert "mean_step" not in repr(one)
    assert mean_step(replace(one, ranks=make_launch((7.0,)).ranks)) == 7.0


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
    return made.measurement(ranks)


def known(within: Within) -> Moved:
    """What the only launch knows."""
    (moved,) = within.moved
    return moved


LN2 = math.log(2)


@pytest.mark.parametrize(
    "ranks",
    [
        [rank([1.0, 1.0, 2.0, 2.0])],  # it ran alone
        [rank([1.0, 1.0, 2.0, 2.0], [2, 3])],  # the blocks do not add up to the steps
        [rank([1.0, 1.0, 2.0, 1.0]), rank([1.0, 1.0, 1.0, 2.0], number=1)],  # the slowest rank of each step counts
    ],
)
def test_a_launch_that_was_not_timed_in_blocks_is_cut_into_equal_ones(ranks: list[RankLaunch]) -> None:
    """Of 1 1 and 2 2 s: without the first block a step takes 2 s, without the second 1 s. Their mean is ln 2 / 2."""
    one = measurement(*ranks)
    assert known(of_steps(one)) == pytest.approx((-LN2 / 2, LN2 / 2))
    assert known(of_rates(one)) == pytest.approx((LN2 / 2, -LN2 / 2))
    assert of_steps(one).own == of_rates(one).own == OWN_ALONE


def test_blocks_of_interleaved_launches_give_the_scatter() -> None:
    """Of 1 1, 4 4 4 and 2: without one after the other 4 4 4 2, 1 1 2 and 1 1 4 4 4, with means of 3.5, 4/3 and 2.8."""
    moved = known(of_steps(measurement(rank([1.0, 1.0, 4.0, 4.0, 4.0, 2.0], [2, 3, 1]))))
    without = [math.log(3.5), math.log(4 / 3), math.log(2.8)]
    assert moved == pytest.approx([2 * (sum(without) / 3 - one) for one in without])
    assert sum(moved) == pytest.approx(0.0)


@pytest.mark.parametrize("times", [(), (1.0,), (1.0, 1.0, 1.0), (0.0, 0.0, 1.0, 1.0)], ids=len)
def test_a_single_block_or_a_clock_that_stands_still_shows_no_scatter(times: tuple[float, ...]) -> None:
    assert launch_figures.moved_step(Launch(round=0, ranks=(rank(times),), seconds=1.0)) == ()


def test_cpu_time_comes_from_the_cheapest_blocks_of_the_busiest_rank() -> None:
    """Blocks of 2 and 3 steps at 1 and 2 s each: without the first 2 s a step, without the second 1 s.

    Of blocks of 1, 2 and 3 steps at 3, 1.5 and 1 s a third of the steps is two, of the last one. Without that one they
    are a step of 1.5 s.
    """
    busy = rank([1.0] * 5, [2, 3], cpu=1.6, cpu_blocks=[1.0, 2.0])
    idle = rank([1.0] * 5, [2, 3], cpu=1.7, cpu_blocks=[0.1, 2.9], number=1)
    assert busiest_cpu(Launch(round=0, ranks=(idle, busy), seconds=1.0)) == pytest.approx(1.0)
    assert known(of_cpu(measurement(idle, busy))) == pytest.approx((-LN2 / 2, LN2 / 2))
    three = rank([1.0] * 6, [1, 2, 3], cpu=1.5, cpu_blocks=[3.0, 1.5, 1.0])
    assert busiest_cpu(Launch(round=0, ranks=(three,), seconds=1.0)) == pytest.approx(1.0)
    without = [0.0, 0.0, math.log(1.5)]
    assert known(of_cpu(measurement(three))) == pytest.approx([2 * (sum(without) / 3 - one) for one in without])


@pytest.mark.parametrize(
    "other",
    [
        rank([1.0] * 4, [2, 2], number=1),
        rank([1.0] * 4, [2, 2], cpu=1.0, cpu_blocks=[1.0], number=1),
        rank([1.0] * 4, [2, 2], cpu=0.0, cpu_blocks=[0.0, 0.0], number=1),
    ],
    ids=["not told", "a single block", "no ticks of the clock"],
)
def test_without_the_cpu_time_of_a_rank_its_scatter_is_unknown(other: RankLaunch) -> None:
    known = rank([1.0] * 4, [2, 2], cpu=0.0 if other.cpu_time == 0 else 2.0, cpu_blocks=[0.0, 0.0])
    assert of_cpu(measurement(known, other)).moved == ((),)


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
    assert (mean_step(single), launch_figures.moved_step(single)) == (1.0, ())


def test_series_know_their_scatter_and_single_launches_have_an_interval() -> None:
    one = measurement(rank([0.1, 0.11] * 10))
    series = by_name(one)
    step = series["step_time"]
    assert (step.within, step.own) == (of_steps(one).moved, OWN_ALONE)
    assert series["throughput"].within == of_rates(one).moved
    assert step.interval is not None
    assert step.interval.low < step.value < step.interval.high


LONG = [0.01] * 9 + [0.11]  # the mean is 0.02 s, the median 0.01


def test_the_interval_of_a_mean_is_computed_from_logarithms() -> None:
    """Samples of 1, 1.1 and 1.21 s: the geometric mean is 1.1, the mean 3.31 / 3. Of single steps no scatter is known.

    Student's t of 2 degrees is 4.3027, and the error of the mean of logarithms ln 1.1 / sqrt(3).
    """
    ranks = [rank([seconds]) for seconds in (1.0, 1.1, 1.21)]
    launches = tuple(Launch(round=i, ranks=(one,), seconds=1.0) for i, one in enumerate(ranks))
    series = by_name(replace(measurement(ranks[0]), launches=launches))
    half = 4.3027 * math.log(1.1) / math.sqrt(3)
    for name, value in (("step_time", 3.31 / 3), ("throughput", 8 * 3 / 3.31)):
        found = series[name]
        assert found.value == pytest.approx(value)
        assert found.interval is not None
        assert math.log(found.interval.high / value) == pytest.approx(half, rel=1e-4)
        assert math.log(value / found.interval.low) == pytest.approx(half, rel=1e-4)


def test_long_steps_are_counted_for_the_group_in_all_launches() -> None:
    """Rank 1 has the long step of 0.11 s of the second launch: 0.11 s of 0.1 + 0.2 s."""
    calm, paused = (rank(times, number=number) for number, times in ((0, [0.01] * 10), (1, LONG)))
    one = measurement(calm, replace(calm, rank=1))
    one = replace(one, launches=(*one.launches, Launch(round=1, ranks=(calm, paused), seconds=1.0)))
    found = launch_figures.long_steps_of(one)
    assert (found.number, found.steps, found.period) == (1, 20, None)
    assert (found.factor, found.share) == pytest.approx((11.0, 0.11 / 0.3))


def diagnosed(*ranks: dict[str, float]) -> Measurement:
    """Nine steps of 0.01 s in forward on each rank, and one with these seconds of phases."""
    usual = {phase: (0.01 if phase == FORWARD else 0.0,) * 9 for phase in PHASES}
    taken = [{phase: (*usual[phase], more.get(phase, 0.0)) for phase in PHASES} for more in ranks]
    told = [make_rank_launch(number, phases=PhaseTimes(seconds=seconds)) for number, seconds in enumerate(taken)]
    launch = Launch(round=0, ranks=tuple(told), seconds=1.0)
    return replace(measurement(rank(LONG * 3)), diagnoses=(launch,))


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
def test_long_steps_name_the_phase_with_most_of_their_extra_time(
    ranks: Sequence[dict[str, float]], phase: str | None
) -> None:
    found = launch_figures.long_steps_of(diagnosed(*ranks) if ranks else measurement(rank(LONG * 3)))
    assert (found.number, found.period, found.phase) == (3, 10, phase)


def test_no_phase_is_named_if_long_steps_have_no_period() -> None:
    """The diagnosed step that is long may have been held up by something else."""
    once = replace(diagnosed({"data_wait": 0.1}), launches=measurement(rank(LONG)).launches)
    assert (launch_figures.long_steps_of(once).number, launch_figures.long_steps_of(once).phase) == (1, None)
