"""Chooses the CPU cores of each rank for the setting ``cpu_binding=cores``; no core serves two ranks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.instruments.host import core_list, kernel_numbers, kernel_text, nodes_of_cores
from pytest_ddpperf.launch.devices import near_cores

_ROOT = Path("/")


def own_cores(addresses: Sequence[str | None], rank: int, environ: Mapping[str, str], root: Path = _ROOT) -> list[int]:
    """Returns the CPU cores of one rank, near its GPU if it has one; ``addresses``: the PCI id of each rank's GPU.

    Raises:
        SettingError: there are fewer cores than ranks.
    """
    near = [near_cores(addresses, other, environ, root) for other in range(len(addresses))]
    peers = [other for other, cores in enumerate(near) if cores == near[rank]]
    if not near[rank]:
        return shares(os.sched_getaffinity(0), len(addresses), root)[rank]
    return shares(near[rank], len(peers), root)[peers.index(rank)]


def shares(cores: Iterable[int], ranks: int, root: Path = _ROOT) -> list[list[int]]:
    """Divides ``cores`` among ``ranks`` ranks by NUMA node, as evenly as possible; returns the cores of each rank.

    All hardware threads of a physical core go to the same rank, unless some rank would then get no core.

    Raises:
        SettingError: there are fewer cores than ranks.
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
    found = dict[int, list[int]]()
    for thread in sorted(cores):
        siblings = kernel_numbers(
            kernel_text(root / f"sys/devices/system/cpu/cpu{thread}/topology/thread_siblings_list")
        )
        found.setdefault(min(siblings, default=thread), []).append(thread)
    return [*found.values()]
