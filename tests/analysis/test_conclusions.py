"""The best of several variants, how training scales, and what a step's collectives take on a stored network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_ddpperf.analysis.conclusions import concluded, network_finding, scaling_loss
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Bottleneck, Cause, Diagnosis, Finding
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Interval, Measurement, MetricRules
from pytest_ddpperf.records.network import CollectiveFit, Segment
from pytest_ddpperf.records.phases import PHASES, BlockTimes, PhaseTimes
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.findings import finding_text
from tests.factories import (
    PROFILE,
    analysed,
    known,
    make_environment,
    make_launch,
    make_measurement,
    make_new_result,
    make_rank_launch,
    make_series,
)
from tests.shell import shown


def told(*results: Result) -> list[str]:
    """The conclusions of one call, as text."""
    *others, last = concluded(results)
    assert not any(each.findings for each in others)
    return list(map(finding_text, last.findings))


def way(name: str, speedup: float | None, memory: float = 1.0) -> Result:
    """Of a comparison over base; None for the base itself."""
    series = []
    if speedup is not None:
        sure = Interval(low=0.99 * speedup, high=1.01 * speedup, confidence=0.95)
        of_bytes = MetricRules(drifts=False)
        series = [
            make_series("speedup", speedup, better="higher", interval=sure),
            make_series("memory_ratio", memory, rules=of_bytes),
        ]
    result = make_new_result("t.py::test_ways", *series)
    measurement = replace(result.measurement, name=name, over=None if speedup is None else "base", series=tuple(series))
    return replace(result, measurement=measurement)


def test_a_comparison_has_its_best_variants() -> None:
    base, quick, lean = way("base", None), way("quick", 2.0, 1.5), way("lean", 0.5, 0.5)
    assert told(base, quick, lean) == ["fastest variant: quick; least memory: lean"]
    assert told(base, way("worse", 0.5, 2.0)) == ["fastest variant: base; least memory: base"]
    best = "no variant is faster and needs less memory than base"
    assert told(base, way("worse", 0.5, 2.0), way("bad", 0.5, 2.0)) == [
        f"fastest variant: base; least memory: base; {best}"
    ]
    assert told(way("alone", None)) == []


def point(
    ranks: int, speedup: float | None = None, cores: int = 8, mode: str = "strong", launches: tuple[Launch, ...] = ()
) -> Result:
    """Of a scaling curve; None for its base."""
    relative = {} if speedup is None else {"speedup": speedup, "scaling_efficiency": speedup / ranks}
    series = [make_series(name, value, unit="1") for name, value in relative.items()]
    environment = make_environment(world_size=ranks, cores=cores)
    named = {"name": f"{mode} w{ranks}", "mode": mode}  # as ddpperf.scaling names them
    return analysed(make_new_result("t.py::test_curve", *series, **named, environment=environment, launches=launches))


def test_a_curve_has_its_serial_fraction_and_the_last_rank_that_pays() -> None:
    """By Amdahl's law with 20 % serial: 1.667 and 2.5 times the speed; the third rank would add 0.476."""
    (line,) = told(point(1), point(2, 1 / 0.6), point(4, 2.5))
    law = "good with 2, fair with 4 ranks; serial fraction 20 % [20.0 .. 20.0] (Amdahl)"
    assert line == f"{law}; from 2 ranks on, one more rank adds under half a rank's work"


def test_a_serial_fraction_is_from_0_to_1_and_an_interval_wider_than_that_is_not_shown() -> None:
    """1.03, 1.06 and 1.95 of 2 ranks leave 94, 89 and 3 %: 61.8 % on average, and -66 to 190 % by Student's t."""
    base, wide = point(1), point(2, 1.1)
    speedups = make_series("speedup", 1.1, unit="1", samples=(1.03, 1.06, 1.95))
    relative = tuple(each if each.metric != "speedup" else speedups for each in wide.measurement.series)
    (line,) = told(base, replace(wide, measurement=replace(wide.measurement, series=relative)))
    assert "; serial fraction 61.8 % (Amdahl)" in line
    (line,) = told(base, point(2, 2.1))  # more than twice the speed
    assert "; serial fraction 0 % (Amdahl)" in line


def test_a_weak_scaling_curve_is_compared_with_gustafsons_law() -> None:
    assert told(point(1, mode="weak"), point(2, 1.8, mode="weak")) == [
        "excellent with 2 ranks; serial fraction 20 % [20.0 .. 20.0] (Gustafson)"
    ]


def taken_apart(**phases: float) -> tuple[Launch, ...]:
    """A launch of one rank with equal steps of these phases."""
    seconds = {phase: (phases.get(phase, 0.0),) * 4 for phase in PHASES}
    rank = make_rank_launch(0, (sum(phases.values()),) * 4, phases=PhaseTimes(seconds=seconds))
    return (Launch(round=0, seconds=1.0, ranks=(rank,)),)


def test_the_loss_of_a_curve_is_reported_by_cause() -> None:
    curve = [
        point(1, mode="weak", launches=taken_apart(forward=0.1)),
        point(2, 1.0, mode="weak", launches=taken_apart(forward=0.1, data_wait=0.1)),
    ]
    assert told(*curve)[1:] == ["2 ranks lose 100 ms of a step of 200 ms: waiting for data 100 ms"]
    little = [curve[0], point(2, 1.94, mode="weak", launches=taken_apart(forward=0.103))]
    assert len(told(*little)) == 1


def test_the_fit_omits_points_whose_ranks_share_cores() -> None:
    curve = [point(1, cores=2), point(2, 0.8, cores=2), point(4, 0.1, cores=2)]
    (line,) = told(*curve)
    assert line.startswith("negative scaling with 2 ranks; serial fraction 100 % (")
    assert line.endswith("; omitted: runs with 4 ranks, which share cores or GPUs")
    assert told(curve[0], curve[2]) == []


def diagnosis(**seconds: float) -> Diagnosis:
    """A step of these causes."""
    step = sum(seconds.values())
    names: dict[str, Bottleneck] = {name: name for name in seconds}  # type: ignore[misc]  # names of causes
    causes = tuple(Cause(bottleneck=names[name], seconds=value, share=value / step) for name, value in seconds.items())
    return Diagnosis(bottleneck="unclear", step=step, causes=causes)


def test_weak_scaling_loses_the_time_by_which_a_step_exceeds_the_base() -> None:
    base, point = diagnosis(compute=0.08, data=0.02), diagnosis(compute=0.09, data=0.02, communication=0.03)
    lost, kinds = scaling_loss(base, point, efficiency=0.1 / 0.14)
    assert lost == pytest.approx(0.04)
    assert list(kinds)[:2] == ["communication", "computing"]
    assert kinds["communication"] == pytest.approx(0.03)
    assert kinds["computing"] == pytest.approx(0.01)
    assert kinds["data"] == pytest.approx(0)
    largest = dict([*kinds.items()][:2])
    line = finding_text(Finding("scaling_loss", {"ranks": 4, "lost": lost, "step": point.step, "kinds": largest}))
    assert shown("diagnosis.md", "ranks lose") == f"test_text.py::test_scaling: {line}\n"


def test_strong_scaling_expects_a_share_of_each_cause() -> None:
    # Half of 100 ms is 50 ms; the point takes 80: products 48 in place of 40, calls 12 in place of 10, sending 20.
    base = diagnosis(compute=0.08, overhead=0.02)
    point = diagnosis(compute=0.048, overhead=0.012, communication=0.02)
    lost, kinds = scaling_loss(base, point, efficiency=0.05 / 0.08)
    assert kinds["communication"] == pytest.approx(0.02)
    assert kinds["computing"] == pytest.approx(0.01)
    assert sum(kinds.values()) == pytest.approx(lost) == pytest.approx(0.03)


def test_ranks_that_share_cores_lose_to_the_cores() -> None:
    _, kinds = scaling_loss(diagnosis(compute=0.1), diagnosis(compute=0.1, oversubscribed=0.1), efficiency=0.5)
    assert next(iter(kinds)) == "cores"
    assert kinds["cores"] == pytest.approx(0.1)


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


def test_predicted_collectives_take_as_long_as_the_network_fits_say() -> None:
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
def test_a_step_that_cannot_be_predicted_has_a_finding_with_the_reason(sent: Counts, facts: dict[str, object]) -> None:
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


def test_the_prediction_is_shown_next_to_the_profiled_time() -> None:
    """The error is of the collectives that the step has."""
    found = finding(profiled(0.012), (*FITS, replace(FIT, collective="reduce_scatter", error=0.4)))
    assert found.code == "on_network"
    assert finding_text(found) == (
        "ddpperf network predicts 11.0 ms for the collectives of a step (median error 6 %); the profiler saw 12.0 ms"
    )


def test_a_step_that_sends_faster_than_the_network_is_reported() -> None:
    found = finding(profiled(0.005))
    assert found.code == "faster_than_network"
    assert "maybe some data are not sent" in finding_text(found)


def with_and_without(strategy: str, *, exposed: float, still_sent: str = "") -> Measurement:
    """A step of 100 ms, of which synchronisation makes up so many seconds."""
    blocks = BlockTimes(synchronised=(0.1, 0.1), unsynchronised=(0.1 - exposed,) * 2, still_sent=still_sent)
    one = make_launch((0.1,), (0.1,))
    one = replace(one, ranks=tuple(replace(rank, communication=blocks) for rank in one.ranks))
    return make_measurement(launches=(one,), counts=SENT, strategy=strategy)


def test_exposed_communication_is_all_communication_if_backward_sends_nothing() -> None:
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
def test_communication_that_computing_hides_is_reported_if_backward_sends(exposed: float, words: str) -> None:
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
def test_a_prediction_without_a_measured_time_is_shown_alone(measurement: Measurement, *, profiled: bool) -> None:
    found = finding(measurement)
    assert (found.code, found.facts["profiled"]) == ("only_on_network", profiled)
    assert found.facts["predicted"] == pytest.approx(0.011001)


def test_a_step_that_was_not_timed_or_sends_nothing_has_no_network_finding() -> None:
    assert network_finding(replace(profiled(0.01), launches=()), FITS) is None
    assert network_finding(replace(profiled(0.01), counts=None), FITS) is None
    assert network_finding(replace(profiled(0.01), counts=counts({}, {})), FITS) is None
    assert network_finding(replace(profiled(0.01), counts=counts({"barrier": 1}, {"barrier": 0})), FITS) is None
