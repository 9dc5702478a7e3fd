"""The context: a function's first argument on a rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_ddpperf.instruments.phases.recorder import Section

if TYPE_CHECKING:
    import torch

    from pytest_ddpperf.records.measurement import Mode


@dataclass(frozen=True)
class RankContext:
    """The first argument of every function on a rank. The default process group is already initialised.

    The same function runs on the ranks of one controller or of many.

    Attributes:
        rank: the global rank, from 0 to ``world_size`` - 1.
        world_size: the number of ranks.
        local_rank: the rank's number among those of its controller.
        local_world_size: the number of ranks of its controller.
        device: the device that this rank computes on; a CUDA device is also the current device.
        backend: ``gloo`` or ``nccl``.
        mode: ``weak`` or ``strong`` at a point of a scaling curve; None for a plain benchmark.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device
    backend: str
    mode: Mode | None

    def phase(self, name: str) -> Section:
        """Mark a part of the step: the report shows its time and memory under ``name``.

        Sections may be nested, and entered many times in a step. A section with the name of a phase (``data_wait``,
        ``forward``, ``backward``, ``gradient_sync``, ``optimizer``) marks that phase in code where the plugin does not
        recognise it. In timed steps a section does nothing, at no measurable cost.

        Args:
            name: the name of the section.

        Returns:
            A context manager.
        """
        return Section(name)
