"""Reads clocks, temperature and load of GPUs during a launch, through NVML, in a thread of the controller."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from pytest_ddpperf.instruments.nvml import ask, in_mig_mode, library, opened
from pytest_ddpperf.instruments.sampling import Sampler
from pytest_ddpperf.records.launch import GpuHealth, Window

INTERVAL = 0.25  # seconds: the driver renews its figures a few times a second

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

GpuReading = Mapping[str, int]
"""The driver's report on a GPU at one moment, in its own units: ``utilisation`` (percent), ``sm_clock`` and
``memory_clock`` (MHz), ``temperature`` (degrees Celsius), ``power`` (mW), ``reasons`` (bits of REASONS), ``energy`` (mJ
since the driver was loaded), ``held by`` one of POLICIES (ns for which clocks were held back). Unreported values are
missing.
"""
GpusSeen = tuple[tuple[GpuHealth, ...], tuple[str, ...]]
"""The health of each GPU that was read, and for each other GPU a text that says why it is unknown."""


def watch_gpus(devices: Sequence[str], interval: float = INTERVAL) -> Callable[[Window | None], GpusSeen]:
    """Starts to read the GPUs with these PCI ids every ``interval`` seconds.

    Returns a function that ends the readings and returns the GPUs' health in a window of time (None: since the start).
    The health of a GPU that cannot be opened has only the reason.
    """
    nvml, missing = library()
    if nvml is None:
        return lambda _: ((), (missing,))
    handles, refused = opened(nvml, devices)
    before = {device: processes(nvml, handle) for device, handle in handles.items()}
    sampler = Sampler(lambda: {device: read_gpu(nvml, handle) for device, handle in handles.items()}, interval)

    def seen(window: Window | None) -> GpusSeen:
        samples = sampler.stop(window)
        if samples is None:  # the tests must not wait for it
            return (), ("the driver does not answer",)
        return tuple(health(device, samples) for device in handles), refused

    def health(device: str, samples: Sequence[tuple[float, Mapping[str, GpuReading]]]) -> GpuHealth:
        handle = handles[device]
        clocks = (nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM)
        limits = [ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, clock) for clock in clocks]
        mig, after = in_mig_mode(nvml, handle), processes(nvml, handle)
        stayed = {pid: size for pid, size in after.items() if pid in before[device] and pid != os.getpid()}
        of_device = [(at, readings[device]) for at, readings in samples]
        return gpu_health(
            device, of_device, limits, {} if mig else stayed, mig=mig
        )  # a process may be of another instance

    return seen


def read_gpu(nvml: Any, handle: Any) -> GpuReading:
    """Returns the present clocks, power, load and memory of a GPU as the driver reports them."""
    utilisation = ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
    held = {text: ask(nvml, "nvmlDeviceGetViolationStatus", handle, policy) for policy, text in POLICIES.items()}
    # Libraries of newer drivers have another name for why clocks are held back.
    newer, older = (f"nvmlDeviceGetCurrentClocks{name}Reasons" for name in ("Event", "Throttle"))
    found = {
        "utilisation": None if utilisation is None else utilisation.gpu,
        "sm_clock": ask(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        "memory_clock": ask(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
        "temperature": ask(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
        "power": ask(nvml, "nvmlDeviceGetPowerUsage", handle),
        "reasons": ask(nvml, newer if hasattr(nvml, newer) else older, handle),
        "energy": ask(nvml, "nvmlDeviceGetTotalEnergyConsumption", handle),
        **{f"held by {text}": None if status is None else status.violationTime for text, status in held.items()},
    }
    return {name: value for name, value in found.items() if value is not None}


def processes(nvml: Any, handle: Any) -> dict[int, int | None]:
    """Returns bytes of a GPU's memory by id of the process; in a container the ids may be the host's."""
    found = ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or ()
    return {process.pid: process.usedGpuMemory for process in found}


def gpu_health(
    device: str,
    samples: Sequence[tuple[float, GpuReading]],
    limits: Sequence[int | None],
    others: Mapping[int, int | None],
    *,
    mig: bool = False,
) -> GpuHealth:
    """Summarises a GPU's readings, pairs of a time in seconds and a reading; a short window may have no reading.

    ``limits`` are the highest clocks of multiprocessors and memory, in MHz; ``others`` are the bytes, by pid, of other
    processes that used the GPU before and after the launch. Power and throttling come from counters if available.
    """

    def known(name: str) -> list[tuple[float, int]]:
        return [(at, reading[name]) for at, reading in samples if name in reading]

    def average(name: str, of: Callable[[list[int]], float], factor: float) -> float | None:
        values = [value for _, value in known(name)]
        return of(values) * factor if values else None

    def rate(counter: str) -> float | None:
        counts = known(counter)
        if not counts or counts[-1][0] == counts[0][0]:
            return None
        return (counts[-1][1] - counts[0][1]) / (counts[-1][0] - counts[0][0])

    reasons = [reason for _, reason in known("reasons")]
    sampled = {
        text: sum(bool(reason & bit) for reason in reasons) / len(reasons) for bit, text in REASONS.items() if reasons
    }
    counted = {
        text: min(1.0, 1e-9 * held) for text in POLICIES.values() if (held := rate(f"held by {text}") or 0.0) > 0
    }
    energy = rate("energy")
    sm_limit, memory_limit = (None if limit is None else limit * 1e6 for limit in limits)
    return GpuHealth(
        device=device,
        readings=len(samples),
        utilisation=average("utilisation", fmean, 1e-2),
        sm_clock=average("sm_clock", median, 1e6),
        sm_clock_limit=sm_limit,
        memory_clock=average("memory_clock", median, 1e6),
        memory_clock_limit=memory_limit,
        temperature=average("temperature", max, 1.0),
        power=average("power", fmean, 1e-3) if energy is None else 1e-3 * energy,
        throttled={text: share for text, share in (sampled | counted).items() if share},
        others=others,
        mig=mig,
    )
