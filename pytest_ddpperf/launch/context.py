"""What a function is told about the rank that it runs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_ddpperf.instruments.phases.section import Section

if TYPE_CHECKING:
    import torch

    from pytest_ddpperf.records.measurement import Mode


@dataclass(frozen=True)
class RankContext:
    """The first argument of every function on a rank. The default process group is already initialised.

    It says where the rank stands, not who started it: the same function runs on ranks of one controller or of many.

    Attributes:
        rank: global, from 0 to ``world_size`` - 1.
        local_rank: among the ranks of this rank's controller.
        local_world_size: how many ranks that controller owns.
        device: where this rank computes; on CUDA it is also the current device.
        backend: ``gloo`` or ``nccl``.
        mode: what a point of a scaling curve holds constant; None for a plain benchmark.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device
    backend: str
    mode: Mode | None

    def phase(self, name: str) -> Section:
        """A context for a part of the step, which is then shown under that name, with its time and memory.

        Sections may be nested, and entered many times in a step. One with the name of a phase (``data_wait``,
        ``forward``, ``backward``, ``gradient_sync``, ``optimizer``) says where that phase is, for code in which it is
        not recognised. In timed steps it does nothing and costs nothing that could be measured.
        """
        return Section(name)
