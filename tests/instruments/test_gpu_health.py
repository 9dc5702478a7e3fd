"""GPUs as a made-up pynvml shows them."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace

import pytest

from pytest_ddpperf.instruments.gpu_health import gpu_health, read_gpu, watch_gpus
from pytest_ddpperf.instruments.health import watch_health
from pytest_ddpperf.instruments.nvml import library
from pytest_ddpperf.records.launch import GpuHealth
from tests.fake_nvml import FIRST, SECOND, CountingNvml, FakeNvml, refusing

BOTH = (FIRST, SECOND)


def reading(
    at: float, utilisation: int, sm_clock: int = 1700, reasons: int = 0, **counted: int
) -> tuple[float, dict[str, int]]:
    figures = {"memory_clock": 2600, "temperature": 60 + utilisation // 10, "power": 1000 * utilisation}
    names = {name.replace("_", " "): count for name, count in counted.items()}
    return at, {"utilisation": utilisation, "sm_clock": sm_clock, "reasons": reasons, **figures, **names}


def test_a_reading_has_what_library_and_gpu_support() -> None:
    """The first library has no function for energy and violations; the second GPU reports no power."""
    both = {"sm_clock": 1700, "memory_clock": 2600, "temperature": 71, "reasons": 4}
    assert read_gpu(FakeNvml(), 0) == {**both, "utilisation": 90, "power": 500_000}
    assert read_gpu(FakeNvml(), 1) == {**both, "utilisation": 89}
    counted = {"energy": 1001, "held by power cap": 7}
    assert read_gpu(CountingNvml(), 1) == {**both, "utilisation": 89, **counted}


def test_figures_are_those_of_the_readings() -> None:
    """Clocks 1500, 1700, 1700, 1980: the median is 1700."""
    readings = [
        reading(1.0, 50, 1700, 0x24),
        reading(1.25, 100, 1500, 0x04),
        reading(1.5, 75, 1700),
        reading(1.75, 75, 1980, 0x01),
    ]
    assert gpu_health(FIRST, readings, (1980, None), {7: 100}) == GpuHealth(
        device=FIRST,
        readings=4,
        utilisation=0.75,
        sm_clock=1.7e9,
        sm_clock_limit=1.98e9,
        memory_clock=2.6e9,
        memory_clock_limit=None,
        temperature=70,
        power=75,
        throttled={"power cap": 0.5, "temperature": 0.25},
        others={7: 100},
    )


def test_counters_of_the_driver_come_before_its_samples() -> None:
    """In half a second 200 J and 0.15 s of a power cap, which one of three samples saw; heat by samples alone."""
    readings = [
        reading(8.0, 90, reasons=0x24, energy=5_000, held_by_power_cap=10**9, held_by_board_limit=7),
        reading(8.25, 90, energy=130_000),
        reading(8.5, 90, energy=205_000, held_by_power_cap=1_150_000_000, held_by_board_limit=7),
    ]
    health = gpu_health(FIRST, readings, (None, None), {})
    assert health.power == pytest.approx(400)
    assert health.throttled == {"power cap": pytest.approx(0.3), "temperature": pytest.approx(1 / 3)}
    alone = gpu_health(FIRST, readings[1:2], (None, None), {})
    assert (alone.power, alone.throttled) == (90, {}), "one reading has no difference of counters"


def test_a_watch_reads_until_it_is_stopped(nvml: FakeNvml) -> None:
    """Process 100 is there from the start to the end, 200 goes and 300 comes, and we ourselves are no other."""
    seen = watch_gpus(BOTH, interval=0.001)
    nvml.pids = [100, 300, os.getpid()]
    (first, second), unread = seen(None)
    assert (first.device, first.others, second.device, second.others) == (FIRST, {100: None}, SECOND, {})
    assert first.readings > 1
    assert first.utilisation == pytest.approx(0.9)
    assert first.power == pytest.approx(500)
    assert second.power is None
    assert first.throttled == {"power cap": 1.0}
    assert unread == ()
    assert "ddpperf-sampler" not in {thread.name for thread in threading.enumerate()}


def test_only_readings_in_timed_steps_count(nvml: FakeNvml) -> None:
    (first, _), _ = watch_gpus(BOTH, interval=0.001)((float("-inf"), 0.0))  # steps of long ago
    assert replace(first, others={}) == GpuHealth(
        device=FIRST, readings=0, sm_clock_limit=1.98e9, memory_clock_limit=2.619e9
    )


def test_a_gpu_with_instances_has_no_processes_for_they_are_those_of_all_instances(nvml: FakeNvml) -> None:
    nvml.mig = {0}
    (first, second), _ = watch_gpus(BOTH, interval=0.001)(None)
    assert (first.mig, first.utilisation, first.sm_clock, first.others) == (True, None, 1.7e9, {})
    assert second.mig is False


def test_a_gpu_that_may_not_be_opened_hides_no_other(nvml: FakeNvml) -> None:
    nvml.hidden = {FIRST}
    gpus, unread = watch_gpus(BOTH)(None)
    assert [gpu.device for gpu in gpus] == [SECOND]
    assert unread == (f"{FIRST}: Insufficient Permissions",)


def test_the_library_is_opened_once(nvml: FakeNvml) -> None:
    gpus, _ = watch_gpus(BOTH)(None)
    assert [gpu.device for gpu in gpus] == [FIRST, SECOND]
    assert [gpu.device for gpu in watch_health([None], gpus=[SECOND])(None).gpus] == [SECOND]
    assert watch_health([None])(None).gpus == ()
    assert nvml.initialised == 1


def test_without_the_library_or_the_driver_there_is_a_reason(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    health = watch_health([None], gpus=BOTH)(None)
    assert health.gpus == ()
    assert health.unread_gpus == ("nvidia-ml-py is not installed: pip install nvidia-ml-py",)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(nvml, "nvmlInit", refusing)
    library.cache_clear()
    assert watch_gpus(BOTH)(None) == ((), ("GPU is lost",))
