"""Whether a report is as it must be; what that is follows from the case alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from benchmarks.campaign.kinds import KINDS, NEVER, Case

GRACE = 5.0  # seconds after the deadline; docs/ranks.md says so
LONG = 400_000  # characters: no report is longer
_STACK = re.compile(r"^ranks? (\d+(?:, \d+)*):$", re.MULTILINE)
_RANKS = re.compile(r"\branks? (\d+(?:, \d+)*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What came of a case: for each property whether it holds, and None if it does not apply."""

    case: Case
    properties: dict[str, bool | None]
    text: str  # of the report, if a property does not hold
    error: str
    seconds: float
    left: list[str]
    said: str  # by the next test

    @property
    def good(self) -> bool:
        return all(holds is not False for holds in self.properties.values())


def judged(case: Case, outcome: dict[str, Any] | None, left: list[str], said: str, acted: float | None) -> Verdict:
    """Judges a case; ``outcome`` is None if no report came, ``acted`` if nothing was done."""
    kind = KINDS[case.kind]
    error, text = ("", "") if outcome is None else (outcome["error"], outcome["text"])
    seconds = float("inf") if outcome is None else 0.0 if acted is None else outcome["ended"] - acted
    passes = _may_pass(case)
    blamed: bool | None = False
    reason: bool | None = False
    if outcome is not None and acted is not None and not error:
        blamed = reason = None if passes != "no" else False
    elif outcome is not None and acted is not None and passes != "must":
        blamed = _blamed(case, error, first_named(error, outcome["rank"], text), text)
        pattern = kind.reasons[case.ending] if case.ending else kind.reason
        reason = re.search(pattern, text) is not None and outcome["length"] < LONG
    properties = {
        "in time": seconds <= case.deadline + GRACE,
        "guilty rank first": blamed,
        "right reason": reason,
        "nothing left": not left,
        "next test passes": not said,
    }
    return Verdict(
        case=case,
        properties=properties,
        text="" if False not in properties.values() else text[:3000],
        error=error or ("nothing was done" if acted is None else "no report" if outcome is None else ""),
        seconds=round(min(seconds, 999.0), 2),
        left=left,
        said=said[:2000],
    )


def _may_pass(case: Case) -> str:
    """Whether a case ends without an error: no, may or must."""
    kind = KINDS[case.kind]
    if case.ending == "return" and kind.reasons["return"] == NEVER:
        return "must" if kind.passes == "no" else kind.passes
    if case.phase == "turns" and kind.reason.startswith("ran out of memory"):
        return "may"  # what does not fit is a row of a comparison
    return kind.passes


def first_named(error: str, rank: int | None, text: str) -> set[int] | None:
    """Returns the ranks that a report names first; None if it blames nobody."""
    if not error or error in {"LaunchError", "Session"} or (rank is None and error in {"RankFailed", "RanksTimedOut"}):
        return None
    # Lines before say where all stand; the guilty rank's stack comes first.
    found = (_STACK if error == "RanksTimedOut" else _RANKS).search(text)
    return None if found is None else {int(number) for number in found[1].split(", ")}


def _blamed(case: Case, error: str, first: set[int] | None, text: str) -> bool | None:
    """Whether the guilty rank is named first; None if no report can tell, and no innocent rank is named."""
    blame = KINDS[case.kind].blame
    if blame == "any" or error == "WorkloadError" or (error == "LaunchError" and case.ending == "return"):
        return None  # what all ranks do wrong, or what the next launch misses
    if blame == "nobody":
        return first is None
    guilty = case.other if blame == "other" else case.rank
    if blame == "majority" and case.world_size == 2 and (first is None or "had finished" in text):
        return None  # two ranks contradict each other: one has called too much, or one too little
    return first is not None and guilty in first and (blame != "rank" or len(first) == 1 or case.world_size == 2)
