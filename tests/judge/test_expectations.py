"""What is not as expected, in words, and targets held against intervals; the numbers are worked by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.judge.expectations import misnamed, targets, unexpected, unsaid
from pytest_ddpperf.records.counts import COLLECTIVES
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import CpuHealth, Health
from pytest_ddpperf.records.measurement import Measurement, MetricRules, Series
from pytest_ddpperf.records.ranks import merged
from pytest_ddpperf.records.verbs import ScalingCurve, SideBySide
from tests.factories import make_counts, make_environment, make_interval, make_launch, make_measurement, make_series


@pytest.mark.parametrize(
    ("collectives", "totals", "reason"),
    [
        (None, {}, "no expectation is given; name counts, such as optimizer_steps=1"),
        ({}, {}, None),  # no collectives at all is something to expect
        ({"all_reduce": 1}, {"flops": 2.5}, None),
        ({"all_reduce": "1"}, {}, "all_reduce is expected to be '1', which is not a number"),
        (
            None,
            {"calls": {"all_reduce": 1}},
            "calls has to be one number; for calls of several collectives, give collectives={'all_reduce': 1}",
        ),
        (["all_reduce"], {}, "collectives=['all_reduce']: expected calls by collective, such as {'all_reduce': 3}"),
        (None, {"flops": None}, "flops is expected to be None, which is not a number"),
        (None, {"flops": True}, "flops is expected to be True, which is not a number"),
    ],
)
def test_expectations_that_cannot_be_compared_with_counts_are_reported(
    collectives: object, totals: Mapping[str, object], reason: str | None
) -> None:
    assert unsaid(collectives, totals) == reason


def test_misnamed_expectations_are_reported_with_a_suggestion() -> None:
    known = make_counts({"collective_calls": {"all_reduce": 3}}, flops=1e6)
    assert misnamed(known, ["all_reduce", "send"], ["flops"]) is None
    listed = f"There are {', '.join(COLLECTIVES)}"
    assert misnamed(known, ["allreduce"], []) == f"there is no collective allreduce; did you mean all_reduce? {listed}"
    found = misnamed(known, [], ["collective"])
    assert found == "there is no count collective; did you mean collectives? There are collective_calls, flops"


def test_counts_that_are_as_expected_give_no_message() -> None:
    found = make_counts({"collective_calls": {"all_reduce": 3.0}, "optimizer_steps": {"SGD": 1.0}})
    assert unexpected(found, {"all_reduce": 3}, {"optimizer_steps": 1}) == []
    assert unexpected(found, {"all_reduce": 2}, {"optimizer_steps": 2}) == [
        "expected 2 all_reduce calls per step, counted 3",
        "expected optimizer_steps 2 per step, counted 1 (SGD 1)",
    ]


def test_expectations_hold_for_every_rank() -> None:
    first = make_counts({"collective_calls": {"all_reduce": 3.0}, "optimizer_steps": {"SGD": 1.0}})
    second = make_counts({"collective_calls": {"all_reduce": 2.0}, "optimizer_steps": {}}, optimizer_steps=0.0)
    assert unexpected(merged([first, first]), {"all_reduce": 3}, {"optimizer_steps": 1}) == []
    assert unexpected(merged([first, second]), {"all_reduce": 3}, {"optimizer_steps": 1}) == [
        "expected collective_calls 3 per step on every rank, counted rank 1: 2",
        "expected optimizer_steps 1 per step on every rank, counted rank 1: 0",
    ]
    assert unexpected(merged([first, second]), None, {}) == []
    assert unexpected(merged([first, *[second] * 7]), None, {"optimizer_steps": 1}) == [
        (
            "expected optimizer_steps 1 per step on every rank, "
            "counted rank 1: 0, rank 2: 0, rank 3: 0, rank 4: 0, rank 5: 0, 2 more"
        )
    ]


def test_a_count_that_differs_between_steps_is_not_as_expected() -> None:
    """Though the step with the most does what is expected; what nobody asked for may differ."""
    reason = "all_reduce 2 in one step, 3 in the next"
    restless = {"collective_calls": reason, "operators": "aten.mm 1 in one step, 2 in the next"}
    found = make_counts({"collective_calls": {"all_reduce": 3.0}, "operators": {"aten.mm": 2.0}}, restless)
    told = [f"expected collective_calls to be the same in every step: {reason}"]
    assert unexpected(found, {"all_reduce": 3}, {}) == told
    assert unexpected(found, None, {"collective_calls": 2}) == told
    assert unexpected(found, None, {}) == []


def metric(name: str, low: float, high: float, *, better: Any = "higher", unit: str = "1") -> Series:
    """A metric in the middle of its interval."""
    series = make_series(name, (low + high) / 2, unit=unit)
    return replace(series, better=better, interval=make_interval(low, high))


def measured(*series: Series, **fields: Any) -> Measurement:
    return replace(make_measurement(**fields), series=series)


@pytest.mark.parametrize(
    ("better", "wanted", "outcome"),
    [
        ("higher", 0.7, "met"),
        ("higher", 0.8, "met"),
        ("higher", 0.85, "open"),
        ("higher", 0.9, "open"),
        ("higher", 0.91, "missed"),
        ("lower", 0.91, "met"),
        ("lower", 0.9, "met"),
        ("lower", 0.85, "open"),
        ("lower", 0.8, "open"),
        ("lower", 0.79, "missed"),
    ],
)
def test_the_whole_interval_has_to_lie_on_one_side(better: str, wanted: float, outcome: str) -> None:
    (target,) = targets(measured(metric("mfu", 0.8, 0.9, better=better)), {"mfu": wanted})
    assert target.outcome == outcome


def test_without_an_interval_only_bytes_and_counts_are_sure() -> None:
    one = measured(
        replace(make_series("mfu", 0.5), better="higher"),
        replace(make_series("peak_allocated", 3 * 2**30, unit="B"), better="lower"),
    )
    assert [each.outcome for each in targets(one, {"mfu": 0.1, "peak_allocated": "40GiB"})] == ["open", "met"]
    assert targets(one, {"peak_allocated": "2GiB"})[0].outcome == "missed"


def test_targets_of_a_curve_are_by_number_of_ranks() -> None:
    points = tuple(
        measured(metric("scaling_efficiency", low, low + 0.1), environment=make_environment(world_size=size))
        for size, low in ((1, 1.0), (2, 0.9), (4, 0.7))
    )
    curve = ScalingCurve(mode="weak", points=points)
    two, four = targets(curve, {"efficiency": {2: 0.85, 4: 0.85}})
    assert (two.outcome, four.outcome) == ("met", "missed")
    assert four.text == "scaling_efficiency of 4 ranks: 0.75 [95 % CI 0.7 .. 0.8], the target is at least 0.85"
    assert [each.whose for each in targets(curve, {"efficiency": 0.5})] == ["1 rank", "2 ranks", "4 ranks"]
    with pytest.raises(SettingError, match=r"expect\(efficiency={8: 0.9}\): 8 was not measured, only 1, 2, 4"):
        targets(curve, {"efficiency": {8: 0.9}})


def test_targets_of_a_comparison_are_by_name() -> None:
    ways = (measured(name="fp32"), measured(metric("speedup", 1.4, 1.7), name="bf16"))
    compared = SideBySide(over="fp32", names=("fp32", "bf16"), measurements=ways)
    (target,) = targets(compared, {"speedup": {"bf16": 1.5}})
    assert (target.whose, target.outcome, target.measurement.name) == ("bf16", "open", "bf16")
    with pytest.raises(SettingError, match="'fp16' was not measured, only 'fp32', 'bf16'"):
        targets(compared, {"speedup": {"fp16": 1.5}})


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"mfu": "high"}, r"^ddpperf.expect\(mfu='high'\): expected a number \(unit: 1\)$"),
        ({"mfu": True}, r"expected a number \(unit: 1\)"),
        ({"mfu": {2: 0.5}}, r"^ddpperf.expect\(mfu={2: 0.5}\): one benchmark was measured; give one number$"),
        ({"peak": 0.5}, r"^ddpperf.expect\(peak=0.5\): expected a number of bytes above 0, such as 2GiB"),
        ({"speed": 1}, r"^ddpperf.expect\(speed=...\): there is no metric 'speed'; did you mean speedup\? There are"),
    ],
)
def test_an_invalid_target_is_refused(wanted: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        targets(measured(metric("mfu", 0.1, 0.2), metric("peak", 1, 2, unit="B")), wanted)


def test_a_target_of_a_benchmark_that_does_not_fit_says_why() -> None:
    unfit = measured(findings=(Finding("does_not_fit", {"reason": "rank 0 ran out of memory", "fitted": False}),))
    with pytest.raises(SettingError, match="does not fit into memory: rank 0 ran out of memory"):
        targets(unfit, {"throughput": 5})


@pytest.mark.parametrize(("launches", "outcome"), [(1, "open"), (2, "open"), (3, "met")])
def test_a_target_of_a_metric_that_drifts_is_open_below_three_launches(launches: int, outcome: str) -> None:
    """Whatever its interval says."""
    series = replace(metric("throughput", 89, 91, unit="samples/s"), samples=(90.0,) * launches)
    assert targets(measured(series), {"throughput": 80})[0].outcome == outcome


def test_targets_of_phases_and_bytes_are_decided_by_one_launch() -> None:
    phase = metric("phase_forward", 0.010, 0.011, better="lower", unit="s")
    phase = replace(phase, samples=(0.0105,), rules=MetricRules(diagnosed=True))
    memory = replace(make_series("peak_allocated", 3 * 2**30, unit="B"), samples=(3.0 * 2**30,))
    found = targets(measured(phase, memory), {"phase_forward": 0.02, "peak_allocated": "2GiB"})
    assert [each.outcome for each in found] == ["met", "missed"]


def test_bytes_that_differ_between_launches_are_open_between_them() -> None:
    memory = replace(make_series("peak_resident", 420 * 2**20, unit="B"), samples=(400.0 * 2**20, 440.0 * 2**20))
    outcomes = [targets(measured(memory), {"peak_resident": f"{limit}MiB"})[0].outcome for limit in (399, 415, 440)]
    assert outcomes == ["missed", "open", "met"]


def while_others_took(share: float, series: Series) -> Measurement:
    """Three launches, in which others took so much of the cores."""
    health = Health(cpu=CpuHealth(others=share), gpus=())
    return measured(series, launches=tuple(make_launch((1.0,), round=number, health=health) for number in range(3)))


@pytest.mark.parametrize(
    ("share", "wanted", "outcome"),
    [
        (0.0, 95.0, "missed"),
        (0.10, 95.0, "missed"),
        (0.11, 95.0, "open"),
        (0.11, 120.0, "open"),
        (0.5, 80.0, "met"),  # others make no step faster
    ],
)
@pytest.mark.parametrize("partnered", [False, True])
def test_a_target_missed_while_other_processes_use_the_cores_is_open(
    share: float, wanted: float, outcome: str, *, partnered: bool
) -> None:
    """A throughput of 90, which others may have cut."""
    series = replace(metric("throughput", 89, 91, unit="samples/s"), rules=MetricRules(timed=True, partnered=partnered))
    (target,) = targets(while_others_took(share, series), {"throughput": wanted})
    assert target.outcome == outcome
    assert target.text.endswith("; other processes took 11 % of the cores") is (outcome == "open")
    assert target.finding.code == f"target_{outcome}"


@pytest.mark.parametrize(
    ("series", "wanted"),
    [
        (replace(make_series("peak_allocated", 3 * 2**30, unit="B"), better="lower"), "2GiB"),
        (
            replace(metric("memory_ratio", 0.8, 0.9, better="lower"), rules=MetricRules(partnered=True, drifts=False)),
            0.7,
        ),
    ],
    ids=lambda given: given.metric if isinstance(given, Series) else "",
)
def test_a_memory_target_is_missed_even_if_other_processes_use_the_cores(series: Series, wanted: object) -> None:
    (target,) = targets(while_others_took(0.5, series), {series.metric: wanted})
    assert target.outcome == "missed"
