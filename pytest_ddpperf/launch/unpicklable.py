"""The error message that names an object that cannot be pickled, and the path to the object."""

from __future__ import annotations

import contextlib
import functools
import pickle
import types
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_ddpperf.errors import in_a_line
from pytest_ddpperf.instruments.host import from_here
from pytest_ddpperf.launch.messages import Call

_DEPTH = 12
_ITEMS = 200  # of a container; a guilty object beyond them is named by its container
_PACKAGE = "pytest_ddpperf."
_OF_SESSION = ("_pytest.", "pluggy.", f"{_PACKAGE}fixture", f"{_PACKAGE}run.")  # modules of what cannot leave pytest


@dataclass(frozen=True)
class _HeldObject:
    """An object that another object refers to; the error message shows its ``label``, unless the label is empty."""

    label: str
    value: object
    of_plugin: bool = False  # whether an object of this plugin holds it


def explain(value: object, named: object, error: BaseException, problem: str, cure: str) -> str:
    """Joins ``named``, ``problem``, the path to the unpicklable part, the reason and ``cure`` to an error message."""
    way, culprit, reason = _culprit(value, error)
    about = describe(named)
    wrapped = [i for i, part in enumerate(way) if part.of_plugin]
    if wrapped:  # users know the object that they gave, not the plugin's object around it
        way, about = way[wrapped[-1] + 1 :], "the call"
    blame = f"{' -> '.join(part.label for part in way)} is a {_type(culprit)}: " if way else ""
    if _is_of_session(culprit):
        return f"{about} {problem}: {blame}this object is part of pytest; read the needed values before the call"
    plain = isinstance(reason, (TypeError, AttributeError, pickle.PicklingError)) and str(reason)  # says it all
    return f"{about} {problem}: {blame}{plain or in_a_line(reason)}; {cure}"


def _is_of_session(value: object) -> bool:
    """Returns whether an object is a fixture or another part of the running pytest."""
    return f"{type(value).__module__}.".startswith(_OF_SESSION)


def describe(value: object) -> str:
    """Returns a short description of an object, such as ``step (train.py:12)`` for a function."""
    if isinstance(value, types.MethodType):
        value = value.__func__
    if isinstance(value, functools.partial):
        return f"partial({describe(value.func)})"
    if isinstance(value, types.FunctionType):
        code = value.__code__
        return f"{value.__name__} ({from_here(code.co_filename)}:{code.co_firstlineno})"
    if isinstance(value, type):
        return f"class {value.__qualname__}"
    return f"the {_type(value)}"


def _culprit(value: object, error: BaseException) -> tuple[list[_HeldObject], object, BaseException]:
    """Returns the path from ``value`` to its innermost part that cannot be pickled, that part, and its error."""
    way: list[_HeldObject] = []
    seen = {id(value)}
    for _ in range(_DEPTH):
        for part in _parts(value):
            failure = None if id(part.value) in seen else _failure(part.value)
            if failure is not None:
                if part.label:
                    way.append(part)
                value, error = part.value, failure
                seen.add(id(value))
                if _is_of_session(value):
                    return way, value, error
                break
        else:
            break
    return way, value, error


def _failure(value: object) -> BaseException | None:
    import cloudpickle  # type: ignore[import-untyped]  # it has no annotations

    try:
        cloudpickle.dumps(value)
    except Exception as error:  # noqa: BLE001  a __reduce__ of anybody's may raise anything
        return error
    return None


def _parts(value: object) -> Iterator[_HeldObject]:
    if isinstance(value, types.FunctionType):
        yield from _function_parts(value)
    elif isinstance(value, types.MethodType):
        yield _HeldObject(f"instance of method {value.__name__}", value.__self__)
        yield _HeldObject("", value.__func__)
    elif isinstance(value, functools.partial):
        yield _HeldObject("", value.func)
        arguments = [*enumerate(value.args), *value.keywords.items()]
        yield from (_HeldObject(f"argument {name!r} of {describe(value)}", part) for name, part in arguments)
    elif isinstance(value, dict):
        yield from (_HeldObject(f"key {name!r}", part) for name, part in list(value.items())[:_ITEMS])
    elif isinstance(value, Call):
        yield _HeldObject("", value.function)
        yield from (_HeldObject(f"argument {i}", part) for i, part in enumerate(value.arguments))
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from (_HeldObject(f"item {i}", part) for i, part in enumerate(list(value)[:_ITEMS]))
    else:
        yield from _attributes(value)


def _function_parts(function: types.FunctionType) -> Iterator[_HeldObject]:
    name = describe(function)
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not yet assigned
            yield _HeldObject(f"closure variable {variable!r} of {name}", cell.cell_contents)
    for variable in sorted(_names(function.__code__)):
        if variable in function.__globals__:
            yield _HeldObject(f"global {variable!r} used by {name}", function.__globals__[variable])
    for i, default in enumerate(function.__defaults__ or ()):
        yield _HeldObject(f"default {i} of {name}", default)
    for variable, default in (function.__kwdefaults__ or {}).items():
        yield _HeldObject(f"default of {variable!r} of {name}", default)


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _attributes(value: object) -> Iterator[_HeldObject]:
    if isinstance(value, types.ModuleType):
        return
    is_class = isinstance(value, type)
    owner = describe(value) if is_class else _type(value)
    of_plugin = not is_class and type(value).__module__.startswith(_PACKAGE)
    attributes = dict(getattr(value, "__dict__", {}))
    if not is_class:
        names = [name for cls in type(value).__mro__ for name in _slots(cls)]
        attributes |= {name: getattr(value, name) for name in names if hasattr(value, name)}
    for name, part in attributes.items():
        if name not in {"__dict__", "__weakref__", "__slots__"}:
            plain = part.__func__ if isinstance(part, (staticmethod, classmethod)) else part
            yield _HeldObject(f"attribute {name!r} of {owner}", plain, of_plugin)


def _slots(cls: type) -> list[str]:
    slots = cls.__dict__.get("__slots__", ())
    return [slots] if isinstance(slots, str) else list(slots)


def _type(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
