"""Reads, in the controller, signs that other processes, throttling, heat or swapping disturb a launch. No torch."""

from __future__ import annotations

import math
import os
import resource
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Generic, TypeVar

from pytest_ddpperf.instruments import nvml
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.deadlines import late
from pytest_ddpperf.instruments.host import group_folders, kernel_number, kernel_table, kernel_text
from pytest_ddpperf.records.launch import CpuHealth, GpuHealth, Health, Window

_ROOT = Path("/")
_CORES = "sys/devices/system/cpu"
_IDLE, _IOWAIT, _STEAL, _COUNTED = 3, 4, 7, 8  # columns of /proc/stat; user includes the columns after them
_OWN_TIMES = slice(11, 15)  # fields after the name in /proc/PID/stat: utime, stime, and those of reaped children
INTERVAL = 0.25  # seconds: the driver renews the figures of GPUs a few times a second
_ENERGY_SECONDS = 0.1  # between readings of energy: a counter of 32 bits goes round in a minute at the soonest
_MAX_WAIT = 5.0  # seconds to wait for the last reading of a thread

T = TypeVar("T")
Counters = Mapping[str, float]
Watch = Callable[[Window | None], Health]


class Sampler(Generic[T]):
    """A thread that calls ``read`` every ``interval`` seconds until ``stop``, if the first call returns data."""

    def __init__(self, read: Callable[[], T], interval: float) -> None:
        self._read, self._interval = read, interval
        self._samples: list[tuple[float, T]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ddpperf-sampler", daemon=True)
        if self._sample():
            self._thread.start()

    def stop(self, window: Window | None) -> Sequence[tuple[float, T]] | None:
        """Returns the readings within ``window`` (begin and end; None: all), with times; None if ``read`` hangs."""
        self._stopped.set()
        if self._samples:
            self._thread.join(_MAX_WAIT)
        if self._thread.is_alive():
            late(f"a reading of the machine's state had not ended after {_MAX_WAIT:g} s")
            return None
        begin, end = window or (-math.inf, math.inf)
        return [each for each in self._samples if begin <= each[0] <= end]

    def _watch(self) -> None:
        while not self._stopped.wait(self._interval):
            self._sample()
        self._sample()

    def _sample(self) -> bool:
        at, reading = time.monotonic(), self._read()
        if reading:
            self._samples.append((at, reading))
        return bool(reading)


def read_counters(pids: Collection[int], root: Path = _ROOT) -> Counters:
    """Reads the kernel's counters; fast enough to be called before and after every launch.

    ``busy``, ``steal`` and ``total`` are clock ticks of the usable cores; ``busy`` has neither idle nor stolen ticks.
    ``ours`` are the ticks of the processes ``pids`` and of their ended children. ``throttled`` is the time in seconds
    that a control group waited for its quota. ``overheated`` is how often cores were too hot. ``swapped`` is the number
    of pages to and from swap. Values that the system does not report are missing.
    """
    usable = os.sched_getaffinity(0)
    ours = [process_ticks(kernel_text(root / f"proc/{pid}/stat")) for pid in pids]
    throttled = [throttled_seconds(kernel_text(folder / "cpu.stat")) for folder in group_folders("cpu", root)]
    counts = [kernel_number(root / _CORES / f"cpu{core}/thermal_throttle/core_throttle_count") for core in usable]
    overheated = [times for times in counts if times is not None]
    paging = kernel_table(kernel_text(root / "proc/vmstat"))
    found = {
        **core_ticks(kernel_text(root / "proc/stat"), usable),
        "ours": None if None in ours else sum(filter(None, ours)),
        "throttled": max((seconds for seconds in throttled if seconds is not None), default=None),
        "overheated": sum(overheated) if overheated else None,
        "swapped": paging["pswpin"] + paging["pswpout"] if {"pswpin", "pswpout"} <= paging.keys() else None,
    }
    return {name: number for name, number in found.items() if number is not None}


def cpu_health(before: Counters, after: Counters, root: Path = _ROOT) -> CpuHealth:
    """Returns the CPU's health between two results of ``read_counters``, and the cores' governor and frequency."""
    more = {name: max(0, after[name] - before[name]) for name in before.keys() & after.keys()}
    total, throttled, hot, swapped = map(more.get, ("total", "throttled", "overheated", "swapped"))
    folders = [root / _CORES / f"cpu{core}/cpufreq" for core in sorted(os.sched_getaffinity(0))]
    read = [kernel_number(folder / "scaling_cur_freq") for folder in folders]  # in kHz
    frequencies = [1e3 * frequency for frequency in read if frequency is not None]
    governors = {kernel_text(folder / "scaling_governor").strip() for folder in folders} - {""}
    return CpuHealth(
        others=max(0.0, more["busy"] - more["ours"]) / total if total and "ours" in more else None,
        steal=more["steal"] / total if total else None,
        throttled=throttled,
        overheated=None if hot is None else int(hot),
        swapped=None if swapped is None else int(swapped) * resource.getpagesize(),
        governor=",".join(sorted(governors)) or None,
        frequency=fmean(frequencies) if frequencies else None,
    )


def core_ticks(text: str, usable: Collection[int]) -> dict[str, int]:
    """Returns sums of the usable cores' ``busy``, ``steal`` and ``total`` ticks in /proc/stat; {} for unknown cores."""
    wanted = {f"cpu{core}" for core in usable}
    rows = [line.split() for line in text.splitlines()]
    found = [list(map(int, row[1 : _COUNTED + 1])) for row in rows if row and row[0] in wanted and len(row) > _COUNTED]
    if not found:
        return {}
    ticks = list(map(sum, zip(*found, strict=True)))
    idle = ticks[_IDLE] + ticks[_IOWAIT]
    return {"busy": sum(ticks) - ticks[_STEAL] - idle, "steal": ticks[_STEAL], "total": sum(ticks)}


def process_ticks(text: str) -> int | None:
    """Returns the CPU ticks of a process and its ended children, from /proc/PID/stat; None if this text is empty."""
    _, _, rest = text.rpartition(")")  # the name may contain any character
    times = rest.split()[_OWN_TIMES]
    return sum(map(int, times)) if times else None


def throttled_seconds(text: str) -> float | None:
    """Returns the seconds that a control group waited for its CPU quota, from cpu.stat (v2: us, v1: ns)."""
    facts = kernel_table(text)
    if "throttled_usec" in facts:
        return facts["throttled_usec"] / 1e6
    return facts["throttled_time"] / 1e9 if "throttled_time" in facts else None


def watch_power(root: Path = _ROOT, interval: float = _ENERGY_SECONDS) -> Callable[[Window | None], float | None]:
    """Starts to measure the power of processor packages (RAPL); the returned function gives the mean in W, or None."""
    zones = sorted((root / "sys/class/powercap").glob("intel-rapl:*"))  # AMD's too; often for root alone
    packages = [
        zone for zone in zones if zone.name.count(":") == 1 and kernel_text(zone / "name").startswith("package")
    ]
    ranges = [kernel_number(package / "max_energy_range_uj") or 0 for package in packages]

    def read() -> list[int]:
        counters = [kernel_number(package / "energy_uj") for package in packages]
        known = [counter for counter in counters if counter is not None]
        return known if len(known) == len(counters) else []

    sampler = Sampler(read, interval)
    return lambda window: mean_power(sampler.stop(window) or (), ranges)


def mean_power(readings: Sequence[tuple[float, Sequence[int]]], ranges: Sequence[int]) -> float | None:
    """Returns the mean power in W from readings of counters in uJ; each counter restarts at 0 after its range."""
    if not readings or readings[-1][0] <= readings[0][0]:
        return None
    used = sum(
        now - before if now >= before else now - before + most
        for (_, earlier), (_, later) in pairwise(readings)
        for before, now, most in zip(earlier, later, ranges, strict=True)
    )
    return used * 1e-6 / (readings[-1][0] - readings[0][0])


def watch_health(ranks_parents: Collection[int | None], *, gpus: Sequence[str] = (), root: Path = _ROOT) -> Watch:
    """Starts to watch the machine; returns a function that ends the watch and returns the health.

    The returned function takes the begin and end of the timed steps. ``ranks_parents`` are the pids of the processes
    that fork the ranks. If a pid is None, the CPU time of other processes is unknown. ``gpus`` are the PCI ids of the
    ranks' GPUs. ``root`` is the folder that holds ``sys``.
    """
    pids = (os.getpid(), *(0 if pid is None else pid for pid in ranks_parents))  # no process has the number 0
    gpus_seen = watch_gpus(gpus) if gpus else None
    power, before = watch_power(root), read_counters(pids)

    def seen(window: Window | None) -> Health:
        cpu = replace(cpu_health(before, read_counters(pids)), power=power(window))
        healths, unread = ((), ()) if gpus_seen is None else gpus_seen(window)
        return Health(cpu=cpu, gpus=healths, unread_gpus=unread)

    return seen


GpusSeen = tuple[tuple[GpuHealth, ...], tuple[str, ...]]
"""The health of each GPU that was read, and for each other GPU a text that says why it is unknown."""


def watch_gpus(devices: Sequence[str], interval: float = INTERVAL) -> Callable[[Window | None], GpusSeen]:
    """Starts to read the GPUs with these PCI ids every ``interval`` seconds.

    Returns a function that stops reading. For a window of time (None: since the start) it returns the GPUs' health, and
    texts that say why GPUs could not be read.
    """
    library, missing = nvml.library()
    if library is None:
        return lambda _: ((), (missing,))
    handles, refused = nvml.opened(library, devices)
    before = {device: nvml.processes(library, handle) for device, handle in handles.items()}
    sampler = Sampler(lambda: {device: nvml.read_gpu(library, handle) for device, handle in handles.items()}, interval)

    def seen(window: Window | None) -> GpusSeen:
        samples = sampler.stop(window)
        if samples is None:  # the tests must not wait for it
            return (), ("the driver does not answer",)
        return tuple(health(device, samples) for device in handles), refused

    def health(device: str, samples: Sequence[tuple[float, Mapping[str, nvml.GpuReading]]]) -> GpuHealth:
        handle = handles[device]
        clocks = (library.NVML_CLOCK_SM, library.NVML_CLOCK_MEM)
        limits = [nvml.ask(library, "nvmlDeviceGetMaxClockInfo", handle, clock) for clock in clocks]
        mig, after = nvml.in_mig_mode(library, handle), nvml.processes(library, handle)
        stayed = {pid: size for pid, size in after.items() if pid in before[device] and pid != os.getpid()}
        of_device = [(at, readings[device]) for at, readings in samples]
        return gpu_health(
            device, of_device, limits, {} if mig else stayed, mig=mig
        )  # a process may be of another instance

    return seen


def gpu_health(
    device: str,
    samples: Sequence[tuple[float, nvml.GpuReading]],
    limits: Sequence[int | None],
    others: Mapping[int, int | None],
    *,
    mig: bool = False,
) -> GpuHealth:
    """Summarises a GPU's readings, which are pairs of a time in seconds and a reading.

    ``limits`` are the highest clocks of multiprocessors and memory, in MHz. ``others`` has, by pid, the bytes of other
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
        text: sum(bool(reason & bit) for reason in reasons) / len(reasons)
        for bit, text in nvml.REASONS.items()
        if reasons
    }
    counted = {
        text: min(1.0, 1e-9 * held) for text in nvml.POLICIES.values() if (held := rate(f"held by {text}") or 0.0) > 0
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
