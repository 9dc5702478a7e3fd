"""A results document that was written before, read again: typed, or refused with the field that does not fit."""

from __future__ import annotations

import datetime as dt
import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

from pytest_ddpperf.baselines.jsonfile import FileKind, checked, read_text
from pytest_ddpperf.baselines.typed import Misfit, shown
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.reports.document import Document
from pytest_ddpperf.reports.documents.results import ResultsData

D = TypeVar("D", bound=Document)

RESULTS = FileKind(
    subject="results", version=1, cure="write it again with --ddpperf-report=json:FILE", content=ResultsData, shapes={}
)


def read_results(file: Path) -> ResultsData:
    """The results document in a file; ``-`` is standard input.

    Raises:
        BaselineError: there is no such file, or it is broken, or of another schema or version; the message names the
            file, the field and the cure.
    """
    text = sys.stdin.read() if file == Path("-") else read_text(file, RESULTS)
    if text is None:
        raise BaselineError(
            f"{RESULTS.name} {file}: there is no such file; pytest --ddpperf-report=json:{file} writes one"
        )
    data = checked(text, file, RESULTS)
    try:
        document = typed(ResultsData, data)
    except Misfit as misfit:
        raise RESULTS.error(file, str(misfit)) from None
    if document.results and document.environment is None:
        raise RESULTS.error(file, "field environment: is null, and benchmarks were measured")
    return document


def typed(kind: type[D], data: Any) -> D:
    """The document of JSON data; Misfit names the first field that is not as the document declares it."""
    if not isinstance(data, dict):
        _refuse("an object", data)
    for name in data:
        if name not in kind.fields:
            raise Misfit("is not known here", f".{name}")
    values = {}
    for name, (hint, field) in kind.fields.items():
        if name not in data and not field.optional:
            raise Misfit("is missing", f".{name}")
        values[name] = _part(f".{name}", hint, data[name]) if name in data else _nothing(hint)
    return kind(**values)


def _nothing(hint: Any) -> Any:
    """What stands for a field that is left out."""
    origin = get_origin(hint)
    return origin() if origin in {list, dict} else "" if hint is str else None


def _part(step: str, hint: Any, value: Any) -> Any:
    try:
        return _value(hint, value)
    except Misfit as misfit:
        raise Misfit(misfit.problem, step + misfit.path) from None


def _value(hint: Any, value: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        inner = next(argument for argument in arguments if argument is not NoneType)
        return None if value is None else _value(inner, value)
    if origin is Literal:
        return value if value in arguments else _refuse(f"one of {', '.join(map(str, arguments))}", value)
    if origin in _READERS:
        return _READERS[origin](arguments, value)
    return _scalar(hint, value) if hint in _SCALARS else typed(hint, value)


def _ruled(arguments: tuple[Any, ...], value: Any) -> Any:
    """A value that has to keep the rules of the schema, too."""
    found = _value(arguments[0], value)
    for rule, limit in arguments[1:]:
        if rule in _RULES and not _RULES[rule](found, limit):
            _refuse(f"{rule} {limit}", value)
    return found


def _list(arguments: tuple[Any, ...], value: Any) -> list[Any]:
    items: list[Any] = value if isinstance(value, list) else _refuse("a list", value)
    if arguments[0] is float and all(type(item) is float and math.isfinite(item) for item in items):
        return items  # there may be a million step times
    return [_part(f"[{i}]", arguments[0], item) for i, item in enumerate(items)]


def _mapping(arguments: tuple[Any, ...], value: Any) -> dict[str, Any]:
    items = value if isinstance(value, dict) else _refuse("an object", value)
    return {_part(f".{key}", arguments[0], key): _part(f".{key}", arguments[1], item) for key, item in items.items()}


def _scalar(hint: type, value: Any) -> Any:
    if type(value) not in ((int, float) if hint is float else (hint,)) or (hint is float and not math.isfinite(value)):
        _refuse(_SCALARS[hint], value)
    return hint(value)


def _refuse(expected: str, value: Any) -> NoReturn:
    raise Misfit(f"expected {expected}, found {shown(value)}")


def _is_date(text: str) -> bool:
    try:
        return dt.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


_SCALARS: Mapping[type, str] = {str: "a text", bool: "true or false", int: "a whole number", float: "a finite number"}
_RULES: Mapping[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda number, limit: number >= limit,
    "exclusiveMinimum": lambda number, limit: number > limit,
    "exclusiveMaximum": lambda number, limit: number < limit,
    "minItems": lambda items, limit: len(items) >= limit,
    "pattern": lambda text, limit: re.search(limit, text) is not None,
    "format": lambda text, _: _is_date(text),
}
"""What the rules of the schema ask of a value; a description asks nothing."""
_READERS: Mapping[Any, Callable[[tuple[Any, ...], Any], Any]] = {Annotated: _ruled, list: _list, dict: _mapping}
"""What reads a value of a type with arguments, by its origin."""
