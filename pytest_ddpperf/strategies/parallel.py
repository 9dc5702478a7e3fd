"""What a strategy is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import nn

    from pytest_ddpperf.records.measurement import Mode


Precision = Literal["fp32", "tf32", "bf16", "fp16"]
OptimizerFactory: TypeAlias = "Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]"
MakeOptimizer: TypeAlias = "Callable[[OptimizerFactory], torch.optim.Optimizer]"


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

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """A context for a part of the step, to be shown under a name of its own."""


def nothing() -> None:
    """Nothing is left to be done."""


@dataclass(frozen=True)
class Parallel:
    """A module made ready to be trained by several ranks.

    Attributes:
        module: what the forward pass is to be run through.
        synchronise: called after the last backward of a step (after each one where ``no_sync`` is left out) and before
            the optimizer's step; when it returns, every rank's gradients are the mean over the ranks (on CUDA: are
            queued to be so on the current stream).
        no_sync: a context for forward and backward of a micro-batch whose gradients are only added up locally. None
            where backward sends nothing anyway.
        unsynchronised: a context for forward and backward of a step that is not to be synchronised, which leaves
            gradients that the optimizer can step with. None where ``no_sync`` is just that.
        still_sent: what such a step sends all the same, in words; empty for nothing.
        make_optimizer: what turns a Workload's ``optimizer(parameters)`` into the optimizer that fits the module.
        clip_grad_norm: scales the synchronised gradients so that their global norm, over all shards, is at most the
            given one; gives back the norm before.
        make_scaler: gives the gradient scaler for fp16; None for ``torch.amp.GradScaler``.
        gradients: the whole gradients on the CPU, by the names that the parameters had before; a collective where the
            module is sharded, so called on all ranks. None values for parameters without a gradient.
        parameters: the whole parameters likewise.
        precision: the narrowest type that gradients are computed or sent in, beside the precision of the benchmark.
        period: after how many steps what it does repeats, where not every step does the same.
        lossy: whether its gradients are not those of a single process, by design: it is then held to convergence.
        exact_steps: how many of the first steps a lossy strategy averages gradients as all others do. Where several
            micro-batches of a step are synchronised, each counts as a step.
    """

    module: nn.Module
    synchronise: Callable[[], None] = nothing
    no_sync: Callable[[], AbstractContextManager[Any]] | None = None
    unsynchronised: Callable[[], AbstractContextManager[Any]] | None = None
    still_sent: str = ""
    make_optimizer: MakeOptimizer | None = None
    clip_grad_norm: Callable[[float], torch.Tensor] | None = None
    make_scaler: Callable[[], torch.amp.GradScaler] | None = None
    gradients: Callable[[], dict[str, torch.Tensor | None]] | None = None
    parameters: Callable[[], dict[str, torch.Tensor]] | None = None
    precision: Precision = "fp32"
    lossy: bool = False
    exact_steps: int = 0
    period: int = 1
