from __future__ import annotations

import pytest

from pytest_ddpperf.metrics.table import METRICS, Metric, counted_series, series_of
from pytest_ddpperf.records.counts import Counts
from tests.factories import make_measurement, make_rank_launch
from tests.metrics.made import by_name, measurement


def test_a_step_lasts_as_long_as_its_slowest_rank() -> None:
    """Slowest: 3, 4, 5, 6, 7; their mean is 5. Ranks alone have 4.2 and 3.8."""
    both = [make_rank_launch(0, (3, 2, 5, 4, 7)), make_rank_launch(1, (1, 4, 3, 6, 5))]

    series = by_name(measurement(both))
    assert (series["step_time"].samples, series["step_time_median"].samples) == ((5.0,), (5.0,))


def test_rates_count_the_whole_group() -> None:
    """32 + 24 samples and 320 + 240 tokens in a step of half a second."""
    both = [
        make_rank_launch(0, (0.5,), samples_per_step=32, tokens_per_step=320),
        make_rank_launch(1, (0.5,), samples_per_step=24, tokens_per_step=240),
    ]
    series = by_name(measurement(both, both))
    assert series["throughput"].samples == (112, 112)
    assert series["token_throughput"].samples == (1120, 1120)
    assert series["throughput_per_rank"].samples == (56, 56)
    assert {series[name].better for name in ("throughput", "token_throughput", "throughput_per_rank")} == {"higher"}


def test_the_value_over_launches_is_the_mean_of_times_and_the_harmonic_mean_of_rates() -> None:
    """Steps of 1 and 4 s, on average 2.5 s: 6 samples in each are 2.4 in a second, and the mean of 6 and 1.5 is 3.75.

    Bytes are compared by quotients too, and their value stays geometric.
    """
    launches = [
        [make_rank_launch(0, (time,), memory={"peak_allocated": 100 * time}, samples_per_step=6, cpu_time=time)]
        for time in (1, 4)
    ]
    series = by_name(measurement(*launches))
    assert (series["step_time"].value, series["throughput"].value) == pytest.approx((2.5, 2.4))
    assert series["cpu_time"].value == pytest.approx(2.5)
    assert series["step_time"].interval is None  # of two launches with single steps
    assert series["peak_allocated"].value == pytest.approx(200)


def test_stragglers_are_recognised_by_the_ranks_own_steps() -> None:
    """Own median steps of 1, 1.2 and 1.5 s: 1.5 / 1.2 - 1."""
    ranks = [make_rank_launch(0, (1.0,)), make_rank_launch(1, (1.2,)), make_rank_launch(2, (1.5,))]
    skew = by_name(measurement(ranks))["straggler_skew"]
    assert skew.samples == pytest.approx((0.25,))
    assert not skew.gated
    assert "straggler_skew" not in by_name(measurement(ranks[:1]))


def test_cpu_time_belongs_to_the_busiest_rank() -> None:
    """Where every rank tells it; it is gated beside another revision alone."""
    known, unknown = (
        [make_rank_launch(0, (1.0,), cpu_time=0.5), make_rank_launch(1, (1.0,), cpu_time=0.75)],
        [make_rank_launch(0, (1.0,), cpu_time=0.5), make_rank_launch(1, (1.0,))],
    )
    series = by_name(measurement(known, known[:1]))["cpu_time"]
    assert (series.samples, series.gated, series.rules.stands_in) == ((0.75, 0.5), False, True)
    assert "cpu_time" not in by_name(measurement(known, unknown))


def test_memory_belongs_to_the_rank_that_takes_most() -> None:
    ranks = [
        make_rank_launch(0, (1,), memory={"peak_resident": 5e8}),
        make_rank_launch(1, (1,), memory={"peak_resident": 7e8}),
    ]
    series = by_name(measurement(ranks))
    assert series["peak_resident"].samples == (7e8,)
    assert series["peak_resident"].unit == "B"
    assert not {"peak_allocated", "peak_reserved"} & set(series)


def test_the_final_loss_is_averaged_over_ranks_and_may_be_negative() -> None:
    loss = by_name(measurement([make_rank_launch(0, (1,), loss=-3.0), make_rank_launch(1, (1,), loss=1.0)]))[
        "final_loss"
    ]
    assert (loss.samples, loss.value, loss.scale) == ((-1.0,), -1.0, "difference")


def test_a_metric_that_one_rank_lacks_is_unknown_for_the_group() -> None:
    ranks = [
        make_rank_launch(0, (1,), memory={"peak_resident": 1}, loss=1.0, samples_per_step=1, tokens_per_step=1),
        make_rank_launch(1, (1,)),
    ]
    found = set(by_name(measurement(ranks)))
    assert found == {"step_time", "step_time_median", "step_time_min", "step_time_max", "straggler_skew"}
    assert series_of(make_measurement()) == (), "there are no launches"


def test_a_pause_in_every_tenth_step_is_in_the_step_time_however_long_it_is() -> None:
    """Nine steps of 1 s and one of 1, 1.5 or 100 s: the mean is 1, 1.05 and 10.9; the median step knows none of it."""
    even, paused, stuck = ([*[1.0] * 9, last] for last in (1.0, 1.5, 100.0))
    launches = [[make_rank_launch(0, tuple(times), samples_per_step=2)] for times in (even, paused, stuck)]
    series = by_name(measurement(*launches))
    assert series["step_time"].samples == pytest.approx((1.0, 1.05, 10.9))
    assert series["throughput"].samples == pytest.approx((2.0, 2 / 1.05, 2 / 10.9))
    assert series["step_time_median"].samples == (1.0, 1.0, 1.0)
    assert [series[name].gated for name in ("step_time", "throughput", "step_time_median")] == [True, True, False]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_times_rates_and_quotients_drift_and_bytes_and_losses_do_not(metric: Metric) -> None:
    steady = metric.unit == "B" or metric.name in {"final_loss", "mean_loss"}
    assert metric.series((1.0, 2.0)).drifts is not steady


def test_each_count_is_one_exact_number() -> None:
    """Derived counts are shown and not gated; those that differ from step to step are for the comparison to judge."""
    totals = {"flops": 300.0, "collective_calls": 2.0, "flops_forward": 100.0, "operators": 7.0}
    counts = Counts(totals=totals, details={}, unstable={"operators": "add 3, then 4"})
    calls, flops, forward, operators = counted_series(counts)
    metrics = ["collective_calls", "flops", "flops_forward", "operators"]
    assert [one.metric for one in (calls, flops, forward, operators)] == metrics
    assert (calls.value, calls.samples, calls.scale, calls.family) == (2.0, (2.0,), "exact", "counted")
    assert [one.gated for one in (calls, flops, forward, operators)] == [True, True, False, True]
    assert (flops.unit, flops.drifts) == ("FLOP", False)
