from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.planner.network import (
    fit_sizes,
    largest_bandwidths,
    sizes_between,
    taken_share,
    timings,
    usual_times,
    weighted_line,
)
from pytest_ddpperf.records.network import CollectiveTimes, Overlap, RankSweep, Timing

SIZES = [1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000]


def measured(seconds: Callable[[int], float], sizes: list[int] = SIZES) -> list[Timing]:
    return [Timing(collective="all_reduce", nbytes=size, seconds=seconds(size)) for size in sizes]


def two_lines(size: int) -> float:
    return 1e-4 + size * 1e-10 if size <= 20_000 else 5e-4 + size * 2e-9


def test_a_fit_finds_the_line_that_made_the_times() -> None:
    assert weighted_line([(0, 3.0), (1, 5.0), (2, 7.0)]) == pytest.approx((3, 2))


def test_errors_count_relative_to_the_time() -> None:
    """Weights 1, 1 and 1/16: the sums are 33/16, 9/8 of S, 5/4 of S^2, 9/4 of t and 3/2 of St."""
    assert weighted_line([(0, 1.0), (1, 1.0), (2, 4.0)]) == pytest.approx((6 / 7, 3 / 7))


def test_neither_latency_nor_slope_is_negative() -> None:
    """Falling times have the mean (1/2 + 1) / (1/4 + 1); below zero the line goes through the origin, 50/53."""
    assert weighted_line([(1, 2.0), (2, 1.0)]) == pytest.approx((1.2, 0))
    assert weighted_line([(1, 1.0), (2, 4.0), (3, 9.0)]) == pytest.approx((0, (1 + 0.5 + 1 / 3) / (1 + 0.25 + 1 / 9)))


def test_a_fit_distinguishes_one_line_from_two() -> None:
    one = fit_sizes(measured(lambda size: 1e-4 + size * 1e-9), 2)
    assert len(one.segments) == 1
    assert (one.segments[0].latency, one.segments[0].seconds_per_byte) == pytest.approx((1e-4, 1e-9))
    two = fit_sizes(measured(two_lines), 2)
    assert [line.max_bytes for line in two.segments] == [31_622, 1_000_000]  # sqrt(20 000 x 50 000)
    assert [line.latency for line in two.segments] == pytest.approx([1e-4, 5e-4])
    assert [line.seconds_per_byte for line in two.segments] == pytest.approx([1e-10, 2e-9])
    assert two.error == pytest.approx(0, abs=1e-9)


def test_the_error_of_a_fit_is_measured_on_sizes_omitted_from_it() -> None:
    """Of 1, 2, 3 and 4 in times of 1, 2, 3 and 4, with 5 in place of the second: left out, 1, 3 and 4 expect 2."""
    times = {10: 1.0, 20: 5.0, 30: 3.0, 40: 4.0}
    alone = abs(2 / 5 - 1)
    latency, slope = weighted_line([(10, 1.0), (20, 5.0), (40, 4.0)])
    other = abs((latency + 30 * slope) / 3 - 1)
    assert fit_sizes(measured(lambda size: times[size], [*times]), 2).error == pytest.approx((alone + other) / 2)


def test_a_prediction_uses_the_line_of_its_size_and_stays_within_the_measured_sizes() -> None:
    found = fit_sizes(measured(two_lines), 2)
    assert found.seconds(3000) == pytest.approx(1e-4 + 3e-7)
    assert found.seconds(300_000) == pytest.approx(5e-4 + 6e-4)
    for size in (999, 1_000_001):
        with pytest.raises(SettingError, match=f"nbytes={size}: all_reduce of 2 ranks was measured only from 1000 B"):
            found.seconds(size)


def test_a_fit_has_the_largest_bandwidths_of_the_links() -> None:
    """A ring over 4: t = 6 x 10 us + 1.5 S / (10 GB/s)."""
    found = fit_sizes(measured(lambda size: 60e-6 + 1.5 * size / 10e9), 4)
    assert largest_bandwidths(found) == pytest.approx((1e6 / 210e-6, 1.5 * 1e6 / 210e-6))


def test_a_time_is_the_fastest_call_on_its_slowest_rank() -> None:
    def rank(*calls: tuple[float, float]) -> RankSweep:
        begun, waited = zip(*calls, strict=True)
        times = CollectiveTimes(collective="all_reduce", nbytes=8, begun=begun, waited=waited, handed=begun)
        return RankSweep(times=(times,), pairs={})

    ranks = [rank((1.0, 4.0), (1.0, 1.0)), rank((2.0, 1.0), (1.0, 2.0))]
    assert timings(ranks) == (Timing(collective="all_reduce", nbytes=8, seconds=3.0),)
    assert usual_times(ranks) == 4.0 / 3.0  # calls of 5 and 3 s
    assert usual_times([]) == 1.0


def test_the_share_of_computing_that_sending_takes_follows_from_their_joint_time() -> None:
    def rank(*rounds: tuple[float, float, float]) -> RankSweep:
        each = (Overlap(computing=computing, sending=sending, both=both) for computing, sending, both in rounds)
        return RankSweep(times=(), pairs={}, beside=tuple(each))

    # Of the slowest rank: 10 s of computing, 4 s of sending, and 11, 12 and 14 s of both.
    rounds = [(10.0, 4.0, 11.0), (10.0, 4.0, 12.0), (9.0, 4.0, 14.0)]
    faster = [(8.0, 3.0, 9.0), (8.0, 3.0, 9.0), (10.0, 3.0, 9.0)]
    assert taken_share([rank(*rounds), rank(*faster)]) == 0.5
    assert taken_share([rank((10.0, 4.0, 9.0))]) == 0.0
    assert taken_share([rank((10.0, 4.0, 19.0))]) == 1.0
    assert taken_share([]) == 0.0


def test_there_are_three_sizes_to_a_decade_and_four_in_a_narrow_range() -> None:
    assert sizes_between(1000, 100_000, 2) == (1000, 2152, 4640, 10_000, 21_544, 46_416, 100_000)
    assert sizes_between(1000, 2000, 2) == (1000, 1256, 1584, 2000)


def test_ranks_can_share_each_size_and_the_range_is_covered() -> None:
    """Floats of three ranks are 12 bytes. 64 ranks share multiples of 256 B; 323 and 406 B would be sent as 256."""
    sizes = sizes_between(1024, 2**14, 3)
    assert (sizes[0], sizes[-1]) == (1020, 16_392)
    assert all(size % 12 == 0 for size in sizes)
    assert sizes_between(256, 2048, 64) == (256, 512, 1024, 2048)
