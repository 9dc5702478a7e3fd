"""The JSON schema of a document; the description of a field comes from its comment, or from its record."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

import msgspec

from pytest_ddpperf.reports.documents.entries import JsonEntry


def schema_of(document: type[JsonEntry]) -> dict[str, Any]:
    """Returns the JSON schema of a document."""
    schema = msgspec.json.schema(document)
    for kind in kinds_of(document, set()):
        words: dict[str, str] = {}
        for record in (*getattr(kind, "words_from", ()), kind):
            words |= _words_of(record)
        names = {} if is_dataclass(kind) else {one.encode_name: one.name for one in msgspec.structs.fields(kind)}
        for name, field in schema["$defs"][kind.__name__]["properties"].items():
            field.setdefault("description", words.get(names.get(name, name), ""))
    return schema


def kinds_of(hint: Any, known: set[Any]) -> Iterator[Any]:
    """Yields the classes that occur in a type, directly or inside other classes."""
    inner = get_args(hint)
    if (is_dataclass(hint) or isinstance(hint, msgspec.StructMeta)) and hint not in known:
        known.add(hint)
        yield hint
        inner = tuple(get_type_hints(hint, include_extras=True).values())
    for each in inner:
        yield from kinds_of(each, known)


def _words_of(record: type) -> dict[str, str]:
    """Returns a record's descriptions of its attributes: from its docstring, from comments, and from its properties."""
    found: dict[str, str] = {}
    for base in [each for each in reversed(record.__mro__) if each.__module__ == record.__module__]:
        found |= {name: of.__doc__ or "" for name, of in vars(base).items() if isinstance(of, property)}
        above = re.findall(r"((?:^    # .+\n)+)    (\w+): ", inspect.getsource(base), re.MULTILINE)
        found |= {name: text.replace("    # ", "").strip() for text, name in above}
        found |= dict(re.findall(r"^    (\w+): .*?  # (?!type: )(.+)$", inspect.getsource(base), re.MULTILINE))
        found |= dict(re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", inspect.getdoc(base) or "", re.MULTILINE))
    first = {name: " ".join(text.partition("\n\n")[0].split()) for name, text in found.items()}
    told = {name: text.removeprefix("Returns ").removesuffix(".") for name, text in first.items()}
    told = {name: re.sub(r"\bNone\b", "null", text.replace("``", "")) for name, text in told.items()}
    return {name: f"{text[:1].upper()}{text[1:]}." for name, text in told.items()}
