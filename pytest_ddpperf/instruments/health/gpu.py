"""GPUs during a launch, as NVIDIA's management library tells: read in a thread of the controller's."""

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

INTERVAL = 0.25  # seconds: the driver itself renews its figures a few times a second
_PATIENCE = 5.0  # seconds for the last reading

# Bits of nvmlClocksEventReasons (nvml.h). Idle is none of ours; what is set by an administrator is deliberate.
REASONS: Mapping[int, str] = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "temperature",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}


@dataclass(frozen=True)
class GpuReading:
    """What the driver says of a GPU at one moment, in its own units; None for what it does not tell."""

    utilisation: int | None  # percent
    sm_clock: int | None  # MHz
    memory_clock: int | None  # MHz
    temperature: int | None  # degrees Celsius
    power: int | None  # mW
    reasons: int | None  # bits of REASONS


class GpuWatch:
    """Reads all GPUs again and again, until it is stopped.

    Args:
        nvml: the module ``pynvml``, initialised.
        interval: seconds between two readings.
    """

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
        """Each GPU since the start, in the driver's order."""
        self._stopped.set()
        self._thread.join(_PATIENCE)
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
        sm_limit, memory_limit = (_told(nvml, nvml.nvmlDeviceGetMaxClockInfo, handle, clock) for clock in limits)
        stayed = {pid: size for pid, size in processes(nvml, handle).items() if pid in before and pid != os.getpid()}
        return gpu_health(self._devices[number], self._readings[number], (sm_limit, memory_limit), stayed)


def watch_gpus() -> Callable[[], tuple[GpuHealth, ...]]:
    """Start to watch; call what comes back for each GPU's health. Without pynvml or a driver there are none."""
    nvml = _library()
    if nvml is None:
        return tuple
    try:
        return GpuWatch(nvml).stop
    except nvml.NVMLError:
        return tuple


def read_gpu(nvml: Any, handle: Any) -> GpuReading:
    """What the driver says of a GPU now."""
    utilisation = _told(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    return GpuReading(
        utilisation=None if utilisation is None else utilisation.gpu,
        sm_clock=_told(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
        memory_clock=_told(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
        temperature=_told(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        power=_told(nvml, nvml.nvmlDeviceGetPowerUsage, handle),
        reasons=_told(nvml, _reasons(nvml), handle),
    )


def processes(nvml: Any, handle: Any) -> dict[int, int | None]:
    """Bytes of a GPU's memory by the pid of who computes on it; in a container the pids may be the host's."""
    found = _told(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
    return {process.pid: process.usedGpuMemory for process in found}


def gpu_health(
    device: str,
    readings: Sequence[GpuReading],
    limits: tuple[int | None, int | None],
    others: Mapping[int, int | None],
) -> GpuHealth:
    """What the readings amount to.

    Args:
        device: its id.
        readings: in any order; may be none, after a launch that was shorter than the interval.
        limits: the highest clocks of multiprocessors and memory, in MHz.
        others: as of ``GpuHealth``.
    """
    busy = [one for one in readings if one.utilisation] or list(readings)
    reasons = [one.reasons for one in busy if one.reasons is not None]
    shares = {text: sum(bool(one & bit) for one in reasons) / len(reasons) for bit, text in REASONS.items() if reasons}
    sm_limit, memory_limit = (None if limit is None else limit * 1e6 for limit in limits)
    return GpuHealth(
        device=device,
        readings=len(busy),
        utilisation=_of([one.utilisation for one in busy], fmean, 1e-2),
        sm_clock=_of([one.sm_clock for one in busy], median, 1e6),
        sm_clock_limit=sm_limit,
        memory_clock=_of([one.memory_clock for one in busy], median, 1e6),
        memory_clock_limit=memory_limit,
        temperature=_of([one.temperature for one in busy], max, 1.0),
        power=_of([one.power for one in busy], fmean, 1e-3),
        throttled={text: share for text, share in shares.items() if share},
        others=others,
    )


def _of(values: Sequence[int | None], average: Callable[[list[int]], float], factor: float) -> float | None:
    known = [value for value in values if value is not None]
    return average(known) * factor if known else None


def _reasons(nvml: Any) -> Callable[..., Any]:
    """What tells why clocks are held back: newer drivers' libraries have another name for it."""
    newer = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    older: Callable[..., Any] = nvml.nvmlDeviceGetCurrentClocksThrottleReasons if newer is None else newer
    return older


def _told(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """What the driver answers; None where this GPU does not support the question."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


@cache
def _library() -> Any:
    """``pynvml``, initialised once for the session; None where it is not installed or finds no driver."""
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
