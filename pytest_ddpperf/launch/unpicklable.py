"""Why something cannot be pickled, said by naming the way to the object that is to blame."""

from __future__ import annotations

import contextlib
import functools
import os
import types
from typing import TYPE_CHECKING

from pytest_ddpperf.launch.messages import Call

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEPTH = 12
_ITEMS = 200  # of a container: a guilty object among thousands is named by its container


def explain(value: object, named: object, error: BaseException, problem: str, cure: str) -> str:
    """One sentence: what cannot be sent, the way to the object in it that cannot be pickled, and why.

    Args:
        value: what was to be pickled.
        named: what the sentence is about, where that is not the whole ``value``.
        error: what pickling ``value`` raised.
        problem: the middle of the sentence: "cannot be sent".
        cure: its end: what to do instead.
    """
    way, culprit, reason = _culprit(value, error)
    about = describe(named)
    ours = [i for i, link in enumerate(way) if " of pytest_ddpperf." in link]
    if ours:  # a user knows what it was given, not what we have wrapped it in
        way, about = way[ours[-1] + 1 :], "what is to be measured"
    blame = f"{' -> '.join(way)} is a {_type(culprit)}: " if way else ""
    return f"{about} {problem}: {blame}{reason}; {cure}"


def describe(value: object) -> str:
    """A short name for an object: where functions and classes are defined, the type of anything else."""
    if isinstance(value, types.MethodType):
        value = value.__func__
    if isinstance(value, functools.partial):
        return f"partial({describe(value.func)})"
    if isinstance(value, types.FunctionType):
        code = value.__code__
        return f"{value.__name__} ({os.path.relpath(code.co_filename)}:{code.co_firstlineno})"
    if isinstance(value, type):
        return f"class {value.__qualname__}"
    return f"the {_type(value)}"


def _culprit(value: object, error: BaseException) -> tuple[list[str], object, BaseException]:
    """Go down, as long as one of the parts cannot be pickled either."""
    way: list[str] = []
    seen = {id(value)}
    for _ in range(_DEPTH):
        for label, part in _parts(value):
            failure = None if id(part) in seen else _failure(part)
            if failure is not None:
                if label:
                    way.append(label)
                value, error = part, failure
                seen.add(id(part))
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


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, types.FunctionType):
        yield from _function_parts(value)
    elif isinstance(value, types.MethodType):
        yield f"instance of method {value.__name__}", value.__self__
        yield "", value.__func__
    elif isinstance(value, functools.partial):
        yield "", value.func
        yield from ((f"argument {i} of {describe(value)}", part) for i, part in enumerate(value.args))
        yield from ((f"argument {name!r} of {describe(value)}", part) for name, part in value.keywords.items())
    elif isinstance(value, dict):
        yield from ((f"key {name!r}", part) for name, part in list(value.items())[:_ITEMS])
    elif isinstance(value, Call):
        yield "", value.function
        yield from ((f"argument {i}", part) for i, part in enumerate(value.arguments))
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"item {i}", part) for i, part in enumerate(list(value)[:_ITEMS]))
    else:
        yield from _attributes(value)


def _function_parts(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    name = describe(function)
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not yet assigned
            yield f"closure variable {variable!r} of {name}", cell.cell_contents
    for variable in sorted(_names(function.__code__)):
        if variable in function.__globals__:
            yield f"global {variable!r} used by {name}", function.__globals__[variable]
    for i, default in enumerate(function.__defaults__ or ()):
        yield f"default {i} of {name}", default
    for variable, default in (function.__kwdefaults__ or {}).items():
        yield f"default of {variable!r} of {name}", default


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, types.ModuleType):
        return
    owner = describe(value) if isinstance(value, type) else _type(value)
    attributes = dict(getattr(value, "__dict__", {}))
    if not isinstance(value, type):
        names = [name for cls in type(value).__mro__ for name in _slots(cls)]
        attributes |= {name: getattr(value, name) for name in names if hasattr(value, name)}
    for name, part in attributes.items():
        if name not in {"__dict__", "__weakref__", "__slots__"}:
            plain = part.__func__ if isinstance(part, (staticmethod, classmethod)) else part
            yield f"attribute {name!r} of {owner}", plain


def _slots(cls: type) -> list[str]:
    slots = cls.__dict__.get("__slots__", ())
    return [slots] if isinstance(slots, str) else list(slots)


def _type(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
