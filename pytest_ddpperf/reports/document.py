"""JSON documents: a class declares each object of a document, and makes it of a record."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import FrozenInstanceError, dataclass
from enum import Enum
from operator import attrgetter
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from pytest_ddpperf.baselines.files import require_writable, require_writable_folder, write_file
from pytest_ddpperf.baselines.jsonfile import render, rounded
from pytest_ddpperf.errors import SettingError

_HEAD = 1024  # bytes of a file that tell whether it is JSON
# What follows a type in brackets is for its JSON schema.
Natural = Annotated[int, ("minimum", 0)]
Positive = Annotated[int, ("minimum", 1)]
NotNegative = Annotated[float, ("minimum", 0)]
Confidence = Annotated[float, ("exclusiveMinimum", 0), ("exclusiveMaximum", 1)]
Date = Annotated[str, ("format", "date")]
MetricName = Annotated[str, ("pattern", "^[a-z][a-z0-9_]*$")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """What is known of a field besides its name and its type."""

    description: str  # for the schema
    source: str | Callable[[Any], Any]  # an attribute of the record, such as ``series.unit``, or a function of it
    optional: bool  # whether it is left out where it is empty


def about(description: str = "", source: str | Callable[[Any], Any] = "", *, optional: bool = False) -> Any:
    """Declares a field of a document; its source is the attribute of the same name if none is named."""
    return Field(description=description, source=source, optional=optional)


class Document:
    """A JSON object, by its fields: each is an attribute of a record, or of a record ``inside`` it that has one.

    An instance has the values of an object that was read again; see ``documents.reading``.
    """

    fields: ClassVar[Mapping[str, tuple[Any, Field]]] = {}  # by name: type and declaration
    inside: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, inside: str = "") -> None:
        cls.inside = (*cls.inside, inside) if inside else cls.inside
        hints = get_type_hints(cls, include_extras=True).items()
        cls.fields = {name: (hint, field) for name, hint in hints if isinstance(field := getattr(cls, name), Field)}

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def __setattr__(self, name: str, _: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    @classmethod
    def filled_from(cls, record: Any) -> dict[str, Any]:
        """The object as JSON data."""

        def value(source: str | Callable[[Any], Any]) -> Any:
            if callable(source):
                return source(record)
            records = (record, *(getattr(record, inside) for inside in cls.inside))
            return attrgetter(source)(next((one for one in records if hasattr(one, source)), record))

        return {name: _json_value(hint, value(field.source or name)) for name, (hint, field) in cls.fields.items()}


def _json_value(hint: Any, value: Any) -> Any:
    """A value as JSON data of the type; null for a number that is not finite (an interval from too few launches)."""
    origin, arguments = get_origin(hint), get_args(hint)
    if value is None or (hint is float and not math.isfinite(value)):
        return None
    if origin in {Annotated, Union, UnionType}:  # with what is for the schema, or with None
        return _json_value(next(argument for argument in arguments if argument is not NoneType), value)
    if origin is list:
        return [_json_value(arguments[0], item) for item in value]
    if origin is dict:
        return {key: _json_value(arguments[1], item) for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, Document):
        return hint.filled_from(value)
    plain = value.value if isinstance(value, Enum) else value
    return rounded(plain) if hint is float else plain


class IntervalData(Document):
    """A confidence interval; an end is null where it is not finite."""

    low: float | None = about("Lower end.")
    high: float | None = about("Upper end.")
    confidence: Confidence = about("Confidence level: 0.95 for 95 %.")


def ensure_writable(path: Path, option: str) -> None:
    """Makes sure, before anything is measured, that results can be written there: SettingError if not."""
    ensure_text(path, option)
    _require_results(path, option)


def ensure_text(path: Path, option: str) -> None:
    """Makes sure, before anything is measured, that a text can be written there: SettingError if not."""
    try:
        require_writable(path)
    except OSError as error:
        raise _unwritable(path, error, option) from None


@contextmanager
def writing_into(folder: Path, option: str, what: str) -> Iterator[None]:
    """Within, a failure to write into a folder is a SettingError, which says what was to be written there."""
    try:
        yield
    except OSError as error:
        raise SettingError(
            f"{option}={folder}: {what} cannot be written there: {error.strerror or error}; make it writable, or name "
            "another folder"
        ) from None


def ensure_folder(folder: Path, option: str, what: str) -> None:
    """Makes sure, before anything is measured, that files can be written into a folder: SettingError if not."""
    with writing_into(folder, option, what):
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(0, "it is a file")
        require_writable_folder(folder)


def write_text(path: Path, text: str, option: str, *, append: bool = False) -> None:
    """Writes a text, as ``write`` does a document; ``append``: behind what the file has."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if append:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        else:
            write_file(path, text)
    except OSError as error:
        raise _unwritable(path, error, option) from None


def _require_results(path: Path, option: str) -> None:
    """Refuses to replace what is no JSON: an option without a value takes the test file behind it for one."""
    special = path.parts[1:2] in {("dev",), ("proc",)}  # standard output may be a log that has begun
    try:
        if special or not path.is_file() or not path.stat().st_size:
            return
        with path.open("rb") as file:
            head = file.read(_HEAD).lstrip()
    except OSError as error:
        raise _unwritable(path, error, option) from None
    if not head.startswith((b"{", b"[")):
        raise _unwritable(path, OSError(0, "it holds something else than JSON"), option)


def write(path: Path, document: dict[str, Any], option: str) -> None:
    """Writes a document, whole or not at all, in a folder that is made if need be; SettingError if that fails.

    ``-`` is standard output, and devices and pipes are written to, as ``baselines.files.write_file`` does it.
    """
    _require_results(path, option)
    write_text(path, render(document), option)


def _unwritable(path: Path, error: OSError, option: str) -> SettingError:
    return SettingError(f"{option}: {path} cannot be written: {error.strerror or error}; name another file")
