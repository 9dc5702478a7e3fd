from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from pytest_ddpperf.metrics.findings import findings_of
from pytest_ddpperf.metrics.memory import GROWTH_TOLERANCE, memory_by_rank
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import CpuHealth, DeviceMemory, GpuHealth, Health
from tests.factories import make_environment, make_series
from tests.metrics.made import by_name, of_ranks, samples

MIB = 2**20


def steady(growth: int) -> tuple[int, ...]:
    """Readings around ten steps that each keep so many bytes."""
    return tuple(5 * MIB + growth * step for step in range(11))


measurement = partial(of_ranks, "held")
peaks = partial(of_ranks, "memory")
devices = partial(of_ranks, "device_memory")


def growth(least: float, most: float, *, ranks: tuple[int, ...], of: int, launches: int = 3) -> Finding:
    """The finding on growth, in bytes a step, of some of the ranks of a group."""
    facts = {"device": "cpu", "least": least, "most": most, "ranks": ranks, "world_size": of}
    return Finding("memory_growth", {**facts, "steps": 10, "launches": launches})


def test_memory_growth_belongs_to_the_rank_that_grows_most() -> None:
    growths = measurement([steady(10), steady(30)], [steady(50), steady(20)])
    growth = by_name(growths)["memory_growth"]
    assert growth.samples == (30, 50)
    assert (growth.unit, growth.scale, growth.value, growth.gated) == ("B", "difference", 40, True)


def test_growth_comes_from_launches_that_diagnose() -> None:
    """By the one of them that there is; those that are timed do not look."""
    timed, told = measurement([(), ()], [(), ()]), measurement([steady(10), steady(MIB)])
    both = replace(timed, diagnoses=told.launches)
    assert samples(both, "memory_growth") == (MIB,)
    assert findings_of(both) == (growth(MIB, MIB, ranks=(1,), of=2, launches=1),)


def test_memory_growth_that_one_rank_cannot_read_is_unknown_for_the_group() -> None:
    assert samples(measurement([steady(10), ()]), "memory_growth") is None
    assert findings_of(measurement([steady(10), ()])) == ()


@pytest.mark.parametrize(
    ("growths", "most", "ranks"),
    [
        ((MIB, MIB), MIB, (0, 1)),
        ((MIB, 2 * MIB), 2 * MIB, (0, 1)),
        ((MIB, 0, 2 * MIB), 2 * MIB, (0, 2)),
        ((MIB,), MIB, (0,)),
    ],
)
def test_a_leak_is_named_with_all_of_its_ranks(growths: tuple[int, ...], most: int, ranks: tuple[int, ...]) -> None:
    leaking = measurement(*[list(map(steady, growths))] * 3)
    assert findings_of(leaking) == (growth(MIB, most, ranks=ranks, of=len(growths)),)


def test_growth_within_the_slack_is_not_named() -> None:
    assert findings_of(measurement(*[[steady(GROWTH_TOLERANCE)]] * 3)) == ()
    assert len(findings_of(measurement(*[[steady(GROWTH_TOLERANCE + 1)]] * 3))) == 1


def test_growth_that_only_one_launch_shows_is_not_named() -> None:
    """0, 0 and 3 MiB: 1 MiB a step on average, but the interval reaches below nothing."""
    assert findings_of(measurement([steady(0)], [steady(0)], [steady(3 * MIB)])) == ()


def test_gpu_memory_that_no_allocator_of_a_rank_holds_is_outside() -> None:
    """Alone on its GPU: 700 - 400. Two on one GPU: the larger 950 - (400 + 300) = 250, so the first is the most.

    Instances of one GPU have separate memory, though both have the PCI id of the whole GPU.
    """
    alone, first, second = (
        DeviceMemory(device="p", uuid="a", used=700, total=1000, reserved=400),
        DeviceMemory(device="q", uuid="b", used=900, total=1000, reserved=400),
        DeviceMemory(device="q", uuid="b", used=950, total=1000, reserved=300),
    )
    assert samples(devices([alone, first, second]), "outside_allocator") == (300,)
    assert samples(devices([first, second]), "outside_allocator") == (250,)
    assert samples(devices([first, replace(second, uuid="c")]), "outside_allocator") == (650,)
    assert samples(devices([alone, None]), "outside_allocator") is None


def test_gpu_memory_of_other_processes_does_not_count() -> None:
    """Process 7 was there before the launch, and still is."""
    memory = DeviceMemory(device="p", uuid="a", used=700, total=1000, reserved=400)
    (launch,) = devices([memory]).launches
    gpus = GpuHealth(device="p", readings=1), GpuHealth(device="p", readings=1, others={7: 200})
    quiet, disturbed = (replace(launch, health=Health(cpu=CpuHealth(), gpus=(gpu,))) for gpu in gpus)
    assert samples(replace(devices([memory]), launches=(quiet,)), "outside_allocator") == (300,)
    assert samples(replace(devices([memory]), launches=(disturbed,)), "outside_allocator") is None


def test_an_allocator_without_statistics_is_named_and_leaves_nothing_outside() -> None:
    found = devices([DeviceMemory(device="p", uuid="a", used=700, total=1000, reserved=None)])
    on_gpu = replace(found, environment=make_environment(device="cuda", device_count=1, world_size=1))
    assert findings_of(on_gpu) == (Finding("no_allocator_statistics", {}),)
    assert findings_of(replace(on_gpu, series=(make_series("peak_allocated", 1.0),))) == (), "it was read from a file"
    assert samples(on_gpu, "outside_allocator") is None


def test_fragmentation_is_the_share_that_tensors_did_not_fill() -> None:
    """6 of 8 GiB: a quarter is left. Nothing held is nothing wasted."""
    gib = 2.0**30
    one = {"peak_allocated": 6 * gib, "peak_reserved": 8 * gib, "peak_inactive_split": gib}
    assert samples(peaks([one], [dict.fromkeys(one, 0)]), "fragmentation") == (0.25, 0)
    del one["peak_inactive_split"]  # as of cudaMallocAsync, which splits nothing
    assert samples(peaks([one]), "fragmentation") is None
    assert samples(peaks([{"peak_resident": gib}]), "fragmentation") is None


def test_further_figures_of_the_allocator_are_shown_and_not_gated() -> None:
    kinds = ("peak_active", "peak_requested", "peak_inactive_split")
    found = by_name(peaks([dict.fromkeys(kinds, 5.0)]))
    assert [(found[kind].value, found[kind].gated) for kind in kinds] == [(5.0, False)] * 3


def test_memory_of_each_rank_is_averaged_over_launches() -> None:
    first = [{"peak_resident": 10, "other": 1}, {"peak_resident": 20}]
    second = [{"peak_resident": 14, "other": 1}, {"peak_resident": 26}]
    assert memory_by_rank(peaks(first, second)) == {"peak_resident": (12, 23)}


def test_ranks_that_use_different_amounts_of_memory_are_named() -> None:
    facts = {"metric": "peak_resident", "least": 500 * MIB, "least_rank": 1, "most": 800 * MIB, "most_rank": 0}
    uneven = peaks([{"peak_resident": 800 * MIB}, {"peak_resident": 500 * MIB}])
    assert findings_of(uneven) == (Finding("uneven_memory", facts),)
    assert findings_of(peaks([{"peak_resident": 540 * MIB}, {"peak_resident": 500 * MIB}])) == ()  # 8 %
    assert findings_of(peaks([{"peak_resident": 20 * MIB}, {"peak_resident": 5 * MIB}])) == ()  # 15 MiB


def test_an_allocator_that_had_to_try_again_is_named() -> None:
    full = peaks([{"alloc_retries": 2, "ooms": 0}, {"alloc_retries": 1, "ooms": 1}])
    assert findings_of(full) == (Finding("full_gpu_memory", {"retries": 3, "failures": 1}),)
    assert findings_of(peaks([{"alloc_retries": 0, "ooms": 0}])) == ()
