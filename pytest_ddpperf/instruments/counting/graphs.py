"""What torch.compile made of a step's warm-up: where it gave up, and how often it had to begin again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from pytest_ddpperf.instruments.compiler import compiled_graphs


def warmed_up(run: Callable[[], object], steps: int) -> dict[str, dict[str, float]]:
    """Run steps; gives the details of ``graph_breaks`` (by reason) and ``recompiles``, of these and all steps before.

    A graph that is compiled after the first of these steps counts as a recompilation.
    """
    first = compiled_graphs()
    for number in range(steps):
        run()
        if not number:
            first = compiled_graphs()
    again = float(compiled_graphs() - first)
    return {
        "graph_breaks": _graph_breaks(),
        "recompiles": {"graphs compiled after the first step": again} if again else {},
    }


def eagerly() -> AbstractContextManager[Any]:
    """Within, what torch.compile has compiled runs as it was written, so that each of its operators can be seen."""
    return torch.compiler.set_stance("force_eager") if compiled_graphs() else nullcontext()


def _graph_breaks() -> dict[str, float]:
    """Read from torch._dynamo's own statistics, which have no public reader; reasons as their first line has them."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    breaks: dict[str, float] = {}
    for reason, times in dynamo.counters["graph_break"].items() if dynamo is not None else ():
        line = str(reason).partition("\n")[0]
        breaks[line] = breaks.get(line, 0.0) + times
    return breaks
