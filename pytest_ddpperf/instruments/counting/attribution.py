"""Which module an operator belongs to, and whether it is part of forward or backward."""

from __future__ import annotations

import sys
from types import FrameType

import torch
from torch.autograd import graph
from torch.nn.modules import module
from torch.utils import checkpoint

OUTSIDE = "outside of modules"
RECOMPUTED = "recomputed in backward"  # by an unknown module; the modules inside of it are known

_RECOMPUTING = frozenset({checkpoint.__file__, module.__file__})  # a checkpoint, or a module's forward


class Attribution:
    """Tells which module an operator belongs to, and whether it is part of forward or backward.

    In forward it is the innermost module that is running. Each operator there leaves a node in the graph, whose
    sequence number is noted here. In backward the running node's number leads back to the module. That needs no hook in
    the graph, so it cannot change what backward does.
    """

    def __init__(self) -> None:
        self._modules: dict[int, str] = {}

    def place(self, running: str) -> tuple[str, bool]:
        """The module of an operator that runs now inside ``running``, and whether it is part of backward.

        What a checkpoint or a module computes in backward with gradients recorded is forward once more: it recomputes.
        What backward itself computes so (``create_graph=True``) stays backward, and belongs to the same module.
        """
        in_backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001  torch offers no other way to ask
        node = torch._C._current_autograd_node() if in_backward else None  # noqa: SLF001
        recorded = torch.is_grad_enabled()
        backward = node is not None and not (recorded and _recomputes())
        if node is not None and backward:
            running = self._modules.get(node._sequence_nr(), running)  # noqa: SLF001
        elif in_backward and running == OUTSIDE:
            running = RECOMPUTED
        if recorded or not backward:
            # The node of this operator, if it has one, was created just before this call.
            self._modules[torch._C._autograd._get_sequence_nr() - 1] = running  # noqa: SLF001
        return running, backward

    def forget(self) -> None:
        """Begins a new step, whose graph is a new one."""
        self._modules.clear()


def _recomputes() -> bool:
    """Whether a checkpoint or a module's forward called this, after the innermost backward began."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  inspect is much slower
    while frame is not None and frame.f_code.co_filename != graph.__file__:
        if frame.f_code.co_filename in _RECOMPUTING:
            return True
        frame = frame.f_back
    return False
