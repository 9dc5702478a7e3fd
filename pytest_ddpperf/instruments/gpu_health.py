"""GPUs during a launch, as NVIDIA's management library reports them: read in a thread of the controller."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from pytest_ddpperf.instruments.nvml import ask, in_mig_mode, library, opened
from pytest_ddpperf.records.health import GpuHealth
from pytest_ddpperf.records.launch import Window

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
# Numbers of nvmlPerfPolicyType (nvml.h), which count how long each reason held.
POLICIES: Mapping[int, str] = {0: "power cap", 1: "temperature", 2: "sync boost", 3: "board limit", 5: "reliability"}

GpusSeen = tuple[tuple[GpuHealth, ...], tuple[str, ...]]
"""The health of GPUs, and in words why others have none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuReading:
    """What the driver reports of a GPU at one moment, in its own units; None for what it does not report."""

    at: float  # seconds of the machine's monotonic clock
    utilisation: int | None  # percent
    sm_clock: int | None  # MHz
    memory_clock: int | None  # MHz
    temperature: int | None  # degrees Celsius
    power: int | None  # mW
    reasons: int | None  # bits of REASONS
    energy: int | None = None  # mJ since the driver was loaded
    held: Mapping[str, int] = field(default_factory=dict)  # ns for which clocks were held back, by the POLICIES known


class GpuWatch:
    """Reads the GPUs of ``devices`` (PCI ids) every ``interval`` seconds until it is stopped.

    ``nvml`` is the initialised module ``pynvml``. GPUs that this process may not open are left out.
    """

    def __init__(self, nvml: Any, devices: Sequence[str], interval: float = INTERVAL) -> None:
        self._nvml = nvml
        self._interval = interval
        self._handles, self._refused = opened(nvml, devices)
        self._before = {device: processes(nvml, handle) for device, handle in self._handles.items()}
        self._readings: dict[str, list[GpuReading]] = {device: [] for device in self._handles}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ddpperf-gpu-health", daemon=True)
        self._thread.start()

    def stop(self, window: Window | None) -> GpusSeen:
        """Each GPU's health in the window, or since the start, in the order of ``devices``."""
        self._stopped.set()
        self._thread.join(_MAX_WAIT)
        if self._thread.is_alive():  # a driver that does not answer must not hold up the tests
            return (), ("the driver does not answer",)
        return tuple(self._health(device, window) for device in self._handles), self._refused

    def _watch(self) -> None:
        while not self._stopped.wait(self._interval):
            for device, handle in self._handles.items():
                self._readings[device].append(read_gpu(self._nvml, handle))

    def _health(self, device: str, window: Window | None) -> GpuHealth:
        nvml, handle = self._nvml, self._handles[device]
        begin, end = window or (float("-inf"), float("inf"))
        limits = (nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM)
        sm_limit, memory_limit = (ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, clock) for clock in limits)
        mig, after = in_mig_mode(nvml, handle), processes(nvml, handle)
        stayed = {pid: size for pid, size in after.items() if pid in self._before[device] and pid != os.getpid()}
        return gpu_health(
            device,
            [reading for reading in self._readings[device] if begin <= reading.at <= end],
            (sm_limit, memory_limit),
            {} if mig else stayed,  # those of all instances
            mig=mig,
        )


def watch_gpus(devices: Sequence[str]) -> Callable[[Window | None], GpusSeen]:
    """Starts to watch GPUs by their PCI ids; the result returns what was seen: nothing without a driver."""
    nvml, missing = library()
    if nvml is None:
        return lambda _: ((), (missing,))
    return GpuWatch(nvml, devices).stop


def read_gpu(nvml: Any, handle: Any) -> GpuReading:
    """Reads a GPU once."""
    utilisation = ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
    held = {text: ask(nvml, "nvmlDeviceGetViolationStatus", handle, policy) for policy, text in POLICIES.items()}
    # Libraries of newer drivers have another name for why clocks are held back.
    newer, older = (f"nvmlDeviceGetCurrentClocks{name}Reasons" for name in ("Event", "Throttle"))
    return GpuReading(
        at=time.monotonic(),
        utilisation=None if utilisation is None else utilisation.gpu,
        sm_clock=ask(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        memory_clock=ask(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
        temperature=ask(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
        power=ask(nvml, "nvmlDeviceGetPowerUsage", handle),
        reasons=ask(nvml, newer if hasattr(nvml, newer) else older, handle),
        energy=ask(nvml, "nvmlDeviceGetTotalEnergyConsumption", handle),
        held={text: status.violationTime for text, status in held.items() if status is not None},
    )


def processes(nvml: Any, handle: Any) -> dict[int, int | None]:
    """Bytes of a GPU's memory by the pid of the process that uses it; in a container the pids may be the host's."""
    found = ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or ()
    return {process.pid: process.usedGpuMemory for process in found}


def gpu_health(
    device: str,
    readings: Sequence[GpuReading],
    limits: tuple[int | None, int | None],
    others: Mapping[int, int | None],
    *,
    mig: bool = False,
) -> GpuHealth:
    """Summarises the readings of a device; steps that end within the interval have none.

    ``limits`` are the highest clocks of multiprocessors and memory, in MHz, ``others`` the processes that stayed.
    """
    reasons = [reading.reasons for reading in readings if reading.reasons is not None]
    shares = {
        text: sum(bool(reason & bit) for reason in reasons) / len(reasons) for bit, text in REASONS.items() if reasons
    }
    sm_limit, memory_limit = (None if limit is None else limit * 1e6 for limit in limits)
    return GpuHealth(
        device=device,
        readings=len(readings),
        utilisation=_of([reading.utilisation for reading in readings], fmean, 1e-2),
        sm_clock=_of([reading.sm_clock for reading in readings], median, 1e6),
        sm_clock_limit=sm_limit,
        memory_clock=_of([reading.memory_clock for reading in readings], median, 1e6),
        memory_clock_limit=memory_limit,
        temperature=_of([reading.temperature for reading in readings], max, 1.0),
        power=_mean_power(readings),
        throttled={text: share for text, share in (shares | _held_shares(readings)).items() if share},
        others=others,
        mig=mig,
    )


def _mean_power(readings: Sequence[GpuReading]) -> float | None:
    """Mean power in W: by the energy between the readings, or else by the driver's samples."""
    known = [(reading.at, reading.energy) for reading in readings if reading.energy is not None]
    if known and known[-1][0] > known[0][0]:
        (begin, first), (end, last) = known[0], known[-1]
        return (last - first) * 1e-3 / (end - begin)
    return _of([reading.power for reading in readings], fmean, 1e-3)


def _held_shares(readings: Sequence[GpuReading]) -> dict[str, float]:
    """The shares of time in which clocks were held back, by those of the driver's counters that moved."""
    if not readings or readings[0].at == readings[-1].at:
        return {}
    first, last = readings[0], readings[-1]
    moved = {text: last.held[text] - held for text, held in first.held.items() if text in last.held}
    return {text: min(1.0, time * 1e-9 / (last.at - first.at)) for text, time in moved.items() if time > 0}


def _of(values: Sequence[int | None], average: Callable[[list[int]], float], factor: float) -> float | None:
    known = [value for value in values if value is not None]
    return average(known) * factor if known else None
