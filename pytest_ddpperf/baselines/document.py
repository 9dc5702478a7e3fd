"""JSON documents: a class declares each object, fills it from a record, and reads it again with msgspec."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from pytest_ddpperf.baselines.jsonfile import FileKind, problem_text, rounded, uncollected

_INTEGRAL = 2.0**63  # msgspec writes only smaller integers
Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Confidence = Annotated[float, msgspec.Meta(gt=0, lt=1)]
_DAYS = r"(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31"
_LEAP_YEAR = r"(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DATE = rf"(?!0000)(\d{{4}}-({_DAYS})|{_LEAP_YEAR}-02-29)"
Date = Annotated[str, msgspec.Meta(pattern=rf"^{_DATE}$(?!\n)")]
_TIME = r"([01]\d|2[0-3])(:[0-5]\d){2}(\.\d+)?(Z|[+-]\d\d:\d\d)"
Moment = Annotated[str, msgspec.Meta(pattern=rf"^{_DATE}T{_TIME}$(?!\n)")]
MetricName = Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_]*$")]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Text = Annotated[str, msgspec.Meta(min_length=1)]


def about(source: Callable[[Any], Any]) -> Any:
    """Declares the source of a field, a function of the record; without one it is the attribute of the same name."""
    return source


def finite(value: float) -> float | None:
    """Returns a finite value as it is, else None: no reader accepts NaN as a number."""
    return value if math.isfinite(value) else None


def _number(value: float) -> float | None:
    """Returns 4, not 4.0; None for a number that is not finite, such as an interval's end from too few launches."""
    if -_INTEGRAL < value < _INTEGRAL and value == (whole := int(value)):
        return whole
    return rounded(value) if math.isfinite(value) else None


class Document:
    """A JSON object; each of its fields is an attribute of a ``record``, and it is read as that record.

    It has all fields of the record except ``without``. Its ``sparse`` fields are omitted if they are null, false or
    empty.
    """

    fields: ClassVar[Mapping[str, Any]] = {}  # types by name
    makers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}  # by name: from a record to JSON data
    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}  # by name: from msgspec's value to the record's
    needed: ClassVar[Collection[str]] = ()  # the fields that are never omitted
    whole: ClassVar[type | None] = None  # the record that the document is read as
    number: ClassVar[Any] = staticmethod(_number)  # writes a float

    def __init_subclass__(
        cls, *, record: type | None = None, without: Collection[str] = (), sparse: Collection[str] = ()
    ) -> None:
        cls.whole = record
        known = get_type_hints(record) if record else {}
        own = {name: hint for name, hint in get_type_hints(cls, include_extras=True).items() if name not in _ITS_OWN}
        hints = {**{name: hint for name, hint in known.items() if name not in without}, **own}
        cls.fields = hints = {name: _mapped(hint, lambda each: _json_type(each, cls)) for name, hint in hints.items()}
        sources = {name: getattr(cls, name, operator.attrgetter(name)) for name in hints}
        cls.makers = {name: _maker(sources[name], hint, cls.number) for name, hint in hints.items()}
        nan = {name for name, hint in known.items() if not _optional(hint)}
        readers = {name: _reader(hint, nan=name in nan) for name, hint in hints.items()}
        cls.readers = {name: read for name, read in readers.items() if read is not None}
        cls.needed = {name for name in hints if name not in sparse}
        if record:
            _OF_RECORDS.setdefault((record, cls.number), cls)

    def checked(self) -> None:
        """Raises a ValueError if fields that were read do not fit together."""

    @classmethod
    def made(cls, **values: Any) -> Any:
        """Builds the record from those of the fields that it has."""
        record = cast("Any", cls.whole)
        return record(**{name: values[name] for each in fields_of(record) if (name := each.name) in values})

    @classmethod
    def filled_from(cls, record: Any) -> dict[str, Any]:
        """Returns the object as JSON data."""
        filled = {name: make(record) for name, make in cls.makers.items()}
        if len(cls.needed) == len(filled):
            return filled
        # Zero is information, false is not.
        return {name: it for name, it in filled.items() if it or name in cls.needed or (it == 0 and it is not False)}

    @classmethod
    def read_from(cls, struct: Any) -> Any:
        """Returns the record of msgspec's object."""
        found = ((name, getattr(struct, name)) for name in cls.fields)
        values = {name: value for name, value in found if value is not msgspec.UNSET}
        return cls.made(**values | {name: read(values[name]) for name, read in cls.readers.items() if name in values})


_ITS_OWN = frozenset(Document.__annotations__)
_OF_RECORDS: dict[tuple[type, Any], type[Document]] = {}
_EMPTY: Mapping[Any, Any] = {tuple: tuple, list: list, dict: dict, str: str, bool: bool}


def _mapped(hint: Any, kind: Callable[[Any], Any]) -> Any:
    """Returns a type with ``kind`` applied to each type inside it, and with JSON objects for mappings."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal or not arguments:
        return kind(hint)
    inner = [
        each if each is Ellipsis else _mapped(each, kind) for each in arguments[: 1 if origin is Annotated else None]
    ]
    if origin is Annotated:
        parts = (*inner, *hint.__metadata__)
        return Annotated[parts]
    if origin in {Union, UnionType}:
        return functools.reduce(operator.or_, inner)
    made: Any = dict if origin is Mapping else origin
    return made[tuple(inner)]


def _json_type(hint: Any, of: type[Document]) -> Any:
    """Returns the document of a record's type, made if there is none; any other type as it is."""
    if not (isinstance(hint, type) and is_dataclass(hint)):
        return hint
    words = {"__doc__": (hint.__doc__ or "").partition("\n\n")[0], "number": staticmethod(of.number)}
    return _OF_RECORDS.get((hint, of.number)) or type(hint.__name__, (Document,), words, record=hint)


def _is_value(argument: Any) -> bool:
    """Returns whether an argument of a type is the type of a value, not a rule, None or dots."""
    return not (argument in {NoneType, Ellipsis} or isinstance(argument, msgspec.Meta))


def _optional(hint: Any) -> bool:
    """Returns whether a value of the type, or one inside it, may be None."""
    return hint is NoneType or any(map(_optional, get_args(hint)))


def _nothing(hint: Any) -> Any:
    """Returns the function that makes the value of an omitted field; None if the field is never omitted."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType} and NoneType in arguments:
        return NoneType
    return _nothing(arguments[0]) if origin is Annotated else _EMPTY.get(origin or hint)


def _maker(source: Any, hint: Any, number: Callable[[float], float | None]) -> Callable[[Any], Any]:
    """Returns a function that makes JSON data of a record's field."""
    write = _writer(hint, number)
    return lambda record: write(source(record))


def _writer(hint: Any, number: Callable[[float], float | None]) -> Callable[[Any], Any]:
    """Returns a function that makes JSON data of a value of this type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:  # with rules
        return _writer(arguments[0], number)
    if origin in {Union, UnionType}:  # with None
        write = _writer(next(filter(_is_value, arguments)), number)
        return lambda value: None if value is None else write(value)
    if origin in {list, tuple}:
        write = _writer(arguments[0], number)
        return lambda value: list(map(write, value))
    if origin is dict:
        write = _writer(arguments[1], number)
        return lambda value: {key: write(item) for key, item in value.items()}
    if hint is float:
        return number
    inner: Callable[[Any], Any] = getattr(hint, "filled_from", lambda value: getattr(value, "value", value))  # of enums
    return inner


def _reader(hint: Any, *, nan: bool) -> Callable[[Any], Any] | None:
    """Returns a function that turns msgspec's value into a record's value; None if they are the same.

    ``nan``: whether null stands for a number that was not finite, and becomes NaN in the record.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType} and nan and float in arguments:
        return lambda value: math.nan if value is None else value
    if origin is None or origin is Literal:
        is_document = isinstance(hint, type) and issubclass(hint, Document)
        return hint.read_from if is_document else None
    read = _reader(next(each for each in reversed(arguments) if _is_value(each)), nan=nan)
    if read is None:
        return None
    if origin in {list, tuple}:
        return lambda value: origin(map(read, value))
    if origin is dict:
        return lambda value: {key: read(item) for key, item in value.items()}
    return lambda value: None if value is None else read(value)


@functools.cache
def _struct_of(document: Any) -> type[msgspec.Struct]:
    """Returns msgspec's type for a document class; mypy does not know that classes are hashable."""
    made: list[Any] = []
    for name, hint in document.fields.items():
        kind, nothing = _mapped(hint, _msgspec_type), _nothing(hint)
        if name in document.needed:
            made.append((name, kind))
        elif nothing is None:  # the record has a default of its own
            made.append((name, kind | msgspec.UnsetType, msgspec.field(default=msgspec.UNSET)))
        else:
            made.append((name, kind, msgspec.field(default_factory=nothing)))
    how: Any = {"kw_only": True, "frozen": True, "forbid_unknown_fields": True, "gc": False}  # a tree has no circles
    words = {} if document.checked is Document.checked else {"__post_init__": document.checked}
    return msgspec.defstruct(document.__name__, made, namespace=words, **how)


def _msgspec_type(hint: Any) -> Any:
    """Returns msgspec's type for a document; any other type as it is."""
    made: Any = _struct_of
    return made(hint) if isinstance(hint, type) and issubclass(hint, Document) else hint


@uncollected
def read_as(document: Any, data: Mapping[str, Any]) -> Any:
    """Returns the record of JSON data; ``msgspec.DecodeError`` says what does not fit."""
    return document.read_from(msgspec.convert(data, _struct_of(document)))


def read_checked(document: type[Document], data: Mapping[str, Any], file: Path, kind: FileKind) -> Any:
    """Returns the record of JSON data; if something does not fit, BaselineError names file, field and cure."""
    try:
        return read_as(document, data)
    except msgspec.DecodeError as error:
        raise kind.error(file, problem_text(error)) from None
