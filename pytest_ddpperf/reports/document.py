"""JSON documents: a class declares each object of a document, makes it of a record, and is read again by msgspec."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from pytest_ddpperf.baselines.files import require_writable, require_writable_folder, write_file
from pytest_ddpperf.baselines.jsonfile import rounded
from pytest_ddpperf.errors import SettingError

_INTEGRAL = 2.0**63  # of JSON that msgspec writes integers are smaller
_HEAD = 1024  # bytes of a file that tell whether it is JSON
Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Confidence = Annotated[float, msgspec.Meta(gt=0, lt=1)]
Date = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$")]
MetricName = Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_]*$")]
D = TypeVar("D", bound="Document")


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """What is known of a field besides its name and its type."""

    description: str  # for the schema
    source: str | Callable[[Any], Any]  # an attribute of the record, such as ``series.unit``, or a function of it
    always: bool  # whether a sparse document has it even if it is false


def about(description: str = "", source: str | Callable[[Any], Any] = "", *, always: bool = False) -> Any:
    """Declares a field of a document; its source is the attribute of the same name if none is named."""
    return Field(description=description, source=source, always=always)


class Document:
    """A JSON object, by its fields: each is an attribute of a record, or of a record ``inside`` it that has one.

    A ``sparse`` document, of which a file has many, leaves out fields that are null, false or empty. What ``read_as``
    returns has the fields of the class and cannot be changed.
    """

    fields: ClassVar[Mapping[str, tuple[Any, Field]]] = {}  # by name: type and declaration
    makers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}  # by name: what makes JSON data of a record
    needed: ClassVar[Collection[str]] = ()  # the fields that are never left out
    inside: ClassVar[tuple[str, ...]] = ()
    struct: ClassVar[type[msgspec.Struct]]  # msgspec's type, made when it is asked for

    def __init_subclass__(cls, inside: str = "", *, sparse: bool = False) -> None:
        cls.inside = (*cls.inside, inside) if inside else cls.inside
        hints = get_type_hints(cls, include_extras=True).items()
        declared = [(name, hint, getattr(cls, name, None)) for name, hint in hints]
        cls.fields = {name: (hint, field) for name, hint, field in declared if isinstance(field, Field)}
        of_all = cls.fields.items()
        cls.makers = {name: _maker(hint, field.source or name, cls.inside) for name, (hint, field) in of_all}
        cls.needed = {name for name, (hint, field) in of_all if not sparse or field.always or _nothing(hint) is None}

    def __new__(cls: type[D], **values: Any) -> D:  # noqa: PYI019  typing has no Self in Python 3.10
        """Returns an object that has these fields; their types are not checked."""
        return cast("D", _struct(cls)(**values))

    @classmethod
    def filled_from(cls, record: Any) -> dict[str, Any]:
        """Returns the object as JSON data."""
        filled = {name: make(record) for name, make in cls.makers.items()}
        # A zero says something, and false does not.
        return {name: it for name, it in filled.items() if it or name in cls.needed or (it == 0 and it is not False)}


_EMPTY: Mapping[Any, Any] = {list: list, dict: dict, str: str, bool: bool}


def _nothing(hint: Any) -> Any:
    """Returns what makes the value of a field that is left out; None if it never is."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType} and NoneType in arguments:
        return NoneType
    return _nothing(arguments[0]) if origin is Annotated else _EMPTY.get(origin or hint)


def _maker(hint: Any, source: str | Callable[[Any], Any], inside: Sequence[str]) -> Callable[[Any], Any]:
    """Returns what makes JSON data of a record, or of the first record inside it that has the source."""
    write = _writer(hint)
    if callable(source):
        return lambda record: write(source(record))
    get, first = operator.attrgetter(source), source.partition(".")[0]

    def make(record: Any) -> Any:
        if not inside or hasattr(record, first):
            return write(get(record))
        return write(next(get(inner) for name in inside if hasattr(inner := getattr(record, name), first)))

    return make


def _writer(hint: Any) -> Callable[[Any], Any]:
    """Returns what makes JSON data of a value of a type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Annotated, Union, UnionType}:  # with rules, or with None
        write = _writer(next(argument for argument in arguments if argument is not NoneType))
        return lambda value: None if value is None else write(value)
    if origin is list:
        write = _writer(arguments[0])
        return lambda value: list(map(write, value))
    if origin is dict:
        write = _writer(arguments[1])
        return lambda value: {key: write(item) for key, item in value.items()}
    if hint is float:
        return _number
    inner: Callable[[Any], Any] = getattr(hint, "filled_from", lambda value: getattr(value, "value", value))  # of enums
    return inner


def _number(value: float | None) -> float | None:
    """Returns 4, not 4.0; null for what is not finite, as an interval from too few launches."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if abs(value) < _INTEGRAL and value == int(value) else rounded(value)


def _struct(document: type[Document]) -> type[msgspec.Struct]:
    """Returns msgspec's type for a document."""
    if "struct" not in vars(document):
        made: list[Any] = []
        for name, (hint, field) in document.fields.items():
            default = [] if name in document.needed else [msgspec.field(default_factory=_nothing(hint))]
            described: Any = Annotated[_read_type(hint), msgspec.Meta(description=field.description)]
            made.append((name, described, *default))
        how: Any = {"kw_only": True, "frozen": True, "forbid_unknown_fields": True}
        document.struct = msgspec.defstruct(document.__name__, made, namespace={"__doc__": document.__doc__}, **how)
    return document.struct


def _read_type(hint: Any) -> Any:
    """Returns a type in which each document is msgspec's."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is None or origin is Literal:
        return _struct(hint) if isinstance(hint, type) and issubclass(hint, Document) else hint
    first, *others = arguments
    if origin is Annotated:
        parts = (_read_type(first), *others)
        return Annotated[parts]
    inner = tuple(map(_read_type, arguments))
    return functools.reduce(operator.or_, inner) if origin in {Union, UnionType} else origin[inner]


def read_as(document: type[D], data: bytes | Mapping[str, Any]) -> D:
    """Returns a document by a file's text, or by JSON data; ``msgspec.DecodeError`` says what does not fit."""
    made = _struct(document)
    return cast("D", msgspec.json.decode(data, type=made) if isinstance(data, bytes) else msgspec.convert(data, made))


def values_of(document: Document) -> dict[str, Any]:
    """Returns the values of a document's fields by name."""
    return msgspec.structs.asdict(cast("msgspec.Struct", document))


def replaced(document: D, **changes: Any) -> D:
    """Returns a copy of a document with other values of these fields."""
    return cast("D", msgspec.structs.replace(cast("msgspec.Struct", document), **changes))


def schema_of(document: type[Document]) -> dict[str, Any]:
    """Returns the JSON schema of a document."""
    return msgspec.json.schema(_struct(document))


class IntervalData(Document):
    """A confidence interval; an end is null if it is not finite."""

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
    write_text(path, document_text(document), option)


def document_text(document: Mapping[str, Any]) -> str:
    """Returns the text of a document: a line for each field, and for each item of its lists."""

    def text(value: Any) -> str:
        if isinstance(value, list) and value:
            return "[\n" + ",\n".join(map(text, value)) + "\n]" if isinstance(value[0], dict) else _flat(value)
        return _flat(value)

    return "{\n" + ",\n".join(f"{_flat(name)}: {text(document[name])}" for name in sorted(document)) + "\n}\n"


def _flat(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _unwritable(path: Path, error: OSError, option: str) -> SettingError:
    return SettingError(f"{option}: {path} cannot be written: {error.strerror or error}; name another file")
