"""JSON files that are read whole, or refused with file, field and cure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddpperf.baselines.typed import Misfit, Shapes, read
from pytest_ddpperf.errors import BaselineError


@dataclass(frozen=True, kw_only=True)
class FileKind:
    """A format of files: what errors call it and advise, its schema, and what it is made into."""

    name: str
    cure: str
    family: str  # of the schema: pytest-ddpperf/baseline/, which the version follows
    version: int
    content: type
    shapes: Shapes

    @property
    def schema(self) -> str:
        """What is written today."""
        return f"{self.family}{self.version}"

    def error(self, file: Path, problem: str) -> BaselineError:
        """The error for a file that is broken."""
        return BaselineError(f"{self.name} {file}: {problem}; {self.cure}")


def read_text(file: Path, kind: FileKind) -> str | None:
    """The text of a file; None if there is no such file, BaselineError if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        raise kind.error(file, "is not text in UTF-8") from None
    except OSError as error:
        raise BaselineError(f"{kind.name} {file}: cannot be read: {error.strerror}") from None


def parse(text: str, file: Path, kind: FileKind) -> tuple[Any, dict[str, Any]]:
    """The content of a file, and the data that it was made of.

    Raises:
        BaselineError: the text is cut off, in conflict after a merge, garbled, of another schema, of a newer version,
            or holds a wrong value.
    """
    try:
        data = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise kind.error(file, _complaint(text, error)) from None
    except (ValueError, RecursionError) as error:
        raise kind.error(file, f"is no data that this plugin wrote ({error})") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema is None:
        raise kind.error(file, f"field schema: is missing, so this is no {kind.name}")
    found = re.fullmatch(rf"{re.escape(kind.family)}([1-9][0-9]*)", str(schema), re.ASCII)
    if found is None:
        raise kind.error(file, f"field schema: expected {kind.schema}, found {schema}")
    if int(found[1]) > kind.version:
        tool, family, _ = kind.family.split("/")
        raise BaselineError(
            f"{kind.name} {file}: field schema: it was written by a newer {tool} ({family}/{found[1]}); "
            f"this one reads /{kind.version}: upgrade {tool}"
        )
    try:
        return read(kind.content, data, kind.shapes), data
    except Misfit as misfit:
        raise kind.error(file, str(misfit)) from None


def _complaint(text: str, error: json.JSONDecodeError) -> str:
    """Why a text is no JSON."""
    content = text.rstrip()
    if not content:
        return "is empty"
    for number, line in enumerate(content.splitlines(), start=1):
        if line.startswith(("<<<<<<< ", ">>>>>>> ")):
            return f"holds an unresolved merge conflict at line {number}"
    if error.pos >= len(content) or not content.endswith("}"):
        return f"is cut off at line {content.count(chr(10)) + 1}"
    return f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, in which no name may stand twice: JSON would silently keep the last."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name!r} stands twice in one object")
        found[name] = value
    return found
