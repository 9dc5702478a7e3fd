"""The JSON objects in files: makes msgspec types from dataclasses, to write and read their data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec

from pytest_ddpperf.baselines.jsonfile import FileKind, problem_text, uncollected

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

    Fields in ``sparse`` are not written while they have the dataclass's default. ``kinds`` has types for further
    fields, or in place of the dataclass's types; a pair is (type, default).
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
    """Returns a record, or its fields by name, as JSON data of type ``kind``; numbers that are not finite are None."""
    return msgspec.json.decode(msgspec.json.encode(msgspec.convert(record, kind, from_attributes=True)))


@uncollected()
def read_as(kind: Any, data: Mapping[str, Any], file: Path, of: FileKind) -> Any:
    """Returns JSON data as an object of type ``kind``; if a value does not fit, BaselineError names file and field."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise of.error(file, problem_text(error)) from None
