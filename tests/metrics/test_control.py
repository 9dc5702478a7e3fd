"""Times over those of the control step."""

from __future__ import annotations

import math

import pytest

from pytest_ddpperf.metrics.control import control_of, controlled, pace
from pytest_ddpperf.metrics.table import series_of
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Control
from tests.factories import make_launch, make_measurement, make_rank_launch, make_series


def launch(steps: tuple[float, ...], *control: tuple[float, ...]) -> Launch:
    ranks = tuple(
        make_rank_launch(rank, steps, samples_per_step=8.0, control_times=times) for rank, times in enumerate(control)
    )
    return Launch(round=0, ranks=ranks, seconds=1.0)


def test_a_control_step_lasts_as_long_as_its_slowest_rank() -> None:
    """And a launch has the typical one, which leaves out the slowest quarter."""
    measured = make_measurement(launches=(launch((1.0,) * 4, (4.0, 5.0, 9.0, 4.0), (5.0, 4.0, 4.0, 5.0)),))
    control = control_of(measured)
    assert control is not None
    assert control.seconds == (5.0,)


def test_without_control_in_every_launch_there_is_none() -> None:
    measured = make_measurement(launches=(launch((1.0,), (0.5,)), make_launch((1.0,), (1.0,))))
    assert control_of(measured) is None
    assert {series.control for series in series_of(measured)} == {None}


def test_a_slower_machine_leaves_quotients_as_they_are() -> None:
    """Times are divided by the control's, rates are multiplied; a tail and the CPU time have no control."""
    quick, slow = ((0.02, 0.03) * 8, (0.004, 0.005) * 4), ((0.04, 0.06) * 8, (0.008, 0.010) * 4)
    ours = [
        {series.metric: controlled(series) for series in series_of(make_measurement(launches=(launch(*times),)))}
        for times in (quick, slow)
    ]
    for metric in ("step_time", "throughput", "throughput_per_rank"):
        then, now = (side[metric] for side in ours)
        assert now.samples == pytest.approx(then.samples)
        assert now.within[0] == pytest.approx(then.within[0])
        assert now.control is None
    assert ours[0]["step_time"].value == pytest.approx(ours[1]["step_time"].value / 2)  # stays in seconds
    series = series_of(make_measurement(launches=(launch(*quick),)))
    of_steps = {"step_time", "step_time_min", "step_time_max", "throughput", "throughput_per_rank"}
    assert {each.metric for each in series if each.control} == of_steps


def test_what_hits_steps_and_control_of_a_block_alike_is_no_scatter_of_their_quotient() -> None:
    moods = [1.0, 1.1, 0.9, 1.05]
    times = tuple(0.02 * mood for mood in moods for _ in range(4))
    control = tuple(0.004 * mood for mood in moods for _ in range(4))
    series = series_of(make_measurement(launches=(launch(times, control),)))
    by_metric = {each.metric: each for each in series}
    assert max(map(abs, by_metric["step_time"].within[0])) > 0.01
    for metric in ("step_time", "throughput"):
        assert max(map(abs, controlled(by_metric[metric]).within[0])) < 1e-12


def test_the_pace_of_a_baseline_of_runs_is_that_of_their_mean() -> None:
    """As their times are: a run of many launches counts no more than one of few."""
    now, base = (
        make_series("step_time", 1.0, control=Control(seconds=seconds))
        for seconds in ((2.0,) * 3, (1.0,) * 9 + (4.0,) * 3)
    )
    assert pace(now, base, (9, 3)) == pytest.approx(0.0)
    assert pace(now, base) > math.log(1.5)


def test_a_series_without_control_stays_as_it_is() -> None:
    series = make_series("step_time", 0.02)
    assert controlled(series) is series
    stored = make_series("step_time", 0.02, control=Control(seconds=(0.004,) * 8))
    assert controlled(stored).samples == pytest.approx((5.0,) * 8)
    assert not math.isnan(controlled(stored).value)
