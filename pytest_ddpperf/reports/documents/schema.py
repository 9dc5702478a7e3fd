"""The JSON schema of a document, in which each field is described, by its own words or those of its record."""

from __future__ import annotations

import inspect
import re
from typing import Any

import msgspec

from pytest_ddpperf.baselines.document import Document, struct_of


def schema_of(document: type[Document]) -> dict[str, Any]:
    """Returns the JSON schema of a document."""
    schema = msgspec.json.schema(struct_of(document))
    kinds = [Document]
    for kind in kinds:
        kinds += kind.__subclasses__()
        properties = schema["$defs"].get(kind.__name__, {}).get("properties", {})
        words = [_words_of(record) for record in kind.words_from] if properties else []
        for name in properties.keys() & kind.fields.keys():
            field = kind.fields[name][1]
            attribute = field.source if field.source and isinstance(field.source, str) else name
            known = (each[last] for each in words if (last := attribute.rpartition(".")[2]) in each)
            properties[name].setdefault("description", field.description or next(known, ""))
    return schema


def _words_of(record: type) -> dict[str, str]:
    """What a record says of its attributes: in its docstring, behind its fields, in docstrings of properties."""
    found: dict[str, str] = {}
    for base in [each for each in reversed(record.__mro__) if each.__module__ == record.__module__]:
        found |= {name: of.__doc__ or "" for name, of in vars(base).items() if isinstance(of, property)}
        found |= dict(re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(base), re.MULTILINE))
        found |= dict(re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", inspect.getdoc(base) or "", re.MULTILINE))
    first = {name: " ".join(text.partition("\n\n")[0].split()) for name, text in found.items()}
    told = {name: text.removeprefix("Returns ").removesuffix(".") for name, text in first.items()}
    told = {name: re.sub(r"\bNone\b", "null", text.replace("``", "")) for name, text in told.items()}
    return {name: f"{text[:1].upper()}{text[1:]}." for name, text in told.items()}
