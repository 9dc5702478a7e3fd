"""JSON documents: a class declares each object of a document, makes it of a record, and is read again by msgspec."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
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

    description: str = ""  # for the schema; empty if the record has the words
    source: str | Callable[[Any], Any] = ""  # an attribute of the record, such as ``series.unit``, or a function of it
    always: bool = False  # whether a sparse document has it even if it is false


def about(description: str = "", source: str | Callable[[Any], Any] = "", *, always: bool = False) -> Any:
    """Declares a field of a document; its source is the attribute of the same name if none is named."""
    return Field(description=description, source=source, always=always)


class Document:
    """A JSON object, by its fields: each is an attribute of a record, or of a record ``inside`` it that has one.

    A field without a description has the words of ``of``, the records with these attributes. A document of a whole
    ``record`` has all its fields, and is read as that record. A ``sparse`` document, of which a file has many, leaves
    out fields that are null, false or empty. What ``read_as`` returns has the fields of the class and is frozen.
    """

    fields: ClassVar[Mapping[str, tuple[Any, Field]]] = {}  # by name: type and declaration
    makers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}  # by name: what makes JSON data of a record
    needed: ClassVar[Collection[str]] = ()  # the fields that are never left out
    inside: ClassVar[tuple[str, ...]] = ()
    words_from: ClassVar[tuple[type, ...]] = ()  # the records that describe its fields
    whole: ClassVar[type | None] = None  # the record that it has all fields of

    def __init_subclass__(
        cls, inside: str = "", *, of: Sequence[type] = (), record: type | None = None, sparse: bool = False
    ) -> None:
        cls.inside = (*cls.inside, inside) if inside else cls.inside
        cls.words_from, cls.whole = (*cls.words_from, *of, *([record] if record else [])), record
        if record:
            _OF_RECORDS[record] = cls
        own = {name: hint for name, hint in get_type_hints(cls, include_extras=True).items() if name not in _ITS_OWN}
        hints = {name: _json_type(hint) for name, hint in {**(get_type_hints(record) if record else {}), **own}.items()}
        cls.fields = {name: (hint, getattr(cls, name, Field())) for name, hint in hints.items()}
        of_all = cls.fields.items()
        cls.makers = {name: _maker(hint, field.source or name, cls.inside) for name, (hint, field) in of_all}
        cls.needed = {name for name, (hint, field) in of_all if not sparse or field.always or _nothing(hint) is None}

    def __new__(cls: type[D], **values: Any) -> D:  # noqa: PYI019  typing has no Self in Python 3.10
        """Returns an object that has these fields; their types are not checked."""
        return cast("D", struct_of(cls)(**values))

    @classmethod
    def filled_from(cls, record: Any) -> dict[str, Any]:
        """Returns the object as JSON data."""
        filled = {name: make(record) for name, make in cls.makers.items()}
        # A zero says something, and false does not.
        return {name: it for name, it in filled.items() if it or name in cls.needed or (it == 0 and it is not False)}


_ITS_OWN = frozenset(Document.__annotations__)
_OF_RECORDS: dict[type, type[Document]] = {}
_STRUCTS: dict[tuple[type[Document], bool], type[msgspec.Struct]] = {}
_EMPTY: Mapping[Any, Any] = {list: list, dict: dict, str: str, bool: bool}


def _json_type(hint: Any) -> Any:
    """Returns the type of a field with JSON's lists and objects in place of tuples, mappings and records."""
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return _OF_RECORDS.get(hint) or type(hint.__name__, (Document,), {"__doc__": hint.__doc__}, record=hint)
    if origin is Literal or not arguments:
        return hint
    inner = tuple(_json_type(each) for each in arguments if each is not Ellipsis)
    if origin is Annotated:
        parts = (inner[0], *hint.__metadata__)
        return Annotated[parts]
    if origin in {Union, UnionType}:
        return functools.reduce(operator.or_, inner)
    made: Any = dict if origin in {dict, Mapping} else list
    return made[inner]


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


def struct_of(document: type[Document], *, read: bool = True) -> type[msgspec.Struct]:
    """Returns msgspec's type for a document: what is ``read``, or what is written."""
    if (document, read) not in _STRUCTS:
        made: list[Any] = []
        for name, (hint, _) in document.fields.items():
            default = [] if name in document.needed else [msgspec.field(default_factory=_nothing(hint))]
            made.append((name, _msgspec_type(hint, read=read), *default))
        how: Any = {"kw_only": True, "frozen": True, "forbid_unknown_fields": True}
        struct = msgspec.defstruct(document.__name__, made, namespace={"__doc__": document.__doc__}, **how)
        _STRUCTS[document, read] = struct
    return _STRUCTS[document, read]


def _msgspec_type(hint: Any, *, read: bool) -> Any:
    """Returns a type in which each document is msgspec's, or if it is ``read`` its record."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal or not arguments:
        document = isinstance(hint, type) and issubclass(hint, Document)
        return hint if not document else hint.whole if read and hint.whole else struct_of(hint, read=read)
    inner = [_msgspec_type(each, read=read) for each in arguments[: 1 if origin is Annotated else None]]
    if origin is Annotated:
        parts = (*inner, *hint.__metadata__)
        return Annotated[parts]
    return functools.reduce(operator.or_, inner) if origin in {Union, UnionType} else origin[tuple(inner)]


def read_as(document: type[D], data: bytes | Mapping[str, Any]) -> D:
    """Returns a document by a file's text, or by JSON data; ``msgspec.DecodeError`` says what does not fit."""
    made = struct_of(document)
    return cast("D", msgspec.json.decode(data, type=made) if isinstance(data, bytes) else msgspec.convert(data, made))


def values_of(document: Document) -> dict[str, Any]:
    """Returns the values of a document's fields by name."""
    return msgspec.structs.asdict(cast("msgspec.Struct", document))


def replaced(document: D, **changes: Any) -> D:
    """Returns a copy of a document with other values of these fields."""
    return cast("D", msgspec.structs.replace(cast("msgspec.Struct", document), **changes))


class IntervalData(Document):
    """A confidence interval; an end is null if it is not finite."""

    low: float | None = about("Lower end.")
    high: float | None = about("Upper end.")
    confidence: Confidence = about("Confidence level: 0.95 for 95 %.")


@contextmanager
def _writing(path: Path, option: str) -> Iterator[None]:
    """Within, a failure to write a file is a SettingError, which names its option."""
    try:
        yield
    except OSError as error:
        why = "its folder is a file" if isinstance(error, FileExistsError) else error.strerror or error
        raise SettingError(f"{option}: {path} cannot be written: {why}; name another file") from None


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


def ensure_text(path: Path, option: str) -> None:
    """Makes sure, before anything is measured, that a text can be written there: SettingError if not."""
    with _writing(path, option):
        require_writable(path)


def ensure_writable(path: Path, option: str) -> None:
    """Makes sure, as ``ensure_text`` does, that results can be written there.

    They replace nothing but JSON: an option without a value takes the test file behind it for one.
    """
    ensure_text(path, option)
    special = path.parts[1:2] in {("dev",), ("proc",)}  # standard output may be a log that has begun
    with _writing(path, option):
        if special or not path.is_file() or not path.stat().st_size:
            return
        with path.open("rb") as file:
            if not file.read(_HEAD).lstrip().startswith((b"{", b"[")):
                raise OSError(0, "it holds something else than JSON")


def write_text(path: Path, text: str, option: str, *, append: bool = False) -> None:
    """Writes a text, as ``write`` does a document; ``append``: behind what the file has."""
    with _writing(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
        if append:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        else:
            write_file(path, text)


def write(path: Path, document: dict[str, Any], option: str) -> None:
    """Writes a document, whole or not at all, in a folder that is made if need be; SettingError if that fails.

    ``-`` is standard output, and devices and pipes are written to, as ``baselines.files.write_file`` does it.
    """
    ensure_writable(path, option)
    write_text(path, document_text(document), option)


def document_text(document: Mapping[str, Any]) -> str:
    """Returns the text of a document: a line for each field, and for each item of its lists."""

    def flat(value: Any) -> str:
        return msgspec.json.encode(value, order="sorted").decode()

    def text(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n" + ",\n".join(map(flat, value)) + "\n]"
        return flat(value)

    return "{\n" + ",\n".join(f"{flat(name)}: {text(document[name])}" for name in sorted(document)) + "\n}\n"
