"""Records to JSON data and back, as their types say: a value that does not fit is named with its path."""

from __future__ import annotations

import datetime as dt
import functools
import json
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, NewType, NoReturn, Union, get_args, get_origin, get_type_hints

AnyText = NewType("AnyText", str)
Day = NewType("Day", str)
Positive = NewType("Positive", int)
Several = NewType("Several", int)
NotNegative = NewType("NotNegative", float)
Share = NewType("Share", float)
Confidence = NewType("Confidence", float)


def _is_day(text: str) -> bool:
    try:
        return dt.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


_SCALARS: Mapping[Any, tuple[str, Callable[[Any], bool]]] = {
    str: ("a text that is not empty", bool),
    AnyText: ("a text", lambda _: True),
    Day: ("a day such as 2026-01-31", _is_day),
    bool: ("true or false", lambda _: True),
    int: ("a whole number of at least 0", lambda number: number >= 0),
    Positive: ("a whole number of at least 1", lambda number: number >= 1),
    Several: ("a whole number of at least 2", lambda number: number >= 2),  # noqa: PLR2004
    float: ("a finite number", lambda number: abs(number) <= sys.float_info.max),
    NotNegative: ("a number of at least 0", lambda number: 0 <= number <= sys.float_info.max),
    Share: ("a number from 0 to 1", lambda number: 0 <= number <= 1),
    Confidence: ("a number between 0 and 1", lambda number: 0 < number < 1),
}
_SHOWN = 60  # characters of a wrong value in a message
_KINDS = {dict: "an object ", list: "a list ", str: "text ", bool: "", NoneType: ""}


@functools.cache  # a file has hundreds of records, of few types
def _hints(kind: type) -> dict[str, Any]:
    """The types of a record's fields, by the names of the modules that it and its bases were made in."""
    names: dict[str, Any] = {}
    for base in reversed(kind.__mro__):  # modules may have been imported anew since
        names |= getattr(vars(base).get("__init__"), "__globals__", {})
    return get_type_hints(kind, names)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How an object in a file differs from the record that is made of it."""

    types: Mapping[str, Any] = field(default_factory=dict)  # of fields that have another type in the file
    optional: Collection[str] = ()  # fields that may be missing; an empty one is not written
    absent: Collection[str] = ()  # fields that only the record has
    make: Callable[..., Any] | None = None  # the record of a file's fields; Misfit where they do not fit together
    write: Callable[[Any], Mapping[str, Any]] | None = None  # fields that the file has otherwise than the record


Shapes = Mapping[type, Shape]  # of records that are not stored just as they are


class Misfit(ValueError):
    """A value that is not as its type says; ``path`` leads to it: ``.records[0].date``."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"field {path.removeprefix('.')}: {problem}" if path else problem)
        self.problem = problem
        self.path = path


def written(value: Any, shapes: Shapes) -> Any:
    """A record, tuple, mapping or scalar as JSON data."""
    if isinstance(value, Mapping):
        return {name: written(item, shapes) for name, item in value.items()}
    if isinstance(value, tuple):
        return [written(item, shapes) for item in value]
    if not is_dataclass(value):
        return value
    shape = shapes.get(type(value), Shape())
    data = {item.name: getattr(value, item.name) for item in fields(value) if item.name not in shape.absent}
    data |= shape.write(value) if shape.write else {}
    return written({name: item for name, item in data.items() if item or name not in shape.optional}, shapes)


def read(kind: Any, value: Any, shapes: Shapes) -> Any:
    """JSON data as a type has it: a record, tuple, mapping, literal or scalar; Misfit tells what does not fit."""
    if kind in _SCALARS:
        expected, holds = _SCALARS[kind]
        base = getattr(kind, "__supertype__", kind)
        if type(value) not in ((int, float) if base is float else (base,)) or not holds(value):
            _refuse(expected, value)
        return base(value)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value if value in parts else _refuse(f"one of {', '.join(parts)}", value)
    if origin in (Union, UnionType):
        return None if value is None else read(parts[0], value, shapes)
    if origin is tuple:
        items = value if isinstance(value, list) else _refuse("a list", value)
        return tuple(_part(f"[{i}]", parts[0], item, shapes) for i, item in enumerate(items))
    data = value if isinstance(value, dict) else _refuse("an object", value)
    if origin is None:
        return _record(kind, data, shapes)
    return {name: _part(f".{name}", parts[1], item, shapes) for name, item in data.items()}


def _part(step: str, kind: Any, value: Any, shapes: Shapes) -> Any:
    try:
        return read(kind, value, shapes)
    except Misfit as misfit:
        raise Misfit(misfit.problem, step + misfit.path) from None


def _record(kind: type, data: Mapping[str, Any], shapes: Shapes) -> Any:
    shape, hints = shapes.get(kind, Shape()), _hints(kind)
    types = {**{item.name: hints[item.name] for item in fields(kind) if item.name not in shape.absent}, **shape.types}
    for name in types:
        if name not in data and name not in shape.optional:
            raise Misfit("is missing", f".{name}")
    for name in data:
        if name not in types:
            raise Misfit("is not known here", f".{name}")
    return (shape.make or kind)(**{name: _part(f".{name}", types[name], item, shapes) for name, item in data.items()})


def _refuse(expected: str, value: Any) -> NoReturn:
    raise Misfit(f"expected {expected}, found {shown(value)}")


def shown(value: Any) -> str:
    """JSON data as an error shows it: a long value is cut off."""
    text = json.dumps(value)
    return _KINDS.get(type(value), "the number ") + (text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
