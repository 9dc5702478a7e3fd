"""Checked access to what a baseline file holds: every complaint names the file, the field and the cure."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddpperf.errors import BaselineError

CURE = "restore it from version control, or delete it and measure again with --ddpperf-save"
_SHOWN = 60  # characters of a wrong value in a message
_KINDS = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}


@dataclass(frozen=True)
class Kind:
    """What errors call a file, and what they advise."""

    name: str
    cure: str


BASELINE = Kind("baseline file", CURE)


@dataclass(frozen=True)
class Field:
    """A value somewhere in a file.

    Attributes:
        path: where, e.g. ``records[0].plan.steps``; empty for the whole file.
    """

    file: Path
    path: str
    value: Any
    kind: Kind = BASELINE

    def error(self, problem: str) -> BaselineError:
        """The error for this field."""
        where = f"field {self.path}: " if self.path else ""
        return BaselineError(f"{self.kind.name} {self.file}: {where}{problem}; {self.kind.cure}")

    def _wrong(self, expected: str) -> BaselineError:
        shown = json.dumps(self.value)
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        return self.error(f"expected {expected}, found {_KINDS.get(type(self.value), 'the number')} {shown}")

    def fields(self, *names: str, optional: Collection[str] = ()) -> dict[str, Field]:
        """The fields of an object that has exactly these names; the optional ones may be missing."""
        found = self.mapping()
        for name in names:
            if name not in found and name not in optional:
                raise self._inner(self._at(name), None).error("is missing")
        for name in found:
            if name not in names:
                raise found[name].error("is not known here")
        return found

    def mapping(self) -> dict[str, Field]:
        """The fields of an object with names of any kind."""
        if not isinstance(self.value, dict):
            raise self._wrong("an object")
        return {name: self._inner(self._at(name), value) for name, value in self.value.items()}

    def items(self) -> list[Field]:
        """The items of a list."""
        if not isinstance(self.value, list):
            raise self._wrong("a list")
        return [self._inner(f"{self.path}[{i}]", value) for i, value in enumerate(self.value)]

    def text(self, least: int = 1) -> str:
        """A text of at least so many characters."""
        if not isinstance(self.value, str):
            raise self._wrong("a text")
        if len(self.value) < least:
            raise self.error("is empty")
        return self.value

    def choice(self, choices: Iterable[str]) -> str:
        """One of several words."""
        words = tuple(choices)
        if self.value not in words:
            raise self._wrong(f"one of {', '.join(words)}")
        return str(self.value)

    def number(self) -> float:
        """A finite number."""
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            raise self._wrong("a number")
        try:
            number = float(self.value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self._wrong("a finite number")
        return number

    def whole(self, least: int = 0) -> int:
        """A whole number that is not below ``least``."""
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < least:
            raise self._wrong(f"a whole number of at least {least}")
        return self.value

    def day(self) -> str:
        """A date, ISO 8601."""
        try:
            return dt.date.fromisoformat(self.text()).isoformat()
        except ValueError:
            raise self.error(f"expected a day such as 2026-01-31, found {self.text()}") from None

    def switch(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            raise self._wrong("true or false")
        return self.value

    def _inner(self, path: str, value: Any) -> Field:
        return Field(self.file, path, value, self.kind)

    def _at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def parse(text: str, file: Path, kind: Kind = BASELINE) -> Field:
    """The content of a JSON file, not yet checked.

    Raises:
        BaselineError: the text is no JSON: cut off, in conflict after a merge, or garbled.
    """
    top = Field(file, "", None, kind)
    try:
        return Field(file, "", json.loads(text, object_pairs_hook=_once), kind)
    except json.JSONDecodeError as error:
        raise top.error(_complaint(text, error)) from None
    except (ValueError, RecursionError) as error:
        raise top.error(f"is no data that this plugin wrote ({error})") from None


def require_schema(top: Field, family: str, version: int) -> None:
    """Make sure that a file is of this family, such as ``pytest-ddpperf/baseline/``, and of no newer version.

    Raises:
        BaselineError: it does not, or is.
    """
    schema = top.mapping().get("schema")
    if schema is None:
        raise Field(top.file, "schema", None, top.kind).error(f"is missing, so this is no {top.kind.name}")
    found = re.fullmatch(rf"{re.escape(family)}([1-9][0-9]*)", schema.text(), re.ASCII)
    if found is None:
        raise schema.error(f"expected {family}{version}, found {schema.text()}")
    if int(found[1]) > version:
        tool, kind, _ = family.split("/")
        raise BaselineError(
            f"{top.kind.name} {top.file}: field schema: it was written by a newer {tool} ({kind}/{found[1]}); "
            f"this one reads /{version}: upgrade {tool}"
        )


def _complaint(text: str, error: json.JSONDecodeError) -> str:
    content = text.rstrip()
    if not content:
        return "is empty"
    for number, line in enumerate(content.splitlines(), start=1):
        if line.startswith(("<<<<<<< ", ">>>>>>> ")):
            return f"holds an unresolved merge conflict at line {number}"
    if error.pos >= len(content) or not content.endswith("}"):
        return f"is cut off at line {content.count(chr(10)) + 1}"
    return f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, in which no name may stand twice: JSON would silently keep the last."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name!r} stands twice in one object")
        found[name] = value
    return found
