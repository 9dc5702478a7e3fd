"""What a step's collectives take on a stored network, beside what they took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_ddpperf.analysis.expected import network_finding
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.network import CollectiveFit, Segment
from pytest_ddpperf.records.phases import BlockTimes
from pytest_ddpperf.reports.findings import finding_text
from tests.factories import PROFILE, known, make_environment, make_launch, make_measurement

MB = 10**6
FIT = CollectiveFit(
    collective="all_reduce",
    world_size=2,
    min_bytes=1000,
    segments=(Segment(max_bytes=100 * MB, latency=1e-3, seconds_per_byte=1e-9),),
    error=0.06,
)
FITS = (FIT, replace(FIT, collective="broadcast"))


def counts(calls: dict[str, float], nbytes: dict[str, float]) -> Counts:
    return Counts(totals={}, details={"collective_calls": calls, "collective_bytes": nbytes}, unstable={})


SENT = counts({"all_reduce": 2, "broadcast": 1}, {"all_reduce": 8 * MB, "broadcast": 64})  # 10 ms and 1.001 ms


def profiled(transfer: float | None) -> Measurement:
    profile = replace(PROFILE, transfer=transfer)
    return make_measurement(launches=(make_launch((0.1,), (0.1,)),), counts=SENT, profile=profile)


def finding(measurement: Measurement, fits: Sequence[CollectiveFit] = FITS) -> Finding:
    return known(network_finding(measurement, fits))


def test_collectives_take_what_the_fits_say() -> None:
    """A barrier moves no bytes, and nothing is said of it."""
    barrier = counts({"all_reduce": 2, "broadcast": 1, "barrier": 1}, {"all_reduce": 8 * MB, "broadcast": 64})
    for sent in (SENT, barrier):
        found = finding(replace(profiled(0.02), counts=sent))
        assert (found.code, found.facts["predicted"]) == ("on_network", pytest.approx(0.011001))


@pytest.mark.parametrize(
    ("sent", "facts"),
    [
        (
            counts({"broadcast": 1, "all_reduce": 2}, {"broadcast": 150 * MB, "all_reduce": 400 * MB}),
            {"reason": "too_large", "collective": "all_reduce", "nbytes": 200.0 * MB, "most": 100 * MB},
        ),
        (
            counts({"all_reduce": 1, "all_gather": 1}, {"all_reduce": MB, "all_gather": MB}),
            {"reason": "not_swept", "collective": "all_gather", "nbytes": float(MB), "most": None},
        ),
        (
            counts({"send": 1}, {"send": 64}),
            {"reason": "never_swept", "collective": "send", "nbytes": 64.0, "most": None},
        ),
    ],
)
def test_the_reason_is_told_why_a_step_is_not_predicted(sent: Counts, facts: dict[str, object]) -> None:
    for measured in (0.02, None):
        found = network_finding(replace(profiled(measured), counts=sent), FITS)
        assert found == Finding("not_on_network", {**facts, "ranks": 2, "profiled": True})


def test_smaller_groups_take_another_time() -> None:
    """Of an all-reduce over 2 ranks a rank sends all bytes; over half of 4 ranks as many, and not 1.5 times."""
    sent = replace(SENT, totals={"collective_send_bytes": 8 * MB + 32})
    of_two = known(network_finding(replace(profiled(0.02), counts=sent), FITS))
    assert of_two.facts["predicted"] == pytest.approx(0.011001)
    of_four = tuple(replace(fit, world_size=4) for fit in FITS)
    four = replace(profiled(0.02), counts=sent, environment=make_environment(world_size=4))
    found = finding(four, of_four)
    assert (found.code, found.facts["reason"], found.facts["ranks"]) == ("not_on_network", "smaller_groups", 4)


def test_the_prediction_stands_beside_what_was_measured() -> None:
    """The error is of the collectives that the step has."""
    found = finding(profiled(0.012), (*FITS, replace(FIT, collective="reduce_scatter", error=0.4)))
    assert found.code == "on_network"
    assert finding_text(found) == (
        "ddpperf network predicts 11.0 ms for the collectives of a step (median error 6 %); the profiler saw 12.0 ms"
    )


def test_a_step_that_sends_faster_than_the_network_is_told() -> None:
    found = finding(profiled(0.005))
    assert found.code == "faster_than_network"
    assert "maybe some data are not sent" in finding_text(found)


def with_and_without(strategy: str, *, exposed: float, still_sent: str = "") -> Measurement:
    """A step of 100 ms, of which synchronisation makes up so many seconds."""
    blocks = BlockTimes(synchronised=(0.1, 0.1), unsynchronised=(0.1 - exposed,) * 2, still_sent=still_sent)
    one = make_launch((0.1,), (0.1,))
    one = replace(one, ranks=tuple(replace(rank, communication=blocks) for rank in one.ranks))
    return make_measurement(launches=(one,), counts=SENT, strategy=strategy)


def test_exposed_communication_is_all_of_it_where_nothing_is_sent_in_backward() -> None:
    found = finding(with_and_without("flat", exposed=0.012))
    assert found.facts["measured"] == pytest.approx(0.012)


@pytest.mark.parametrize(
    ("exposed", "words"),
    [
        (0.0, "; they are hidden behind computation"),
        (0.002, "; all but 2.00 ms are hidden behind computation"),
        (0.015, "; 15.0 ms are exposed, more than predicted: ranks wait for each other, or share cores or links"),
    ],
)
def test_what_computing_hides_is_told_where_backward_sends(exposed: float, words: str) -> None:
    found = finding(with_and_without("ddp", exposed=exposed))
    assert (found.code, found.facts["measured"]) == ("on_network", None)
    assert finding_text(found).endswith(words)


@pytest.mark.parametrize(
    ("measurement", "profiled"),
    [
        (make_measurement(launches=(make_launch((0.1,), (0.1,)),), counts=SENT), False),
        (with_and_without("fsdp2", exposed=0.002, still_sent="parameters"), False),
        (profiled(None), True),
    ],
    ids=["not diagnosed", "sends more", "profile of groups"],
)
def test_a_prediction_that_nothing_stands_beside_is_told_alone(measurement: Measurement, *, profiled: bool) -> None:
    found = finding(measurement)
    assert (found.code, found.facts["profiled"]) == ("only_on_network", profiled)
    assert found.facts["predicted"] == pytest.approx(0.011001)


def test_what_was_not_timed_or_sends_nothing_has_no_finding() -> None:
    assert network_finding(replace(profiled(0.01), launches=()), FITS) is None
    assert network_finding(replace(profiled(0.01), counts=None), FITS) is None
    assert network_finding(replace(profiled(0.01), counts=counts({}, {})), FITS) is None
    assert network_finding(replace(profiled(0.01), counts=counts({"barrier": 1}, {"barrier": 0})), FITS) is None
