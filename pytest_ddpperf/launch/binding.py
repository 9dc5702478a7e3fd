"""Which cores a rank has for itself, where ranks are bound to shares of them."""

from __future__ import annotations

import os
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.instruments.host import core_list, kernel_text, nodes_of_cores
from pytest_ddpperf.launch.devices import near_cores

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_ROOT = Path("/")


def own_cores(addresses: Sequence[str | None], rank: int, environ: Mapping[str, str], root: Path = _ROOT) -> list[int]:
    """The cores that a rank has for itself; ``addresses``: of all ranks' GPUs, whose near cores are dealt out first.

    Raises:
        SettingError: there are fewer cores than ranks.
    """
    near = [near_cores(addresses, other, environ, root) for other in range(len(addresses))]
    peers = [other for other, cores in enumerate(near) if cores == near[rank]]
    if not near[rank]:
        return shares(os.sched_getaffinity(0), len(addresses), root)[rank]
    return shares(near[rank], len(peers), root)[peers.index(rank)]


def shares(cores: Iterable[int], ranks: int, root: Path = _ROOT) -> list[list[int]]:
    """Cores for each of so many ranks, as many for each as can be, and of one NUMA node where there are enough.

    Hardware threads of one core go to one rank where that leaves none without.

    Raises:
        SettingError: there are fewer cores than ranks.
    """
    allowed = set(cores)
    if len(allowed) < ranks:
        raise SettingError(
            f"cpu_binding=cores gives each rank cores of its own, and {ranks} ranks have {len(allowed)} "
            f"({core_list(allowed)}): use fewer ranks, or cpu_binding=none"
        )
    nodes = [[*map(list, _whole_cores(node, root))] for node in nodes_of_cores(allowed, root).values()]
    if len(nodes) > ranks:  # a share has several nodes
        nodes = [[core for node in nodes for core in node]]
    sizes = [sum(map(len, node)) for node in nodes]
    found = [part for node, count in zip(nodes, _apportioned(ranks, sizes), strict=True) for part in _cut(node, count)]
    return [sorted(part) for part in found]


def _whole_cores(cores: Iterable[int], root: Path) -> list[list[int]]:
    """Cores with the hardware threads of each together."""
    allowed, found = set(cores), dict[int, list[int]]()
    for core in sorted(allowed):
        text = kernel_text(root / f"sys/devices/system/cpu/cpu{core}/topology/core_id").strip()
        package = kernel_text(root / f"sys/devices/system/cpu/cpu{core}/topology/physical_package_id").strip()
        number = int(text) + (int(package or 0) << 20) if text else (1 << 40) + core
        found.setdefault(number, []).append(core)
    return [*found.values()]


def _apportioned(ranks: int, sizes: Sequence[int]) -> list[int]:
    """Returns how many of so many ranks each node gets: in proportion to its cores, and no more than it has."""
    counts = [0] * len(sizes)
    for _ in range(ranks):  # each to the node that then has most cores for a rank
        node = max(range(len(sizes)), key=lambda i: (sizes[i] / (counts[i] + 1), -i))
        counts[node] += 1
    return counts


def _cut(cores: Sequence[Sequence[int]], parts: int) -> list[list[int]]:
    """Cores in so many parts; hardware threads stay together where there are as many cores as parts."""
    if not parts:
        return []
    pieces = cores if len(cores) >= parts else [[thread] for core in cores for thread in core]
    ends = [0, *accumulate(len(pieces) // parts + (part < len(pieces) % parts) for part in range(parts))]
    return [[core for piece in pieces[ends[i] : ends[i + 1]] for core in piece] for i in range(parts)]
