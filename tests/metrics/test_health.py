from __future__ import annotations

from pytest_ddpperf.metrics.findings import findings_of
from pytest_ddpperf.records.health import CpuHealth, GpuHealth, Health
from pytest_ddpperf.records.measurement import DeviceMemory, Launch, Measurement, Plan, RankLaunch
from tests.factories import make_environment

ENVIRONMENT = make_environment(world_size=1)


def measurement(*cpus: CpuHealth | None) -> Measurement:
    """A launch of two seconds for each."""
    rank = RankLaunch(rank=0, step_times=(1.0,), memory={}, loss=None, samples_per_step=None, tokens_per_step=None)
    launches = tuple(
        Launch(round=i, ranks=(rank,), seconds=2.0, health=None if cpu is None else Health(cpu=cpu))
        for i, cpu in enumerate(cpus)
    )
    return Measurement(
        name="ddp", strategy="ddp", mode=None, plan=Plan(warmup=5, steps=1), environment=ENVIRONMENT, launches=launches
    )


def test_a_machine_of_ones_own_is_not_spoken_of() -> None:
    calm = CpuHealth(others=0.08, steal=0.01, throttled=0.01, overheated=0, swapped=4096, governor="performance")
    assert findings_of(measurement(calm, calm, CpuHealth(), None)) == ()


def test_load_by_others_is_named_with_its_launches() -> None:
    cpus = [CpuHealth(others=share) for share in (0.38, 0.05, 0.12)]
    assert findings_of(measurement(*cpus)) == ("other processes used 12 % to 38 % of the cores in 2 of 3 launches",)


def test_one_value_is_no_span() -> None:
    cpus = [CpuHealth(steal=0.04), CpuHealth(steal=0.04)]
    assert findings_of(measurement(*cpus)) == ("the hypervisor gave 4 % of the cores away in 2 of 2 launches",)


def test_a_quota_is_held_against_the_launchs_time_on_all_cores() -> None:
    """Four and eight seconds of two on eight cores."""
    assert findings_of(measurement(CpuHealth(throttled=4.0), CpuHealth(throttled=8.0), CpuHealth(throttled=0.1))) == (
        "a CPU quota held processes back for 25 % to 50 % of the time in 2 of 3 launches",
    )


def test_a_quota_never_takes_more_than_all_of_the_time() -> None:
    """It may let eight cores' worth be used of more cores, all of which have to wait: 40 seconds of 16."""
    assert findings_of(measurement(CpuHealth(throttled=40.0))) == (
        "a CPU quota held processes back for 100 % of the time in 1 of 1 launch",
    )


def test_heat_and_swap_are_named() -> None:
    assert findings_of(measurement(CpuHealth(overheated=1, swapped=3 * 2**20), CpuHealth(overheated=4))) == (
        "cores were too hot and slowed down 1 time to 4 times in 2 of 2 launches",
        "the machine swapped 3.00 MiB in 1 of 2 launches",
    )


def on_gpus(*gpus: GpuHealth) -> Measurement:
    """A launch for each, on one rank that computed on the GPU ``a``."""
    rank = RankLaunch(
        rank=0,
        step_times=(1.0,),
        memory={},
        loss=None,
        samples_per_step=None,
        tokens_per_step=None,
        device_memory=DeviceMemory(device="a", used=0, reserved=0),
    )
    launches = tuple(
        Launch(round=i, ranks=(rank,), seconds=2.0, health=Health(cpu=CpuHealth(), gpus=(gpu,)))
        for i, gpu in enumerate(gpus)
    )
    return Measurement(
        name="ddp", strategy="ddp", mode=None, plan=Plan(warmup=5, steps=1), environment=ENVIRONMENT, launches=launches
    )


def test_what_held_a_gpu_back_is_named() -> None:
    held = GpuHealth(device="a", readings=10, throttled={"power cap": 0.4, "temperature": 0.1})
    assert findings_of(on_gpus(held, held, GpuHealth(device="a", readings=10))) == (
        "GPU clocks were held back (power cap) in 2 of 3 launches",
    )


def test_other_processes_on_a_gpu_are_named() -> None:
    assert findings_of(
        on_gpus(GpuHealth(device="a", readings=10, others={7: 3 * 2**30, 8: None}), GpuHealth(device="a", readings=10))
    ) == (
        "process 7 used a GPU of the ranks (3.00 GiB of its memory) in 1 of 2 launches",
        "process 8 used a GPU of the ranks in 1 of 2 launches",
    )


def test_a_clock_that_fell_is_named() -> None:
    """1.7 GHz is 14 % below 1.98; 1.9 is only 4 % below."""
    assert findings_of(
        on_gpus(GpuHealth(device="a", readings=9, sm_clock=1.98e9), GpuHealth(device="a", readings=9, sm_clock=1.7e9))
    ) == ("the slowest GPU's clock was 1700 MHz in one launch and 1980 MHz in another",)
    assert (
        findings_of(
            on_gpus(
                GpuHealth(device="a", readings=9, sm_clock=1.98e9), GpuHealth(device="a", readings=9, sm_clock=1.9e9)
            )
        )
        == ()
    )


def test_gpus_of_nobody_here_are_not_spoken_of() -> None:
    assert findings_of(on_gpus(GpuHealth(device="b", readings=10, throttled={"power cap": 1.0}, others={7: 1}))) == ()
