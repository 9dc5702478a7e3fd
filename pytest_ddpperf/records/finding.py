"""A note on a result, as data; ``reports`` has the texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

APART = frozenset({"ranks_apart", "same_data", "parameters_apart"})
"""Codes of findings that make a result ``broken``: steps run, but the ranks do not train one model together."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A remark on a result, as a code with facts.

    Attributes:
        code: identifies the sentence of the remark in ``reports.findings``, in snake_case.
        facts: the values that the sentence contains, by name. A fact is a sentence itself only if others wrote it, such
            as an error message, or if it comes from a file.
    """

    code: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        """Hashes the code alone: facts may be of any type."""
        return hash(self.code)
