"""The words of a judgement; apart from the other nouns so that loading the plugin stays cheap."""

from __future__ import annotations

from enum import Enum


class Verdict(str, Enum):
    """What a comparison says. Ordered from good to bad: a result is as bad as its worst gated metric."""

    IMPROVED = "improved"
    UNCHANGED = "unchanged"
    OK = "ok"
    NEW = "new"
    DOES_NOT_FIT = "does_not_fit"
    INCOMPATIBLE = "incompatible"
    INCONCLUSIVE = "inconclusive"
    REGRESSED = "regressed"
    BROKEN = "broken"

    @property
    def severity(self) -> int:
        """0 for the best verdict, rising with badness."""
        return list(Verdict).index(self)


OPEN = frozenset({Verdict.OK, Verdict.INCONCLUSIVE})
"""More launches may still decide these: an ``ok`` may turn out unchanged, or a small regression."""

GREEN = frozenset({Verdict.IMPROVED, Verdict.UNCHANGED, Verdict.OK})
"""These rule a slowdown beyond the resolution out."""
