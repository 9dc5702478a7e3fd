"""GPUs during a launch, as NVIDIA's management library reports them: read in a thread of the controller."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median
from typing import Any

from pytest_ddpperf.records.health import GpuHealth

INTERVAL = 0.25  # seconds: the driver renews its figures a few times a second
_MAX_WAIT = 5.0  # seconds to wait for the last reading

# Bits of nvmlClocksEventReasons (nvml.h), without idle, and without limits that an administrator has set.
REASONS: Mapping[int, str] = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "temperature",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuReading:
    """What the driver reports of a GPU at one moment, in its own units; None for what it does not report."""

    utilisation: int | None  # percent
    sm_clock: int | None  # MHz
    memory_clock: int | None  # MHz
    temperature: int | None  # degrees Celsius
    power: int | None  # mW
    reasons: int | None  # bits of REASONS


class GpuWatch:
    """Reads all GPUs every ``interval`` seconds until it is stopped; ``nvml`` is the initialised module ``pynvml``."""

    def __init__(self, nvml: Any, interval: float = INTERVAL) -> None:
        self._nvml = nvml
        self._interval = interval
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        self._devices = [nvml.nvmlDeviceGetUUID(handle) for handle in self._handles]
        self._before = [processes(nvml, handle) for handle in self._handles]
        self._readings: list[list[GpuReading]] = [[] for _ in self._handles]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ddpperf-gpu-health", daemon=True)
        self._thread.start()

    def stop(self) -> tuple[GpuHealth, ...]:
        """Each GPU's health since the start, in the driver's order."""
        self._stopped.set()
        self._thread.join(_MAX_WAIT)
        if self._thread.is_alive():  # a driver that does not answer must not hold up the tests
            return ()
        return tuple(map(self._health, range(len(self._handles))))

    def _watch(self) -> None:
        while not self._stopped.wait(self._interval):
            for handle, readings in zip(self._handles, self._readings, strict=True):
                readings.append(read_gpu(self._nvml, handle))

    def _health(self, number: int) -> GpuHealth:
        nvml, handle, before = self._nvml, self._handles[number], self._before[number]
        limits = (nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM)
        sm_limit, memory_limit = (_answer(nvml, nvml.nvmlDeviceGetMaxClockInfo, handle, clock) for clock in limits)
        stayed = {pid: size for pid, size in processes(nvml, handle).items() if pid in before and pid != os.getpid()}
        return gpu_health(self._devices[number], self._readings[number], (sm_limit, memory_limit), stayed)


def watch_gpus() -> Callable[[], tuple[GpuHealth, ...]]:
    """Starts to watch; the result returns each GPU's health. Without pynvml or a driver there are none."""
    nvml = _library()
    if nvml is None:
        return tuple
    try:
        return GpuWatch(nvml).stop
    except nvml.NVMLError:
        return tuple


def read_gpu(nvml: Any, handle: Any) -> GpuReading:
    """Reads a GPU once."""
    utilisation = _answer(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    return GpuReading(
        utilisation=None if utilisation is None else utilisation.gpu,
        sm_clock=_answer(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
        memory_clock=_answer(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
        temperature=_answer(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        power=_answer(nvml, nvml.nvmlDeviceGetPowerUsage, handle),
        reasons=_answer(nvml, _reasons(nvml), handle),
    )


def processes(nvml: Any, handle: Any) -> dict[int, int | None]:
    """Bytes of a GPU's memory by the pid of the process that uses it; in a container the pids may be the host's."""
    found = _answer(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
    return {process.pid: process.usedGpuMemory for process in found}


def gpu_health(
    device: str, readings: Sequence[GpuReading], limits: tuple[int | None, int | None], others: Mapping[int, int | None]
) -> GpuHealth:
    """Summarises the readings of a device; a launch shorter than the interval has none.

    ``limits`` are the highest clocks of multiprocessors and memory, in MHz, ``others`` the processes that stayed.
    """
    busy = [reading for reading in readings if reading.utilisation] or list(readings)
    reasons = [reading.reasons for reading in busy if reading.reasons is not None]
    shares = {
        text: sum(bool(reason & bit) for reason in reasons) / len(reasons) for bit, text in REASONS.items() if reasons
    }
    sm_limit, memory_limit = (None if limit is None else limit * 1e6 for limit in limits)
    return GpuHealth(
        device=device,
        readings=len(busy),
        utilisation=_of([reading.utilisation for reading in busy], fmean, 1e-2),
        sm_clock=_of([reading.sm_clock for reading in busy], median, 1e6),
        sm_clock_limit=sm_limit,
        memory_clock=_of([reading.memory_clock for reading in busy], median, 1e6),
        memory_clock_limit=memory_limit,
        temperature=_of([reading.temperature for reading in busy], max, 1.0),
        power=_of([reading.power for reading in busy], fmean, 1e-3),
        throttled={text: share for text, share in shares.items() if share},
        others=others,
    )


def _of(values: Sequence[int | None], average: Callable[[list[int]], float], factor: float) -> float | None:
    known = [value for value in values if value is not None]
    return average(known) * factor if known else None


def _reasons(nvml: Any) -> Callable[..., Any]:
    """The function that says why clocks are held back; libraries of newer drivers have another name for it."""
    newer = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    older: Callable[..., Any] = nvml.nvmlDeviceGetCurrentClocksThrottleReasons if newer is None else newer
    return older


def _answer(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """The driver's answer; None if this GPU does not support the question."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


@cache
def _library() -> Any:
    """``pynvml``, initialised once for the session; None if it is not installed or finds no driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    atexit.register(pynvml.nvmlShutdown)
    return pynvml
