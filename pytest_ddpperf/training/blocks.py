"""The repeated blocks of a model, which sharding and activation checkpointing treat one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.training.workload import located


def blocks_of(module: nn.Module, chosen: Callable[[nn.Module], Iterable[nn.Module]] | None) -> tuple[nn.Module, ...]:
    """The blocks of a model that the workload chose (a WorkloadError if they are none), or those that repeat."""
    if chosen is None:
        return repeated(module)
    given: Any = chosen(module)
    if not isinstance(given, Iterable):
        raise WorkloadError(
            f"Workload(blocks=...) {located(chosen)} gave a {type(given).__name__}: give back a list of modules of the "
            "model, such as model.layers"
        )
    blocks = tuple(given)
    inside = set(module.modules())
    for block in blocks:
        if not isinstance(block, nn.Module) or block not in inside:
            raise WorkloadError(
                f"Workload(blocks=...) {located(chosen)} gave a {type(block).__name__} that is no module inside the "
                "model: give back modules of the model, such as model.layers"
            )
    return blocks


def repeated(module: nn.Module) -> tuple[nn.Module, ...]:
    """The siblings of one class that hold the most parameters: the layers of a transformer, the stages of a network.

    Only classes with modules inside count, because a Linear is too small to be treated alone. The outermost repetition
    wins. Empty if nothing repeats.
    """
    families: dict[tuple[nn.Module, type[nn.Module]], list[nn.Module]] = defaultdict(list)
    for parent in module.modules():
        for child in parent.children():
            if next(child.children(), None) is not None:
                families[parent, type(child)].append(child)
    candidates = [members for members in families.values() if len(members) > 1 and _size(members)]
    return tuple(max(candidates, key=_size, default=[]))  # the first, and so the outermost, of equals


def recompute(blocks: Sequence[nn.Module]) -> None:
    """Makes each block keep only its inputs and repeat its forward pass in backward; no module changes its name."""
    for block in blocks:
        forward: Callable[..., Any] = block.forward
        block.forward = partial(checkpoint, forward, use_reentrant=False)


def _size(modules: Iterable[nn.Module]) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())
