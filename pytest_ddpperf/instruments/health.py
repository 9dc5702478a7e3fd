"""The machine's health during a launch, read by the controller; the ranks do nothing for it. Imports no torch."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from pytest_ddpperf.instruments.cpu_power import CpuPowerWatch
from pytest_ddpperf.instruments.host import group_folders, kernel_number, kernel_table, kernel_text
from pytest_ddpperf.records.health import CpuHealth, Health
from pytest_ddpperf.records.launch import Window

_ROOT = Path("/")
_CORES = "sys/devices/system/cpu"
_IDLE, _IOWAIT, _STEAL, _COUNTED = 3, 4, 7, 8  # columns of /proc/stat; those behind are included in user's
_OWN_TIMES = slice(11, 15)  # fields after the name in /proc/PID/stat: utime, stime, and those of reaped children


@dataclass(frozen=True)
class Ticks:
    """What usable cores have done since the machine started, in clock ticks."""

    busy: int  # all but idle, the wait for disks, and steal
    steal: int
    total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuReading:
    """The kernel's counters at one moment; None for what it does not report."""

    cores: Ticks | None  # of the usable cores
    ours: int | None  # clock ticks that our processes have used so far
    throttled: float | None  # seconds that control groups waited for their quota, added up over cores
    overheated: int | None  # how many times usable cores were too hot
    swapped: int | None  # pages to and from swap
    frequencies: tuple[float, ...] = ()  # in Hz, of the usable cores
    governors: tuple[str, ...] = ()  # of the usable cores, each once


def read_cpu(pids: Collection[int], root: Path = _ROOT) -> CpuReading:
    """Reads the kernel's counters; cheap enough to be done before and after every launch.

    ``pids`` are our processes; what a process's children used becomes its own once they have ended.
    """
    usable = os.sched_getaffinity(0)
    folders = [root / _CORES / f"cpu{core}" for core in sorted(usable)]
    ours = [process_ticks(kernel_text(root / f"proc/{pid}/stat")) for pid in pids]
    known = [ticks for ticks in ours if ticks is not None]
    frequencies = [kernel_number(folder / "cpufreq/scaling_cur_freq") for folder in folders]  # in kHz
    governors = {kernel_text(folder / "cpufreq/scaling_governor").strip() for folder in folders} - {""}
    throttled = (throttled_seconds(kernel_text(folder / "cpu.stat")) for folder in group_folders("cpu", root))
    counted = [kernel_number(folder / "thermal_throttle/core_throttle_count") for folder in folders]
    overheated = [times for times in counted if times is not None]
    return CpuReading(
        cores=core_ticks(kernel_text(root / "proc/stat"), usable),
        ours=sum(known) if len(known) == len(ours) else None,
        throttled=max((seconds for seconds in throttled if seconds is not None), default=None),
        overheated=sum(overheated) if overheated else None,
        swapped=swapped_pages(kernel_text(root / "proc/vmstat")),
        frequencies=tuple(1e3 * frequency for frequency in frequencies if frequency is not None),
        governors=tuple(sorted(governors)),
    )


def cpu_health(before: CpuReading, after: CpuReading) -> CpuHealth:
    """The difference of two readings."""
    others = steal = None
    if before.cores is not None and after.cores is not None and after.cores.total > before.cores.total:
        total = after.cores.total - before.cores.total
        steal = max(0, after.cores.steal - before.cores.steal) / total
        ours = _difference(before.ours, after.ours)
        if ours is not None:
            others = max(0.0, after.cores.busy - before.cores.busy - ours) / total
    swapped = _difference(before.swapped, after.swapped)
    overheated = _difference(before.overheated, after.overheated)
    return CpuHealth(
        others=others,
        steal=steal,
        throttled=_difference(before.throttled, after.throttled),
        overheated=None if overheated is None else int(overheated),
        swapped=None if swapped is None else int(swapped) * resource.getpagesize(),
        governor=",".join(after.governors) or None,
        frequency=fmean(after.frequencies) if after.frequencies else None,
    )


def core_ticks(text: str, usable: Collection[int]) -> Ticks | None:
    """The ticks of the usable cores together, from /proc/stat (proc(5)); None if it has none of them."""
    wanted = {f"cpu{core}" for core in usable}
    rows = [line.split() for line in text.splitlines()]
    found = [[int(word) for word in words[: _COUNTED + 1]] for name, *words in filter(None, rows) if name in wanted]
    found = [ticks[:_COUNTED] for ticks in found if len(ticks) >= _COUNTED]
    if not found:
        return None
    total = sum(map(sum, found))
    steal = sum(ticks[_STEAL] for ticks in found)
    return Ticks(total - steal - sum(ticks[_IDLE] + ticks[_IOWAIT] for ticks in found), steal, total)


def process_ticks(text: str) -> int | None:
    """The ticks that a process and its ended children have used, from /proc/PID/stat; None if it is empty."""
    _, _, rest = text.rpartition(")")  # the name may contain any character
    times = rest.split()[_OWN_TIMES]
    return sum(map(int, times)) if times else None


def throttled_seconds(text: str) -> float | None:
    """How long the quota of a control group kept its cores waiting, from its cpu.stat (v2: in us, v1: in ns)."""
    facts = kernel_table(text)
    if "throttled_usec" in facts:
        return facts["throttled_usec"] / 1e6
    return facts["throttled_time"] / 1e9 if "throttled_time" in facts else None


def swapped_pages(text: str) -> int | None:
    """Pages that went to swap or came from it, from /proc/vmstat; None if it does not say."""
    facts = kernel_table(text)
    return facts["pswpin"] + facts["pswpout"] if {"pswpin", "pswpout"} <= facts.keys() else None


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0, after - before)


Watch = Callable[[Window | None], Health]


def watch_health(ranks_parents: Collection[int | None], *, gpus: Sequence[str] = (), root: Path = _ROOT) -> Watch:
    """Starts to watch; call the result with the window of the timed steps when the launch has ended.

    ``ranks_parents`` are the pids of the processes that fork the ranks and outlive them. None stands for a process that
    does not exist yet; then other processes' CPU time cannot be told from the ranks'.
    ``gpus`` are the PCI ids of the GPUs that ranks compute on, ``root`` holds the ``sys`` that shows energy.
    """
    pids = (os.getpid(), *(0 if pid is None else pid for pid in ranks_parents))  # no process has the number 0
    gpus_seen = None
    if gpus:
        from pytest_ddpperf.instruments.gpu_health import watch_gpus

        gpus_seen = watch_gpus(gpus)
    power, before = CpuPowerWatch(root), read_cpu(pids)

    def seen(window: Window | None) -> Health:
        cpu = replace(cpu_health(before, read_cpu(pids)), power=power.stop(window))
        healths, unread = ((), ()) if gpus_seen is None else gpus_seen(window)
        return Health(cpu=cpu, gpus=healths, unread_gpus=unread)

    return seen
