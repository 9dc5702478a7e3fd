"""JSON documents: a class declares each object, fills it from a record, and reads it again with msgspec."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as fields_of
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from pytest_ddpperf.baselines.jsonfile import FileKind, problem_text, rounded, uncollected
from pytest_ddpperf.records.measurement import Interval

_INTEGRAL = 2.0**63  # msgspec writes only smaller integers
Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Confidence = Annotated[float, msgspec.Meta(gt=0, lt=1)]
Date = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$")]
MetricName = Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_]*$")]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
D = TypeVar("D", bound="Document")


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A field's declaration besides its name and its type."""

    description: str = ""  # for the schema; empty to use the record's words
    source: str | Callable[[Any], Any] = ""  # an attribute of the record (``series.unit``), or a function of it
    always: bool = False  # whether a sparse document has the field even if it is false


def about(description: str = "", source: str | Callable[[Any], Any] = "", *, always: bool = False) -> Any:
    """Declares a field of a document; its source is the attribute of the same name by default."""
    return Field(description=description, source=source, always=always)


def finite(value: float) -> float | None:
    """Returns a finite value as it is, else None: no reader accepts NaN as a number."""
    return value if math.isfinite(value) else None


def _number(value: float) -> float | None:
    """Returns 4, not 4.0; None for a number that is not finite, such as an interval's end from too few launches."""
    if -_INTEGRAL < value < _INTEGRAL and value == (whole := int(value)):
        return whole
    return rounded(value) if math.isfinite(value) else None


class Document:
    """A JSON object; each of its fields is an attribute of a record, or of a record ``inside`` that record.

    A field without a description has the words of ``of``, the records with these attributes. The document of a
    ``record`` has all of the record's fields except ``without``, and is read as that record. A ``sparse`` document
    omits fields that are null, false or empty, or only those of them that ``sparse`` names. Without a ``record``,
    ``read_as`` returns a frozen object with the fields of the class.
    """

    fields: ClassVar[Mapping[str, tuple[Any, Field]]] = {}  # by name: type and declaration
    makers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}  # by name: from a record to JSON data
    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}  # by name: from msgspec's value to the record's
    needed: ClassVar[Collection[str]] = ()  # the fields that are never omitted
    inside: ClassVar[tuple[str, ...]] = ()
    words_from: ClassVar[tuple[type, ...]] = ()  # the records that describe its fields
    whole: ClassVar[type | None] = None  # the record that the document is read as
    direct: ClassVar[bool] = False  # whether its JSON has exactly the fields of the record
    number: ClassVar[Any] = staticmethod(_number)  # writes a float

    def __init_subclass__(
        cls,
        inside: str = "",
        *,
        of: Sequence[type] = (),
        record: type | None = None,
        without: Collection[str] = (),
        sparse: bool | Collection[str] = False,
    ) -> None:
        cls.inside = (*cls.inside, inside) if inside else cls.inside
        cls.words_from, cls.whole = (*cls.words_from, *of, *([record] if record else [])), record
        known = get_type_hints(record) if record else {}
        own = {name: hint for name, hint in get_type_hints(cls, include_extras=True).items() if name not in _ITS_OWN}
        hints = {**{name: hint for name, hint in known.items() if name not in without}, **own}
        hints = {name: _mapped(hint, lambda each: _json_type(each, cls)) for name, hint in hints.items()}
        cls.fields = {name: (hint, getattr(cls, name, Field())) for name, hint in hints.items()}
        of_all = cls.fields.items()
        cls.makers = {name: _maker(hint, field.source or name, cls) for name, (hint, field) in of_all}
        nan = {name for name, hint in known.items() if not _optional(hint)}
        readers = {name: _reader(hint, nan=name in nan) for name, hint in hints.items()}
        cls.readers = {name: read for name, read in readers.items() if read is not None}
        changed = own or without or sparse or cls.readers or cls.checked is not Document.checked
        cls.direct = record is not None and not changed
        left_out = hints if sparse is True else sparse or ()
        cls.needed = {
            name
            for name, (hint, field) in of_all
            if name not in left_out or field.always or (sparse is True and _nothing(hint) is None)
        }
        if record:
            _OF_RECORDS.setdefault((record, cls.number), cls)

    def __new__(cls: type[D], **values: Any) -> D:  # noqa: PYI019  typing has no Self in Python 3.10
        """Returns an object that has these fields; their types are not checked."""
        return cast("D", struct_of(cls)(**values))

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
        """Returns the record of msgspec's object; without a record, the object with the records inside it."""
        if cls.whole is None:
            for name, read in cls.readers.items():
                msgspec.structs.force_setattr(struct, name, read(getattr(struct, name)))
            return struct
        found = ((name, getattr(struct, name)) for name in cls.fields)
        values = {name: value for name, value in found if value is not msgspec.UNSET}
        return cls.made(**values | {name: read(values[name]) for name, read in cls.readers.items() if name in values})


_ITS_OWN = frozenset(Document.__annotations__)
_OF_RECORDS: dict[tuple[type, Any], type[Document]] = {}
_STRUCTS: dict[tuple[type[Document], bool], type[msgspec.Struct]] = {}
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


def _maker(hint: Any, source: str | Callable[[Any], Any], of: type[Document]) -> Callable[[Any], Any]:
    """Returns a function that makes JSON data of a record, or of the first record inside it that has the source."""
    write, inside = _writer(hint, of.number), of.inside
    if callable(source):
        return lambda record: write(source(record))
    get, first = operator.attrgetter(source), source.partition(".")[0]

    def make(record: Any) -> Any:
        if not inside or hasattr(record, first):
            return write(get(record))
        return write(next(get(inner) for name in inside if hasattr(inner := getattr(record, name), first)))

    return make


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
        return hint.read_from if is_document and not hint.direct and (hint.whole or hint.readers) else None
    read = _reader(next(each for each in reversed(arguments) if _is_value(each)), nan=nan)
    if read is None:
        return None
    if origin in {list, tuple}:
        return lambda value: origin(map(read, value))
    if origin is dict:
        return lambda value: {key: read(item) for key, item in value.items()}
    return lambda value: None if value is None else read(value)


def struct_of(document: type[Document], *, read: bool = True) -> type[msgspec.Struct]:
    """Returns msgspec's type for a document, for reading (``read``) or for writing."""
    if (document, read) not in _STRUCTS:
        made: list[Any] = []
        for name, (hint, _) in document.fields.items():
            kind, nothing = _mapped(hint, lambda each: _msgspec_type(each, read=read)), _nothing(hint)
            if name in document.needed:
                made.append((name, kind))
            elif nothing is None:  # the record has a default of its own
                made.append((name, kind | msgspec.UnsetType, msgspec.field(default=msgspec.UNSET)))
            else:
                made.append((name, kind, msgspec.field(default_factory=nothing)))
        how: Any = {
            "kw_only": True,
            "frozen": True,
            "forbid_unknown_fields": True,
            "gc": False,
        }  # a tree has no circles
        words: dict[str, Any] = {"__doc__": document.__doc__}
        if document.checked is not Document.checked:
            words["__post_init__"] = document.checked
        _STRUCTS[document, read] = msgspec.defstruct(document.__name__, made, namespace=words, **how)
    return _STRUCTS[document, read]


def _msgspec_type(hint: Any, *, read: bool) -> Any:
    """Returns msgspec's type for a document, or its record if it is ``read`` unchanged; any other type as it is."""
    if not (isinstance(hint, type) and issubclass(hint, Document)):
        return hint
    return hint.whole if read and hint.direct else struct_of(hint, read=read)


@uncollected
def read_as(document: type[D], data: bytes | Mapping[str, Any]) -> D:
    """Reads a document from a file's text, or from JSON data; ``msgspec.DecodeError`` says what does not fit."""
    made = struct_of(document)
    read = msgspec.json.decode(data, type=made) if isinstance(data, bytes) else msgspec.convert(data, made)
    return cast("D", document.read_from(read))


def read_checked(document: type[Document], data: Mapping[str, Any], file: Path, kind: FileKind) -> Any:
    """Returns the record of JSON data; if something does not fit, BaselineError names file, field and cure."""
    try:
        return read_as(document, data)
    except msgspec.DecodeError as error:
        raise kind.error(file, problem_text(error)) from None


def replaced(document: D, **changes: Any) -> D:
    """Returns a copy of a document with other values of these fields."""
    return cast("D", msgspec.structs.replace(cast("msgspec.Struct", document), **changes))


class IntervalData(Document, record=Interval):
    """A confidence interval; an end is null if it is not finite."""

    low: float | None = about("Lower end.")
    high: float | None = about("Upper end.")
    confidence: Confidence = about("Confidence level: 0.95 for 95 %.")

    @classmethod
    def read_from(cls, struct: Any) -> Interval:
        """Returns the interval; a missing end is infinite. Written by hand for speed: a file has many intervals."""
        low = -math.inf if struct.low is None else struct.low
        high = math.inf if struct.high is None else struct.high
        return Interval(low=low, high=high, confidence=struct.confidence)
