"""Whether copies of parameters and optimizer state fit into the machines' memory. Importable without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpperf.instruments.host import available_memory, kernel_text
from pytest_ddpperf.records.communication import MemoryHeadroom

if TYPE_CHECKING:
    import torch

SPARED = 0.25  # of the available memory: left to other processes
_UNKNOWN = 2**62  # bytes: more than any copy needs
_ROOT = Path("/")


def headroom_for(nbytes: int, device: torch.device) -> MemoryHeadroom:
    """The headroom for a copy of ``nbytes`` on each rank, on the machine with the least; the same on all ranks.

    A collective. No rank may decide alone: if one rank left out steps, the others would wait for it.
    """
    import torch
    import torch.distributed as dist

    available = available_memory()
    numbers = [machine_number(), nbytes, _UNKNOWN if available is None else available]
    own = torch.tensor(numbers, dtype=torch.int64, device=device)
    ranks = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(ranks, own)
    return least_headroom([tuple(rank.tolist()) for rank in ranks])


def free_memory() -> int | None:
    """Bytes that benchmarks may take on this machine; None if the system does not report them."""
    available = available_memory()
    return None if available is None else int((1 - SPARED) * available)


def least_headroom(ranks: Sequence[tuple[int, ...]]) -> MemoryHeadroom:
    """The least headroom of all machines, from each rank's machine number, needed bytes and available bytes."""
    headrooms = []
    for machine in {rank[0] for rank in ranks}:
        needed, available = zip(*(rank[1:] for rank in ranks if rank[0] == machine), strict=True)
        headrooms.append(MemoryHeadroom(needed=sum(needed), free=int((1 - SPARED) * min(available))))
    return min(headrooms, key=lambda headroom: headroom.free - headroom.needed)


def machine_number(root: Path = _ROOT) -> int:
    """A number that all processes of a machine share, and other machines almost never do; 0 if unknown.

    ``root`` is the folder that holds ``proc``.
    """
    boot = kernel_text(root / "proc/sys/kernel/random/boot_id").strip().replace("-", "")
    return int(boot or "0", 16) >> 66  # of 128 bits, so that it fits into int64
