"""The verdicts; they are separate from other records so that loading the plugin is fast."""

from __future__ import annotations

from enum import Enum


class Verdict(str, Enum):
    """The result of a comparison, ordered from good to bad: a benchmark is as bad as its worst gated metric."""

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
        """0 for the best verdict, higher for worse ones."""
        return list(Verdict).index(self)


OPEN = frozenset({Verdict.OK, Verdict.INCONCLUSIVE})
"""Verdicts that more launches may change: an ``ok`` may turn out unchanged, or a small regression."""

GREEN = frozenset({Verdict.IMPROVED, Verdict.UNCHANGED, Verdict.OK})
"""Verdicts that rule out a slowdown beyond ``--ddpperf-must-detect`` (compared with stored times: a gross one)."""
