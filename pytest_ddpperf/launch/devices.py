"""Prepares the GPU of a rank, and chooses the CPU cores of each rank."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.host import core_list, group_folders, kernel_numbers, kernel_text, nodes_of_cores
from pytest_ddpperf.launch.environment import thread_count
from pytest_ddpperf.launch.messages import grouped
from pytest_ddpperf.units import format_value

if TYPE_CHECKING:
    import torch

_ROOT = Path("/")
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")  # by which users bind threads
_TAKEN_SHARE = 0.25  # of a GPU's memory: more than the contexts of ranks that share it take
_FREED_SECONDS, _FREEING_SECONDS = 0.5, 5.0  # the longest wait without newly freed memory, and the longest wait
_POLL = 0.0625


def claim_gpu(device: torch.device, addresses: Sequence[str | None], rank: int, *, check_memory: bool) -> str:
    """Binds this rank to cores near its GPU, makes the GPU the current device, and returns a warning or an empty text.

    ``addresses``: PCI ids of all ranks' GPUs. ``check_memory``: whether to warn if other processes use GPU memory.
    """
    import torch

    cores = near_cores(addresses, os.environ)[rank]
    if cores:
        with contextlib.suppress(OSError):  # before CUDA starts threads, which inherit it
            os.sched_setaffinity(0, cores)
    _print_by_line()
    torch.cuda.set_device(device)
    taken = settled_memory(lambda: torch.cuda.mem_get_info(device)) if check_memory else ""
    remark = f"GPU {device.index} of rank {rank}: other processes took {taken} before it began" if taken else ""
    if remark:
        print(remark, file=sys.stderr)  # noqa: T201  if the rank fails, its output is shown
    return remark


def _print_by_line() -> None:
    """Makes C's stdout line-buffered: NCCL prints warnings there, and a killed rank does not flush a buffer."""
    library = ctypes.CDLL(None)
    library.setlinebuf(ctypes.c_void_p.in_dll(library, "stdout"))


def settled_memory(
    read: Callable[[], tuple[int, int]],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """Returns a text if, after a wait, other processes still use over a quarter of a GPU's memory; else an empty text.

    ``read`` returns the free bytes and all bytes of the GPU.
    """
    free, total = read()
    begun = freed = clock()
    while free < (1 - _TAKEN_SHARE) * total and clock() - freed < _FREED_SECONDS and clock() - begun < _FREEING_SECONDS:
        pause(_POLL)
        before, (free, _) = free, read()
        freed = clock() if free > before else freed
    enough = free >= (1 - _TAKEN_SHARE) * total
    return "" if enough else f"{format_value(total - free, 'B')} of {format_value(total, 'B')}"


def near_cores(addresses: Sequence[str | None], environ: Mapping[str, str], root: Path = _ROOT) -> list[set[int]]:
    """Returns the allowed cores near the GPU of each rank; empty if the rank should not be bound.

    ``addresses`` has the PCI ids of all ranks' GPUs. Ranks are not bound if the machine has one NUMA node, if the user
    has bound the process or its threads, or if a rank would have fewer than two cores or fewer cores than threads.
    """
    allowed = os.sched_getaffinity(0)
    files = ("cpuset.cpus.effective", "cpuset.effective_cpus")  # of control groups v2 and v1
    groups = [kernel_numbers(kernel_text(folder / file)) for folder in group_folders("cpuset", root) for file in files]
    offered = next(filter(None, (*groups, kernel_numbers(kernel_text(root / "sys/devices/system/cpu/online")))), set())
    nodes = kernel_numbers(kernel_text(root / "sys/devices/system/node/online"))
    if len(nodes) < 2 or allowed != offered or any(map(environ.get, _BINDING)):  # noqa: PLR2004  several
        return [set() for _ in addresses]
    lists = (kernel_text(root / f"sys/bus/pci/devices/{address}/local_cpulist") for address in addresses)
    near = [allowed & kernel_numbers(text) for text in lists]
    least = max(2, thread_count(environ))
    return [own if len(own) >= near.count(own) * least else set() for own in near]


def own_cores(addresses: Sequence[str | None], rank: int, environ: Mapping[str, str], root: Path = _ROOT) -> list[int]:
    """Returns the CPU cores to bind ``rank`` to, near its GPU in ``addresses`` (PCI ids by rank)."""
    near = near_cores(addresses, environ, root)
    peers = [other for other, cores in enumerate(near) if cores == near[rank]]
    if not near[rank]:
        return shares(os.sched_getaffinity(0), len(addresses), root)[rank]
    return shares(near[rank], len(peers), root)[peers.index(rank)]


def shares(cores: Iterable[int], ranks: int, root: Path = _ROOT) -> list[list[int]]:
    """Divides ``cores`` among ``ranks`` ranks by NUMA node, as evenly as possible; returns the cores of each rank.

    All hardware threads of a physical core go to the same rank, unless some rank would then get no core. Raises
    SettingError if there are fewer cores than ranks.
    """
    allowed = set(cores)
    if len(allowed) < ranks:
        raise SettingError(
            f"cpu_binding=cores needs a core for each rank, and {ranks} ranks have {len(allowed)} "
            f"({core_list(allowed)}): use fewer ranks, or cpu_binding=none"
        )
    pieces = [core for node in nodes_of_cores(allowed, root).values() for core in _whole_cores(node, root)]
    if len(pieces) < ranks:
        pieces = [[thread] for core in pieces for thread in core]
    ends = [-(-len(pieces) * rank // ranks) for rank in range(ranks + 1)]
    return [sorted(thread for core in pieces[begin:end] for thread in core) for begin, end in pairwise(ends)]


def _whole_cores(cores: Iterable[int], root: Path) -> list[list[int]]:
    def core_of(thread: int) -> int:
        file = root / f"sys/devices/system/cpu/cpu{thread}/topology/thread_siblings_list"
        return min(kernel_numbers(kernel_text(file)), default=thread)

    return [*grouped((thread, core_of(thread)) for thread in sorted(cores)).values()]
