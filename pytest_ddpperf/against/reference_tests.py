"""Calls for the reference's ranks in which the objects of test modules are the reference's own, looked up by name."""

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

from pytest_ddpperf.launch.imports import look_up
from pytest_ddpperf.launch.payload import StandIn, dump_standing_in, travels_by_value
from pytest_ddpperf.launch.redirection import Redirection, within
from pytest_ddpperf.training.workload import Workload


@dataclass(frozen=True)
class ReferenceCall:
    """A function and its arguments, pickled for the reference's ranks."""

    packed: bytes
    modules: Mapping[str, str]  # the test modules that the ranks look names up in, with their files here
    kept: tuple[str, ...]  # functions of test modules that have no name to look up: they stay this checkout's


def reference_call(call: tuple[Any, ...], redirection: Redirection) -> ReferenceCall:
    """Pack a call so that the top-level objects of test modules are those of the same name in the other checkout.

    This holds for functions, classes and Workloads, wherever they are in the arguments. Lambdas and objects that
    functions make cannot be looked up, but the top-level objects that they use are.
    """
    modules = _test_modules(redirection)
    by_object = {
        id(value): (module, name)
        for module in modules
        for name, value in vars(sys.modules[module]).items()
        if _defined_in(value, module, modules)
    }
    used: dict[str, str] = {}
    kept: dict[str, None] = {}

    def stand_in(value: Any) -> StandIn | None:
        name = _name_of(value, modules) or by_object.get(id(value))
        if name is not None:
            module, path = name
            used[module] = modules[module]
            return look_up, (module, redirection.path(modules[module]), path)
        if isinstance(value, FunctionType) and value.__module__ in modules:
            file = Path(modules[value.__module__]).name
            kept[f"{value.__qualname__} ({file}:{value.__code__.co_firstlineno})"] = None
        return None

    return ReferenceCall(dump_standing_in(call, call[0], stand_in), used, tuple(kept))


def _test_modules(redirection: Redirection) -> dict[str, str]:
    """The project's modules that travel by value, such as test modules and conftests, with their files."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not travels_by_value(name, module):
            continue
        real = os.path.realpath(file)
        if within(real, redirection.root) and not any(within(real, folder) for folder in redirection.kept):
            found[name] = real
    return found


def _defined_in(value: Any, module: str, modules: Mapping[str, str]) -> bool:
    """Whether a global is the module's own function or class, or an object worth a lookup such as a Workload."""
    if isinstance(value, FunctionType) or inspect.isclass(value):
        return bool(value.__module__ == module)
    return isinstance(value, (Workload, functools.partial)) or type(value).__module__ in modules


def _name_of(value: Any, modules: Mapping[str, str]) -> tuple[str, str] | None:
    """Module and dotted name of a test module, or of a function or class that its module leads to; else None."""
    if isinstance(value, ModuleType):
        return (value.__name__, "") if value.__name__ in modules else None
    if not (isinstance(value, FunctionType) or inspect.isclass(value)) or value.__module__ not in modules:
        return None
    found: Any = sys.modules[value.__module__]
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return (value.__module__, value.__qualname__) if found is value else None
