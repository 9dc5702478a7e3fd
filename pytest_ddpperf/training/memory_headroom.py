"""Whether copies of what is trained fit into the machines' memory, as all ranks see it. Importable without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpperf.instruments.host import available_memory
from pytest_ddpperf.records.communication import MemoryHeadroom

if TYPE_CHECKING:
    import torch

SPARED = 0.25  # of what is available: left to whatever else needs memory meanwhile
_UNKNOWN = 2**62  # nothing is known to stand against it
_ROOT = Path("/")


def headroom_for(nbytes: int, device: torch.device) -> MemoryHeadroom:
    """The room for a copy of so many bytes on each rank, on the machine with the least: the same answer on all ranks.

    All ranks have to call it together. None may decide for itself: one that leaves out steps that the others run would
    leave them waiting.

    Args:
        nbytes: what this rank copies.
        device: where the ranks can exchange tensors.
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
    """Bytes that what is measured here may take, all else spared; None where the system does not tell."""
    available = available_memory()
    return None if available is None else int((1 - SPARED) * available)


def least_headroom(ranks: Sequence[tuple[int, ...]]) -> MemoryHeadroom:
    """The room on the machine with the least, from each rank's number of its machine, needed and available bytes."""
    rooms = []
    for machine in {rank[0] for rank in ranks}:
        needed, available = zip(*(rank[1:] for rank in ranks if rank[0] == machine), strict=True)
        rooms.append(MemoryHeadroom(needed=sum(needed), free=int((1 - SPARED) * min(available))))
    return min(rooms, key=lambda room: room.free - room.needed)


def machine_number(root: Path = _ROOT) -> int:
    """The same for all processes of a machine and, but for chance, for no others.

    Args:
        root: the folder that holds ``proc``.
    """
    try:
        boot = (root / "proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(boot.strip().replace("-", ""), 16) >> 66  # of 128 bits, so that it fits into int64
