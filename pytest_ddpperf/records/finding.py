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
        code: which kind of remark it is, in snake_case; ``reports.findings`` has the words of each.
        facts: the figures, names and records that the words need, by name. A fact is a text only where the text is
            somebody else's, such as the message of an error, or is kept in a file.
    """

    code: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        """Facts may be anything, so findings with one code share a hash."""
        return hash(self.code)
