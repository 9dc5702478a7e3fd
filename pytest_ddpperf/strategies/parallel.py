"""What a strategy is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import nn

    from pytest_ddpperf.records import Mode


class RankView(Protocol):
    """What strategies and steps need to know of the rank they run on; the process group is already there."""

    @property
    def rank(self) -> int:
        """Number of this rank among all, from 0."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def local_rank(self) -> int:
        """Number of this rank on its machine, from 0."""

    @property
    def local_world_size(self) -> int:
        """Number of ranks on this machine."""

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""

    @property
    def backend(self) -> str:
        """``gloo`` or ``nccl``."""

    @property
    def mode(self) -> Mode | None:
        """How a point of a scaling curve is measured; None for a plain benchmark."""


@dataclass(frozen=True)
class Parallel:
    """A module made ready to be trained by several ranks.

    Attributes:
        module: what the forward pass is to be run through.
        synchronise: called after backward and before the optimizer's step; when it returns, every rank's gradients
            are the mean over the ranks (on CUDA: are queued to be so on the current stream).
    """

    module: nn.Module
    synchronise: Callable[[], None]
