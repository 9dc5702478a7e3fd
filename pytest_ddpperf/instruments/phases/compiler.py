"""Keeping instruments and torch.compile out of each other's way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(function: F) -> F:
    """The function, whose own code is left to Python also where a step calls it that has been compiled in parts.

    What it calls is compiled as it would be without it. ``torch.compiler.disable(recursive=False)`` says the same, but
    imports the whole compiler, which most steps do not use, and wraps the function in another one.
    """
    skip_code = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
    if skip_code is not None:
        skip_code(function.__code__)
    function.__dict__["_torchdynamo_disable"] = True  # where it would be made part of what calls it
    return function


def compiled_frames() -> int:
    """How many times so far torch.compile looked at a function's code in this process, whatever came of it.

    Read from torch._dynamo's own statistics, which have no public reader.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["frames"]["total"])
