"""A remark on a result, as data: the words are made where results are reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

APART = frozenset({"ranks_apart", "same_data", "parameters_apart"})
"""The codes of findings on ranks that do not train one model together, though their steps run: they are ``broken``."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a reader of a result needs to know.

    Attributes:
        code: kind of note, in snake_case; ``reports.findings`` has its sentence.
        facts: the figures, names and records of the sentence, by name. A fact is a text only if somebody else wrote it,
            such as the message of an error, or if a file keeps it.
    """

    code: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        """Facts may be anything, so findings with one code share a hash."""
        return hash(self.code)
