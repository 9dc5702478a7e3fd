"""What transfers cost on networks that are named or measured; each number is worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpperf.errors import SettingError, WorkloadError
from pytest_ddpperf.planner.costs import collective_time, hierarchical_time
from pytest_ddpperf.planner.hardware import ACCELERATORS, CLUSTERS, HARDWARE, Accelerator
from pytest_ddpperf.planner.predictions import MEASURED, Band, FittedNetwork, NamedNetwork, predicted, replayed, typical
from pytest_ddpperf.records.network import CollectiveFit, Segment
from pytest_ddpperf.records.predictions import Moment, Prediction, Timeline, Transfer, WhatIf

MB = 10**6
LOCAL, BETWEEN = (HARDWARE[link] for link in CLUSTERS["nvlink-infiniband400"])
NAMED = NamedNetwork(name="nvlink-infiniband400")


def transfer(name: str = "all_reduce", nbytes: int = 100 * MB, ranks: int = 8, stride: int = 1) -> Transfer:
    return Transfer(name=name, nbytes=nbytes, ranks=ranks, stride=stride)


def fit(collective: str = "all_reduce", world_size: int = 2, error: float = 0.05) -> CollectiveFit:
    """One millisecond and one second per GB, from 1 kB to 10 MB."""
    segments = (Segment(max_bytes=10 * MB, latency=1e-3, seconds_per_byte=1e-9),)
    return CollectiveFit(collective=collective, world_size=world_size, min_bytes=1000, segments=segments, error=error)


def levels(name: str, nodes: int, ranks: int) -> float:
    return hierarchical_time(name, 100 * MB, nodes, ranks, local=LOCAL, between=BETWEEN)


class TestCluster:
    @pytest.mark.parametrize(
        ("sent", "expected"),
        [
            pytest.param(transfer(), collective_time("all_reduce", 100 * MB, 8, LOCAL), id="inside a node"),
            pytest.param(transfer("all_gather", ranks=32), levels("all_gather", 4, 8), id="over whole nodes"),
            pytest.param(
                transfer(ranks=4, stride=8),
                collective_time("all_reduce", 100 * MB, 4, BETWEEN),
                id="one rank of each node",
            ),
            pytest.param(transfer(ranks=8, stride=4), levels("all_reduce", 4, 2), id="two ranks of each node"),
            pytest.param(  # a tree over 16 nodes sends the whole four times, a ring less than twice
                transfer("broadcast", ranks=128), collective_time("broadcast", 100 * MB, 128, BETWEEN), id="broadcast"
            ),
            pytest.param(transfer("send"), LOCAL.latency + 100 * MB / LOCAL.bandwidth, id="a message inside"),
            pytest.param(
                transfer("send", ranks=64), BETWEEN.latency + 100 * MB / BETWEEN.bandwidth, id="a message between"
            ),
            pytest.param(transfer(ranks=1), 0.0, id="one rank"),
        ],
    )
    def test_a_transfer_uses_the_links_between_its_ranks(self, sent: Transfer, expected: float) -> None:
        assert NAMED.seconds(sent) == expected

    def test_rooted_collectives_cost_as_much_as_similar_ones(self) -> None:
        assert NAMED.seconds(transfer("reduce")) == NAMED.seconds(transfer("broadcast"))
        assert NAMED.seconds(transfer("barrier")) == pytest.approx(14 * LOCAL.latency)

    def test_a_name_that_is_not_known_is_refused_with_those_that_are(self) -> None:
        with pytest.raises(SettingError, match="pcie-ethernet10"):
            NamedNetwork(name="fast")


class TestCalibrated:
    def test_a_transfer_takes_as_long_as_the_fit_says(self) -> None:
        here = FittedNetwork(name="here", fits=(fit(), fit("all_gather")), taken=0.0)
        assert here.seconds(transfer(nbytes=MB, ranks=2)) == pytest.approx(2e-3)
        assert here.seconds(transfer(nbytes=8, ranks=2)) == pytest.approx(1e-3 + 1e-6)  # as the smallest size
        assert here.seconds(transfer("barrier", nbytes=0, ranks=2)) == pytest.approx(1e-3 + 1e-6)
        assert here.seconds(transfer(ranks=1)) == 0.0

    @pytest.mark.parametrize(
        ("sent", "words"),
        [
            (transfer(ranks=4), r"was not measured for all_reduce of 4 ranks, .* of 2 ranks; choose another"),
            (transfer("send", ranks=2), r"here was not measured for send of 2 ranks, .* choose another network: "),
            (transfer(ranks=2), "--max-size"),
        ],
    )
    def test_a_collective_or_group_that_was_not_measured_is_refused(self, sent: Transfer, words: str) -> None:
        with pytest.raises(SettingError, match=words):
            FittedNetwork(name="here", fits=(fit(),), taken=0.0).seconds(sent)

    def test_the_band_of_a_fitted_network_is_twice_the_largest_error_of_a_fit(self) -> None:
        here = FittedNetwork(name="here", fits=(fit(), fit("all_gather", error=0.1)), taken=0.0)
        assert here.band == Band(0.8, 1.0, 1.2)
        assert replace(here, usual=1.5).band == Band(0.8, 1.5, 1.5 * 1.2)


def blocking(*transfers: Transfer, computed: float = 1.0, scatter: float = 0.0) -> Timeline:
    """Each transfer follows some computing and is waited for."""
    moments = [
        Moment(computed=0.0 if waits else computed, transfer=i, waits=waits)
        for i in range(len(transfers))
        for waits in (False, True)
    ]
    return Timeline(transfers=transfers, moments=tuple(moments), rest=0.0, scatter=scatter)


def prediction(
    *transfers: Transfer, computed: float = 1.0, scatter: float = 0.0, samples: float | None = None
) -> Prediction:
    network = FittedNetwork(name="here", fits=(fit(),), taken=0.0)
    timeline = blocking(*transfers, computed=computed, scatter=scatter)
    return predicted(timeline, network, name="ddp", world_size=2, samples=samples)


class TestPredicted:
    sent = transfer(nbytes=9 * MB, ranks=2)  # 10 ms

    def test_a_step_has_a_band_of_computing_and_sending(self) -> None:
        found = prediction(self.sent, computed=0.030)
        assert (found.seconds, found.computing, found.exposed) == pytest.approx((0.040, 0.030, 0.010))
        assert found.low == pytest.approx(0.030 * (1 - MEASURED) + 0.009)
        assert found.high == pytest.approx(0.030 * (1 + MEASURED) + 0.011)
        assert found.efficiency == pytest.approx(0.75)
        assert (found.efficiency_low, found.efficiency_high) == pytest.approx((0.027 / 0.038, 0.033 / 0.042))

    def test_scatter_widens_the_band(self) -> None:
        still, scattered = prediction(self.sent), prediction(self.sent, scatter=0.02)
        assert scattered.low == pytest.approx(0.96 * still.low)
        assert scattered.high == pytest.approx(1.04 * still.high)

    def test_a_modelled_accelerator_has_the_band_of_the_roofline(self) -> None:
        found = predicted(blocking(self.sent, computed=0.01), NAMED, name="ddp", world_size=2, accelerator="h100")
        sending = NAMED.seconds(self.sent)
        assert found.seconds == pytest.approx(0.02 + 1.25 * sending)
        assert found.low == pytest.approx(0.0125 + sending)
        assert found.high == pytest.approx(0.035 + 2 * sending)


class TestGain:
    sent = transfer(nbytes=9 * MB, ranks=2)

    def test_errors_that_two_predictions_share_cancel_out(self) -> None:
        now, half = prediction(self.sent, self.sent, computed=0.02), prediction(self.sent, computed=0.04)
        gain = half.gain_over(now)
        assert gain.value == pytest.approx(1 - 0.05 / 0.06)
        # Sending 20 and 10 ms by 0.9 to 1.1, computing 40 ms by 0.9 to 1.1: most is saved where sending is slow and
        # computing fast.
        assert (gain.low, gain.high) == pytest.approx((1 - 0.053 / 0.062, 1 - 0.047 / 0.058))
        assert gain.verdict == "faster"
        assert now.gain_over(half).verdict == "slower"

    def test_a_gain_is_per_sample(self) -> None:
        now = prediction(self.sent, computed=0.03, samples=8)
        four = prediction(self.sent, computed=0.12, samples=32)
        assert four.gain_over(now).value == pytest.approx(1 - 0.130 / 4 / 0.040)

    def test_scatter_of_steps_timed_separately_makes_a_gain_unclear(self) -> None:
        now, other = prediction(self.sent, scatter=0.03), prediction(self.sent, computed=0.99, scatter=0.04)
        gain = other.gain_over(now)
        assert gain.verdict == "unclear"
        assert gain.high - gain.low > 4 * 0.05 * 1.00 / 1.01  # of the ratio of their times

    def test_nothing_saves_more_than_all_of_the_time(self) -> None:
        now, many = (prediction(self.sent, scatter=s, samples=n) for s, n in ((0.3, 2), (0.4, 64)))
        gain = many.gain_over(now)
        assert gain.value == pytest.approx(1 - 2 / 64)
        assert (gain.low, gain.high) == pytest.approx((1 - 2 / 64 * 2, 1.0))  # two errors of 0.3 and 0.4 are 1.0

    def test_interleaved_launches_show_the_scatter_of_their_quotients(self) -> None:
        """Whatever slows both down alike, such as other work, is in neither gain."""

        def launched(*seconds: float) -> Prediction:
            timeline = replace(blocking(self.sent, scatter=0.5), launches=seconds)
            return predicted(timeline, FittedNetwork(name="here", fits=(fit(),), taken=0.0), name="ddp", world_size=2)

        now = launched(1.0, 2.0)
        assert launched(0.5, 1.0).gain_over(now).verdict == "unclear"  # the steps themselves are equal here
        steady, other = launched(1.1, 2.2).gain_over(now), launched(1.0, 2.2).gain_over(now)
        assert steady.high - steady.low == pytest.approx(0.0)
        # Logarithms 0 and 0.09531: a deviation of 0.06739, of their mean 0.04766; t with one degree of freedom: 12.706.
        assert other.low == pytest.approx(-12.706 * 0.04766, rel=1e-3)
        assert now.reach == pytest.approx(12.706 * 0.5, rel=1e-3)

    def test_scatter_of_the_same_computing_cancels(self) -> None:
        timeline = blocking(self.sent, scatter=0.1)
        slow, fast = (
            predicted(timeline, NamedNetwork(name=name), name=name, world_size=2)
            for name in ("pcie-ethernet10", "nvlink-infiniband400")
        )
        assert fast.gain_over(slow).verdict == "faster"

    def test_networks_of_two_kinds_err_each_by_itself(self) -> None:
        now, other = (replace(prediction(self.sent, computed=0.01), network=name) for name in ("one", "other"))
        gain = other.gain_over(now)
        # Computing of 9 or 11 ms in both, and sending of 9 or 11 ms in each.
        assert (gain.value, gain.low, gain.high) == pytest.approx((0, 1 - 20 / 18, 1 - 18 / 20))
        assert other.gain_over(replace(now, network="other")).high == 0

    def test_variants_are_compared_with_the_first(self) -> None:
        now, other = prediction(self.sent), prediction(transfer(nbytes=1000, ranks=2))
        found = WhatIf(predictions={"now": now, "alone": other})
        assert (found.over, found.fastest) == ("now", "alone")
        assert found.gain("alone") == other.gain_over(now)
        many = prediction(self.sent, self.sent, samples=8)
        assert WhatIf(predictions={"now": prediction(self.sent, samples=1), "many": many}).fastest == "many"
        with pytest.raises(SettingError, match="there is no such name; give one of now, alone"):
            found.gain("more")
        with pytest.raises(KeyError, match="give one of now, alone"):
            found["more"]


def test_launches_count_with_their_mean_and_scatter() -> None:
    one, two = blocking(transfer(), computed=1.0), blocking(transfer(), computed=3.0)
    found = typical([one, two])
    assert found.computing == 2.0
    assert found.scatter == pytest.approx(2**0.5 / 2 / 2**0.5)  # sd 1.414 over the mean 2 and the root of 2
    assert typical([one]) is one
    with pytest.raises(SettingError, match="launches send different collectives"):
        typical([one, replace(two, transfers=(transfer(nbytes=1),))])


def test_an_operator_takes_as_long_as_its_products_or_its_memory() -> None:
    device = Accelerator(
        products=1e12, tf32_products=2e12, low_products=4e12, bandwidth=1e11, memory=1e9, source="made up"
    )
    assert device.seconds(1e9, 0) == 1e-3
    assert device.seconds(1e9, 0, tf32=True) == 5e-4
    assert device.seconds(1e9, 0, low=True, tf32=True) == 2.5e-4
    assert device.seconds(1e9, 1e9) == 1e-2
    assert device.seconds(0, 0) == device.operator
    assert all("datasheet" in known.source for known in ACCELERATORS.values())


BUCKET = Transfer(name="all_reduce", nbytes=2**20, ranks=2)


def test_a_step_that_takes_no_time_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"^empty: the step computes and sends nothing, so there is no time"):
        predicted(Timeline(transfers=(), moments=(), rest=0.0), NAMED, name="empty", world_size=2, accelerator="h100")


def buckets(*, rest: float = 10) -> Timeline:
    """Four buckets that are ready after 25, 50, 75 and 100 seconds, and are waited for there."""
    handed_over = [Moment(computed=25, transfer=i, waits=False) for i in range(4)]
    waits = [Moment(computed=0, transfer=i, waits=True) for i in range(4)]
    return Timeline(transfers=(BUCKET,) * 4, moments=(*handed_over, *waits), rest=rest)


def test_of_transfers_that_computing_hides_only_the_last_one_costs_time() -> None:
    step = replayed(buckets(), [20] * 4)
    assert (step.seconds, step.computing, step.communication) == (130, 110, 80)
    assert step.exposed == 20


def test_transfers_that_are_longer_than_the_computing_wait_for_each_other() -> None:
    # They end after 55, 85, 115 and 145 s: 30 s begin when the first bucket is ready, and then one follows the other.
    step = replayed(buckets(), [30] * 4)
    assert (step.seconds, step.exposed) == (155, 45)
    assert step.efficiency == 110 / 155


def test_a_core_that_sends_computes_nothing_meanwhile() -> None:
    assert replayed(buckets(), [30] * 4, taken=1).exposed == 120
    # In the 30 s of a bucket 15 s of computing are done, so the next one is ready 10 s later: buckets begin after 25,
    # 65, 105 and 145 s, and the last one ends after 175 s.
    assert replayed(buckets(), [30] * 4, taken=0.5).seconds == 185
    assert replayed(buckets(rest=0), [10] * 4, taken=0.5).exposed == pytest.approx(5 + 5 + 5 + 10)


def test_a_transfer_ends_with_the_step_or_at_its_wait() -> None:
    moments = (Moment(computed=5, transfer=0, waits=False),)
    assert replayed(Timeline(transfers=(BUCKET,), moments=moments, rest=1), [4]).seconds == 9
    waited = (*moments, Moment(computed=0, transfer=0, waits=True))
    step = replayed(Timeline(transfers=(BUCKET,), moments=waited, rest=3), [2])
    assert (step.seconds, step.exposed) == (10, 2)
    alone = replayed(Timeline(transfers=(), moments=(), rest=3), [])
    assert (alone.seconds, alone.efficiency) == (3, 1)


def test_times_are_of_one_step_of_several() -> None:
    two = Timeline(transfers=(BUCKET,), moments=(Moment(computed=5, transfer=0, waits=False),), rest=5, steps=2)
    step = replayed(two, [4], computing=2)
    assert (step.seconds, step.computing, step.communication) == (10, 10, 2)
