"""The published JSON schemas, made of the documents' classes; ``python -m tests.reports.schemas`` writes them again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pytest_ddpperf.baselines.jsonfile import render
from pytest_ddpperf.reports.document import Document
from pytest_ddpperf.reports.documents import results, trend

DOCUMENTS: dict[Path, tuple[type[Document], str]] = {
    results.SCHEMA_FILE: (results.ResultsData, "Results of a pytest-ddpperf run"),
    trend.SCHEMA_FILE: (trend.TrendsData, "Trends of a pytest-ddpperf history"),
}
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def schema_text(document: type[Document], title: str) -> str:
    """The schema of a document as JSON text."""
    top = _object_schema(document)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": top["properties"]["schema"]["enum"][0],
        "title": title,
    }
    parts = {part.__name__: _object_schema(part) for part in _parts(document)}
    return render({**head, **top, "$defs": parts})


def _parts(document: type[Document]) -> Iterator[type[Document]]:
    """The objects inside a document, some of them repeatedly."""
    for hint, _ in document.fields.values():
        for part in _documents_in(hint):
            yield part
            yield from _parts(part)


def _documents_in(hint: Any) -> Iterator[type[Document]]:
    if isinstance(hint, type) and issubclass(hint, Document):
        yield hint
    for argument in get_args(hint):
        yield from _documents_in(argument)


def _object_schema(document: type[Document]) -> dict[str, Any]:
    described = {
        name: {**_type_schema(hint), **({"description": field.description} if field.description else {})}
        for name, (hint, field) in document.fields.items()
    }
    return {
        "type": "object",
        "description": document.__doc__,
        "properties": described,
        "required": sorted(name for name, (_, field) in document.fields.items() if not field.optional),
        "additionalProperties": False,
    }


def _type_schema(hint: Any) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return {**_type_schema(arguments[0]), **dict(arguments[1:])}
    if origin in {Union, UnionType}:
        return {"anyOf": [_type_schema(argument) for argument in arguments]}
    if origin is Literal:
        return {"enum": sorted(arguments)}
    if origin is list:
        return {"type": "array", "items": _type_schema(arguments[0])}
    if origin is dict:
        keys = {name: value for name, value in _type_schema(arguments[0]).items() if name != "type"}
        names = {"propertyNames": keys} if keys else {}
        return {"type": "object", "additionalProperties": _type_schema(arguments[1]), **names}
    return {"type": _TYPES[hint]} if hint in _TYPES else {"$ref": f"#/$defs/{hint.__name__}"}


def write() -> None:
    """Writes the schema files."""
    for file, (document, title) in DOCUMENTS.items():
        file.write_text(schema_text(document, title), encoding="utf-8")


if __name__ == "__main__":
    write()
