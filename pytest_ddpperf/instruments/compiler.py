"""Where instruments meet torch.compile: what it has compiled, and what it must not compile. Importable without torch.

torch._dynamo's statistics have no public reader.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def compiled_graphs() -> int:
    """The number of graphs that torch.compile has captured in this process so far."""
    return _counted("stats", "unique_graphs")


def compiled_frames() -> int:
    """How many times torch.compile has looked at a function's code in this process so far, with any result."""
    return _counted("frames", "total")


def _counted(group: str, name: str) -> int:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters[group][name])


def uncompiled(function: F) -> F:
    """Marks a function whose own code torch.compile leaves to Python; what it calls is compiled as without it.

    ``torch.compiler.disable(recursive=False)`` does the same, but imports the whole compiler, which most steps do not
    use, and wraps the function in another one.
    """
    skip_code = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
    if skip_code is not None:
        skip_code(function.__code__)
    function.__dict__["_torchdynamo_disable"] = True  # read where the function would be inlined into its caller
    return function


def warmed_up(run: Callable[[], object], steps: int) -> dict[str, dict[str, float]]:
    """Runs steps; returns the details of ``graph_breaks`` (by reason) and ``recompiles``, of all steps so far.

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
    """Within, compiled code runs as it was written, so that each of its operators is seen."""
    if not compiled_graphs():
        return nullcontext()
    import torch

    forced: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return forced


def _graph_breaks() -> dict[str, float]:
    """The number of graph breaks by the first line of their reason."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    breaks: dict[str, float] = {}
    for reason, times in dynamo.counters["graph_break"].items() if dynamo is not None else ():
        line = str(reason).partition("\n")[0]
        breaks[line] = breaks.get(line, 0.0) + times
    return breaks
