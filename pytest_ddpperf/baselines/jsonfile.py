"""Reads and writes dataclasses as JSON files that users keep in git: with small diffs, and errors that name a cure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec

from pytest_ddpperf.baselines.files import require_regular
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.instruments.clock import uncollected

TOOL = "pytest-ddpperf"
LARGEST = 1e100  # of a file's numbers: sums and squares of much larger ones are not finite
UNUSUAL = re.compile(
    r"NaN|Infinity|[eE]\+?0*[1-9]\d\d|\d{100}"
)  # such as the exponent of a larger number, or a part of a text
MOST_CHARACTERS = 500_000_000  # of a file that is read; results of 3000 tests have 40 million
_PROBLEM = re.compile(r"(.*) - at (?:`key` in )?`\$(?:\.(.*))?`", re.DOTALL)
_FIELD = re.compile(r"Object (?:missing required|contains unknown) field `(.*)`")
_WIDTH = 100


def rounded(value: float) -> float:
    """Rounds to nine significant digits, which are short to write and more than any measurement has."""
    return float(f"{value:.9g}")


def render(value: Any) -> str:
    """Returns JSON text with sorted keys; lists of scalars fill one line. Raises ValueError for NaN and infinity."""
    return _lines(value, "") + "\n"


def _lines(value: Any, indent: str) -> str:
    if not isinstance(value, (Mapping, list)) or not value:
        return _flat(value)
    items = list(value.values()) if isinstance(value, Mapping) else value
    if not any(isinstance(item, (Mapping, list)) for item in items):
        flat = _flat(value)
        if isinstance(value, list) or len(indent) + len(flat) <= _WIDTH:
            return flat
    deeper = f"{indent}  "
    if isinstance(value, Mapping):
        parts = [f"{_flat(key)}: {_lines(value[key], deeper)}" for key in sorted(value)]
    else:
        parts = [_lines(item, deeper) for item in value]
    opening, closing = "{}" if isinstance(value, Mapping) else "[]"
    body = f",\n{deeper}".join(parts)
    return f"{opening}\n{deeper}{body}\n{indent}{closing}"


def _flat(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class FileKind:
    """A kind of JSON file that the plugin writes."""

    subject: str  # in the names of its files and its schema: "baseline" has the schema pytest-ddpperf/baseline/1
    version: int
    cure: str  # what to do with a broken file

    @property
    def name(self) -> str:
        """Returns the name of this kind of file for error messages, such as ``baseline file``."""
        return f"{self.subject} file"

    @property
    def schema(self) -> str:
        """Returns the value of the field ``schema`` in files that this version writes."""
        return f"{TOOL}/{self.subject}/{self.version}"

    def error(self, file: Path, problem: str) -> BaselineError:
        """Returns the BaselineError for a broken file, with the problem and the cure."""
        return BaselineError(f"{self.name} {file}: {problem}; {self.cure}")


def read_text(file: Path, kind: FileKind) -> str | None:
    """Returns the text of a file, or None if there is no such file; raises BaselineError if it cannot be read."""
    try:
        require_regular(file)
        with file.open(encoding="utf-8") as opened:
            text = opened.read(MOST_CHARACTERS + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        raise kind.error(file, "is not text in UTF-8") from None
    except OSError as error:
        raise BaselineError(f"{kind.name} {file} cannot be read: {error.strerror}") from None
    if len(text) > MOST_CHARACTERS:
        raise kind.error(file, f"holds more than {MOST_CHARACTERS:.3g} characters")
    return text


def checked(text: str, file: Path, kind: FileKind) -> dict[str, Any]:
    """Returns the data in a file of this kind.

    Raises BaselineError if the text is cut off, in conflict after a merge, garbled, of another schema or a newer
    version, or if a number is larger than ``LARGEST``.
    """
    try:
        # NaN and infinity become null, which is refused wherever a document needs a number.
        data: dict[str, Any] = json.loads(text, object_pairs_hook=_unique, parse_constant=lambda _: None)
    except json.JSONDecodeError as error:
        raise kind.error(file, _complaint(text, error)) from None
    except (ValueError, RecursionError) as error:
        raise kind.error(file, f"has data that this plugin cannot have written ({error})") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema is None:
        raise kind.error(file, f"field schema: is missing, so this is no {kind.name}")
    found = re.fullmatch(rf"{TOOL}/{kind.subject}/([1-9][0-9]*)", str(schema), re.ASCII)
    if found is None:
        raise kind.error(file, f"field schema: expected {kind.schema}, found {schema}")
    if int(found[1]) > kind.version:
        reason = f"{kind.name} {file}: field schema is {kind.subject}/{found[1]}, which a newer {TOOL} wrote"
        raise BaselineError(f"{reason}; this version reads {kind.subject}/{kind.version}: upgrade {TOOL}")
    if large := next(_large(data) if UNUSUAL.search(text) else iter(()), None):
        raise kind.error(file, large)
    return data


def _large(value: Any, path: str = "") -> Iterator[str]:
    """Yields a complaint about each number that is too large, with its path."""
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _large(item, f"{path}[{key}]" if isinstance(value, list) else f"{path}.{key}".removeprefix("."))
    elif isinstance(value, (int, float)) and abs(value) > LARGEST:
        yield f"field {path}: the number {value} is too large"


def _complaint(text: str, error: json.JSONDecodeError) -> str:
    content = text.rstrip()
    if not content:
        return "is empty"
    for number, line in enumerate(content.splitlines(), start=1):
        if line.startswith(("<<<<<<< ", ">>>>>>> ")):
            return f"holds an unresolved merge conflict at line {number}"
    if not content.startswith("{"):
        return "has no JSON"
    if error.pos >= len(content) or not content.endswith("}"):
        return f"is cut off at line {content.count(chr(10)) + 1}"
    return f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object's pairs as a dict; raises ValueError if a name occurs twice, which json would accept."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name!r} occurs twice in one object")
        found[name] = value
    return found


def problem_text(error: Exception) -> str:
    """Returns msgspec's complaint about a value, with its path: ``field results[0].dirty: Expected `bool` ...``."""
    found = _PROBLEM.fullmatch(str(error))
    problem, path = (found[1], found[2] or "") if found else (str(error), "")
    if named := _FIELD.fullmatch(problem):
        path = ".".join(filter(None, (path, named[1])))
        problem = "is missing" if "missing" in problem else "is unknown to this version"
    problem = re.sub(r"^(?=Expected|Object|Invalid)[A-Z]", lambda first: first[0].lower(), problem)
    return f"field {path}: {problem}" if path else problem


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


def object_of(
    record: type,
    *,
    without: Collection[str] = (),
    sparse: Collection[str] = (),
    rename: Mapping[str, str] | None = None,
    **kinds: Any,
) -> Any:
    """Returns a msgspec type for the JSON object of a dataclass, with all fields of the dataclass except ``without``.

    Fields in ``sparse`` are not written while they have the dataclass's default. ``rename`` maps fields to names in
    JSON. ``kinds`` gives types (or pairs of a type and a default) to additional fields, or other types to these fields.
    """
    hints = {name: hint for name, hint in {**get_type_hints(record), **kinds}.items() if name not in without}
    defaults: dict[str, list[Any]] = {name: [] for name in hints}
    for each in fields(record):
        if each.name in sparse and each.default is not MISSING:
            defaults[each.name] = [each.default]
        elif each.name in sparse and each.default_factory is not MISSING:
            defaults[each.name] = [msgspec.field(default_factory=each.default_factory)]
    made: list[Any] = [
        (name, *hint) if isinstance(hint, tuple) else (name, hint, *defaults[name]) for name, hint in hints.items()
    ]
    how: Any = {"frozen": True, "forbid_unknown_fields": True, "omit_defaults": True, "rename": rename, "gc": False}
    return msgspec.defstruct(record.__name__, made, kw_only=True, **how)


def json_of(kind: Any, record: Any) -> Any:
    """Converts an object, or a mapping of its fields, to JSON data by the msgspec type ``kind``; NaN becomes None."""
    return msgspec.json.decode(msgspec.json.encode(msgspec.convert(record, kind, from_attributes=True)))


@uncollected()  # a collection would scan millions of new objects repeatedly
def read_as(kind: Any, data: Mapping[str, Any], file: Path, of: FileKind) -> Any:
    """Converts JSON data to the msgspec type ``kind``; if a value does not fit, raises BaselineError with its field."""
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter for text such as "\\ud800"
        raise of.error(file, problem_text(error)) from None
