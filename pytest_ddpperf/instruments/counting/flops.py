"""Floating point operations of matrix products, convolutions and attention, and the modules that they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

OUTSIDE = "outside of modules"
RECOMPUTED = "recomputed in backward"  # by a module itself; the modules inside of it are known

aten = torch.ops.aten

# torch's table lacks the operator that attention is on a CPU; its arguments begin as those of the others do.
_ON_CPU: Mapping[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,  # noqa: SLF001  that is its name
    aten._scaled_dot_product_flash_attention_for_cpu_backward: sdpa_backward_flop,  # noqa: SLF001
}


def flops_of(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int:
    """FLOPs of a call, a multiplication and an addition being two; 0 for what only reads and writes memory.

    By the formulas of torch.utils.flop_counter. Attention counts whole, also where a causal kernel leaves out half.
    """
    packet = func._overloadpacket  # noqa: SLF001  torch offers no other way to ask
    formula = flop_registry.get(packet) or _ON_CPU.get(packet)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=out))


class Attribution:
    """Tells which module an operator belongs to, and whether it is part of forward or backward.

    In forward the innermost module that is running is the one. Each operator there leaves a node in the graph, whose
    number (they are counted up) is noted here; in backward the running node's number leads back to the module. That
    needs no hook in the graph, so it cannot change what backward does.
    """

    def __init__(self) -> None:
        self._modules: dict[int, str] = {}

    def place(self, running: str) -> tuple[str, bool]:
        """The module of an operator that runs now, and whether it is part of backward.

        What backward computes with gradients recorded is forward once more: activation checkpointing recomputes.

        Args:
            running: the innermost module that is running now.
        """
        in_backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001  torch offers no other way to ask
        node = torch._C._current_autograd_node() if in_backward else None  # noqa: SLF001
        if node is not None and not torch.is_grad_enabled():
            return self._modules.get(node._sequence_nr(), running), True  # noqa: SLF001
        if in_backward and running == OUTSIDE:
            running = RECOMPUTED
        # The node of this operator, if it has one, was made just before the operator came here.
        self._modules[torch._C._autograd._get_sequence_nr() - 1] = running  # noqa: SLF001
        return running, False

    def forget(self) -> None:
        """Begin a new step, whose graph is a new one."""
        self._modules.clear()
