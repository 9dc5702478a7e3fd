"""GPUs as a made-up pynvml shows them."""
# ruff: noqa: N802 - the names are pynvml's

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddpperf.instruments import gpu_health as gpus
from pytest_ddpperf.instruments.gpu_health import GpuReading, GpuWatch, gpu_health, read_gpu, watch_gpus
from pytest_ddpperf.instruments.health import watch_health
from pytest_ddpperf.records.health import GpuHealth


class NVMLError(Exception):
    """As pynvml has it."""


class Nvml:
    """Two GPUs; the second tells neither its power nor its processes. Handles are their numbers."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self) -> None:
        self.read = threading.Event()
        self.pids = [100, 200, os.getpid()]
        self.initialised = 0

    def nvmlInit(self) -> None:
        self.initialised += 1

    def nvmlShutdown(self) -> None:
        self.initialised -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=90 - handle, memory=40)

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:
        return {1: 1700, 2: 2600}[clock]

    def nvmlDeviceGetMaxClockInfo(self, handle: int, clock: int) -> int:
        return {1: 1980, 2: 2619}[clock]

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 71

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        if handle == 1:
            self.read.set()  # the last one that is asked in a round
        return 0x04

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if handle:
            raise NVMLError("not supported")
        return 500_000

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        if handle:
            raise NVMLError("not supported")
        return [SimpleNamespace(pid=pid, usedGpuMemory=None if pid == 100 else 2**20) for pid in self.pids]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvml]:
    """Installed as pynvml."""
    fake = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    gpus._library.cache_clear()
    yield fake
    gpus._library.cache_clear()


def reading(utilisation: int, sm_clock: int = 1700, reasons: int = 0) -> GpuReading:
    return GpuReading(
        utilisation=utilisation,
        sm_clock=sm_clock,
        memory_clock=2600,
        temperature=60 + utilisation // 10,
        power=1000 * utilisation,
        reasons=reasons,
    )


def test_what_is_not_supported_is_not_told() -> None:
    assert read_gpu(Nvml(), 0) == GpuReading(
        utilisation=90, sm_clock=1700, memory_clock=2600, temperature=71, power=500_000, reasons=4
    )
    assert read_gpu(Nvml(), 1) == GpuReading(
        utilisation=89, sm_clock=1700, memory_clock=2600, temperature=71, power=None, reasons=4
    )


def test_figures_are_those_of_busy_readings() -> None:
    """Of five readings the first is idle. Clocks 1500, 1700, 1700, 1980: the median is 1700."""
    readings = [
        reading(0, 210, 1),
        reading(50, 1700, 0x24),
        reading(100, 1500, 0x04),
        reading(75, 1700),
        reading(75, 1980, 0x01),
    ]
    assert gpu_health("GPU-a", readings, (1980, None), {7: 100}) == GpuHealth(
        device="GPU-a",
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


def test_a_gpu_that_was_never_busy_is_told_as_it_was() -> None:
    assert gpu_health("GPU-a", [reading(0, 210)], (None, None), {}).sm_clock == 2.1e8


def test_a_launch_shorter_than_the_interval_has_no_figures() -> None:
    assert gpu_health("GPU-a", [], (1980, 2619), {}) == GpuHealth(
        device="GPU-a", readings=0, sm_clock_limit=1.98e9, memory_clock_limit=2.619e9
    )


def test_a_watch_reads_until_it_is_stopped(nvml: Nvml) -> None:
    """Process 100 is there from the start to the end, 200 goes and 300 comes, and we ourselves are no other."""
    watch = GpuWatch(nvml, interval=0.001)
    assert nvml.read.wait(10)
    nvml.pids = [100, 300, os.getpid()]
    first, second = watch.stop()
    assert (first.device, first.others, second.device, second.others) == ("GPU-0", {100: None}, "GPU-1", {})
    assert first.readings >= 1
    assert first.utilisation == pytest.approx(0.9)
    assert first.power == pytest.approx(500)
    assert second.power is None
    assert first.throttled == {"power cap": 1.0}
    assert "ddpperf-gpu-health" not in {thread.name for thread in threading.enumerate()}


def test_the_library_is_opened_once(nvml: Nvml) -> None:
    assert [gpu.device for gpu in watch_gpus()()] == ["GPU-0", "GPU-1"]
    assert [gpu.device for gpu in watch_health([None], gpus=True)().gpus] == ["GPU-0", "GPU-1"]
    assert watch_health([None])().gpus == ()
    assert nvml.initialised == 1


def test_without_the_library_there_are_no_gpus(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert watch_gpus()() == ()


def test_without_a_driver_there_are_no_gpus(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setattr(nvml, "nvmlInit", fail)
    assert watch_gpus()() == ()


def test_a_driver_that_fails_later_is_no_error_either(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise NVMLError("GPU is lost")

    monkeypatch.setattr(nvml, "nvmlDeviceGetCount", fail)
    assert watch_gpus()() == ()
