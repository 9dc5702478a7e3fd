from __future__ import annotations

from dataclasses import replace

from pytest_ddpperf.metrics.findings import findings_of
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import CpuHealth, DeviceMemory, GpuHealth, Health, Launch
from pytest_ddpperf.records.measurement import Measurement
from tests.factories import make_environment, make_launch, make_measurement, make_rank_launch
from tests.metrics.made import samples

ENVIRONMENT = make_environment(world_size=1)


def measurement(*cpus: CpuHealth | None) -> Measurement:
    """A launch of two seconds for each."""
    healths = [None if cpu is None else Health(cpu=cpu) for cpu in cpus]
    launches = tuple(make_launch((1.0,), round=i, seconds=2.0, health=health) for i, health in enumerate(healths))
    return make_measurement(environment=ENVIRONMENT, launches=launches)


def test_a_quiet_machine_has_no_findings() -> None:
    calm = CpuHealth(others=0.08, steal=0.01, throttled=0.01, overheated=0, swapped=4096, governor="performance")
    assert findings_of(measurement(calm, calm, CpuHealth(), None)) == ()


def test_load_by_others_is_named_with_its_launches() -> None:
    cpus = [CpuHealth(others=share) for share in (0.38, 0.05, 0.12)]
    facts = {"least": 0.12, "most": 0.38, "seen": 2, "launches": 3}
    assert findings_of(measurement(*cpus)) == (Finding("cores_used_by_others", facts),)


def test_stolen_cores_heat_and_swap_are_named() -> None:
    cpus = CpuHealth(steal=0.04, overheated=1, swapped=3 * 2**20), CpuHealth(steal=0.03, overheated=4)
    assert findings_of(measurement(*cpus)) == (
        Finding("cores_stolen", {"least": 0.03, "most": 0.04, "seen": 2, "launches": 2}),
        Finding("hot_cores", {"least": 1, "most": 4, "seen": 2, "launches": 2}),
        Finding("swapping", {"least": 3 * 2**20, "most": 3 * 2**20, "seen": 1, "launches": 2}),
    )


def test_a_quota_is_compared_with_the_launchs_time_on_all_cores() -> None:
    """4 of 2 x 8 seconds. 40 are all of them: the quota may cover more than eight cores, which all wait."""
    throttled = measurement(CpuHealth(throttled=4.0), CpuHealth(throttled=40.0), CpuHealth(throttled=0.1))
    facts = {"least": 0.25, "most": 1.0, "seen": 2, "launches": 3}
    assert findings_of(throttled) == (Finding("cpu_quota", facts),)


def on_nodes(*others: CpuHealth) -> Measurement:
    """Launches of two seconds, in which the controller's node was calm, and another one was not."""
    (launch,) = measurement(CpuHealth(others=0.01, power=30.0)).launches
    healths = [Health(cpu=CpuHealth(others=0.01, power=30.0), nodes={"node 1 (b)": other}) for other in others]
    return replace(measurement(), launches=tuple(replace(launch, health=health) for health in healths))


def test_load_and_steal_of_another_node_are_named_with_the_node() -> None:
    measured = on_nodes(CpuHealth(others=0.3, steal=0.1), CpuHealth(others=0.05, steal=0.15), CpuHealth())
    seen = {"launches": 3, "node": "node 1 (b)"}
    assert findings_of(measured) == (
        Finding("cores_used_by_others", {"least": 0.3, "most": 0.3, "seen": 1, **seen}),
        Finding("cores_stolen", {"least": 0.1, "most": 0.15, "seen": 2, **seen}),
    )
    assert measured.lost == 0.2  # of 0.4, 0.2 and 0.01


def test_the_controllers_node_is_named_if_there_are_others() -> None:
    (launch,) = on_nodes(CpuHealth()).launches
    busy = replace(launch, health=Health(cpu=CpuHealth(swapped=2**30), nodes={"node 1 (b)": CpuHealth()}))
    facts = {"least": 2**30, "most": 2**30, "seen": 1, "launches": 1, "node": "node 0"}
    assert findings_of(replace(measurement(), launches=(busy,))) == (Finding("swapping", facts),)


def test_the_energy_of_a_step_includes_all_nodes_or_is_unknown() -> None:
    """30 and 20 W for a step of one second."""
    assert samples(on_nodes(CpuHealth(power=20.0)), "cpu_energy_per_step") == (50.0,)
    assert samples(on_nodes(CpuHealth()), "cpu_energy_per_step") is None


def on_gpus(*gpus: GpuHealth) -> Measurement:
    """A launch for each, on one rank that computed on the GPU ``a``."""
    rank = make_rank_launch(
        rank=0, step_times=(1.0,), device_memory=DeviceMemory(device="a", uuid="1f2e", used=0, total=1000, reserved=0)
    )
    launches = tuple(
        Launch(round=i, ranks=(rank,), seconds=2.0, health=Health(cpu=CpuHealth(), gpus=(gpu,)))
        for i, gpu in enumerate(gpus)
    )
    return make_measurement(environment=ENVIRONMENT, launches=launches)


def test_the_reason_that_held_the_clocks_of_a_gpu_back_is_named() -> None:
    held = GpuHealth(device="a", readings=10, throttled={"power cap": 0.4, "temperature": 0.1})
    assert findings_of(on_gpus(held, held, GpuHealth(device="a", readings=10))) == (
        Finding("gpu_clocks_held_back", {"reason": "power cap", "seen": 2, "launches": 3}),
    )


def test_other_processes_on_a_gpu_are_named() -> None:
    free = GpuHealth(device="a", readings=10)
    seen = {"seen": 1, "launches": 2}
    assert findings_of(on_gpus(replace(free, others={7: 3 * 2**30, 8: None}), free)) == (
        Finding("gpu_used_by_others", {"pid": 7, "nbytes": 3 * 2**30, **seen}),
        Finding("gpu_used_by_others", {"pid": 8, "nbytes": None, **seen}),
    )


def test_a_clock_that_fell_is_named() -> None:
    """1.7 GHz is 14 % below 1.98; 1.9 is only 4 % below."""
    high, low, less = (GpuHealth(device="a", readings=9, sm_clock=clock) for clock in (1.98e9, 1.7e9, 1.9e9))
    assert findings_of(on_gpus(high, low)) == (Finding("gpu_clock_fell", {"lowest": 1.7e9, "highest": 1.98e9}),)
    assert findings_of(on_gpus(high, less)) == ()


def test_gpus_that_no_rank_uses_have_no_findings() -> None:
    foreign = GpuHealth(device="b", readings=10, throttled={"power cap": 1.0}, others={7: 1})
    measured = on_gpus(GpuHealth(device="a", readings=10))
    health = Health(cpu=CpuHealth(), gpus=(GpuHealth(device="a", readings=10), foreign))
    assert findings_of(replace(measured, launches=(replace(measured.launches[0], health=health),))) == ()


def unread(*reasons: str) -> Measurement:
    """A launch whose GPU the driver told nothing of."""
    (launch,) = on_gpus(GpuHealth(device="a", readings=1)).launches
    health = Health(cpu=CpuHealth(), unread_gpus=reasons)
    return replace(on_gpus(), launches=(replace(launch, health=health),))


def test_gpus_of_ranks_that_the_driver_does_not_report_are_named() -> None:
    facts = {"seen": 1, "launches": 1}
    assert findings_of(unread("a: GPU is lost")) == (Finding("unread_gpus", {"reasons": ("a: GPU is lost",), **facts}),)
    unknown = ("torch does not say which NVIDIA GPUs they are",)
    assert findings_of(unread()) == (Finding("unread_gpus", {"reasons": unknown, **facts}),)


def test_instances_of_gpus_are_named_as_they_have_no_utilisation() -> None:
    divided = on_gpus(GpuHealth(device="a", readings=9, mig=True, power=300.0))
    assert findings_of(divided) == (Finding("mig_instances", {}),)
    assert samples(divided, "energy_per_step") is None  # it is that of all instances


def test_the_energy_of_a_step_is_power_by_time() -> None:
    """400 and 500 W for a step of one second."""
    powers = [GpuHealth(device="a", readings=9, power=power) for power in (400.0, 500.0)]
    assert samples(on_gpus(*powers), "energy_per_step") == (400, 500)
    unknown = on_gpus(powers[0], GpuHealth(device="a", readings=9)), unread("a: GPU is lost")
    for measured in (*unknown, replace(on_gpus(*powers), turns=True)):  # in turns the power is that of both sides
        assert samples(measured, "energy_per_step") is None
