"""Where instruments meet torch.compile: what it has compiled, and what it must not compile. Importable without torch.

torch._dynamo's statistics have no public reader.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
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
