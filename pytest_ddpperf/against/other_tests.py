"""Calls for the ranks of another revision in which what test modules define is that revision's, found by name."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from pytest_ddpperf.launch.imports import found_there
from pytest_ddpperf.launch.payload import StandIn, dump_standing_in, travels_by_value
from pytest_ddpperf.launch.redirection import Redirection, within
from pytest_ddpperf.training.workload import Workload


@dataclass(frozen=True)
class TheirCall:
    """A function and its arguments, packed.

    Attributes:
        packed: to be loaded on the other side's ranks.
        modules: the test modules that are looked up there, by name, and their files here.
        left: functions of test modules that have no name there to be looked up by: they are this side's.
    """

    packed: bytes
    modules: Mapping[str, str]
    left: tuple[str, ...]


def their_call(call: tuple[Any, ...], redirection: Redirection) -> TheirCall:
    """A call in which everything that a test module defines at its top is what has that name in the other checkout.

    That holds for functions, classes and Workloads, wherever they are in the arguments. What is made inside functions,
    and lambdas, cannot be found there; what they use at the top of their module is.

    Args:
        call: a function and its arguments.
        redirection: to the other checkout.

    Raises:
        PayloadError: something cannot be pickled.
    """
    modules = _test_modules(redirection)
    by_object = {
        id(value): (module, name)
        for module in modules
        for name, value in vars(sys.modules[module]).items()
        if _defined_in(value, module, modules)
    }
    used: dict[str, str] = {}
    left: dict[str, None] = {}

    def stand_in(one: Any) -> StandIn | None:
        name = _name_of(one, modules) or by_object.get(id(one))
        if name is not None:
            module, path = name
            used[module] = modules[module]
            return found_there, (module, redirection.path(modules[module]), path)
        if isinstance(one, FunctionType) and one.__module__ in modules:
            left[f"{one.__qualname__} ({Path(modules[one.__module__]).name}:{one.__code__.co_firstlineno})"] = None
        return None

    return TheirCall(dump_standing_in(call, call[0], stand_in), used, tuple(left))


def _test_modules(redirection: Redirection) -> dict[str, str]:
    """The modules of the project that travel by value, test modules and conftests first of all, and their files."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not travels_by_value(name, module):
            continue
        real = os.path.realpath(file)
        if within(real, redirection.root) and not any(within(real, one) for one in redirection.kept):
            found[name] = real
    return found


def _defined_in(value: Any, module: str, modules: Mapping[str, str]) -> bool:
    """Whether a global is the module's own and worth looking up by its name: functions, classes, and what they make."""
    if isinstance(value, FunctionType) or inspect.isclass(value):
        return bool(value.__module__ == module)
    return isinstance(value, (Workload, functools.partial)) or type(value).__module__ in modules


def _name_of(one: Any, modules: Mapping[str, str]) -> tuple[str, str] | None:
    """Module and dotted name of a test module, or of a function or class that can be reached from one; else None."""
    if isinstance(one, ModuleType):
        return (one.__name__, "") if one.__name__ in modules else None
    if not (isinstance(one, FunctionType) or inspect.isclass(one)) or one.__module__ not in modules:
        return None
    found: Any = sys.modules[one.__module__]
    for part in one.__qualname__.split("."):
        found = getattr(found, part, None)
    return (one.__module__, one.__qualname__) if found is one else None
