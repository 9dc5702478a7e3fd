"""What a step takes on a network, with its band and its gains; each number is worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.planner.predictions import MEASURED, predicted, typical
from pytest_ddpperf.planner.rooflines import ACCELERATORS, Accelerator
from pytest_ddpperf.planner.transfers import FittedNetwork, NamedNetwork
from pytest_ddpperf.records.predictions import Prediction, WhatIf
from pytest_ddpperf.records.timeline import Moment, Timeline, Transfer
from tests.planner.test_transfers import fit

MB = 10**6
NAMED = NamedNetwork(name="nvlink-infiniband400")


def transfer(name: str = "all_reduce", nbytes: int = 100 * MB, ranks: int = 8, stride: int = 1) -> Transfer:
    return Transfer(name=name, nbytes=nbytes, ranks=ranks, stride=stride)


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

    def test_what_both_err_in_cancels(self) -> None:
        now, half = prediction(self.sent, self.sent, computed=0.02), prediction(self.sent, computed=0.04)
        gain = half.gain_over(now)
        assert gain.value == pytest.approx(1 - 0.05 / 0.06)
        # Sending 20 and 10 ms by 0.9 to 1.1, computing 40 ms by 0.9 to 1.1: most is saved where sending is slow and
        # computing fast.
        assert (gain.low, gain.high) == pytest.approx((1 - 0.053 / 0.062, 1 - 0.047 / 0.058))
        assert gain.verdict == "faster"
        assert now.gain_over(half).verdict == "slower"

    def test_it_is_of_a_sample(self) -> None:
        now = prediction(self.sent, computed=0.03, samples=8)
        four = prediction(self.sent, computed=0.12, samples=32)
        assert four.gain_over(now).value == pytest.approx(1 - 0.130 / 4 / 0.040)

    def test_scatter_of_what_was_timed_apart_makes_it_unclear(self) -> None:
        now, other = prediction(self.sent, scatter=0.03), prediction(self.sent, computed=0.99, scatter=0.04)
        gain = other.gain_over(now)
        assert gain.verdict == "unclear"
        assert gain.high - gain.low > 4 * 0.05 * 1.00 / 1.01  # of the ratio of their times

    def test_nothing_saves_more_than_all_of_the_time(self) -> None:
        now, many = (prediction(self.sent, scatter=s, samples=n) for s, n in ((0.3, 2), (0.4, 64)))
        gain = many.gain_over(now)
        assert gain.value == pytest.approx(1 - 2 / 64)
        assert (gain.low, gain.high) == pytest.approx((1 - 2 / 64 * 2, 1.0))  # two errors of 0.3 and 0.4 are 1.0

    def test_launches_in_turns_tell_how_far_their_quotients_scatter(self) -> None:
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

    def test_ways_are_held_to_the_first(self) -> None:
        now, other = prediction(self.sent), prediction()
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
