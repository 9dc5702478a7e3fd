"""Whether a report is as it must be; what that is follows from the case alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from benchmarks.campaign.kinds import KINDS, Case

GRACE = 5.0  # seconds after the deadline; docs/ranks.md says so
LONG = 400_000  # characters: no report is longer
_STACK = re.compile(r"^ranks? (\d+(?:, \d+)*):$", re.MULTILINE)
_RANKS = re.compile(r"\branks? (\d+(?:, \d+)*)")
PROPERTIES = ("in time", "guilty rank first", "right reason", "nothing left", "next test passes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What came of a case: for each property whether it holds, and None if it does not apply."""

    case: Case
    properties: dict[str, bool | None]
    text: str  # of the report, where a property does not hold
    error: str
    seconds: float
    left: list[str]
    said: str  # by the next test
    named: str  # who was named first

    @property
    def good(self) -> bool:
        return all(holds is not False for holds in self.properties.values())


def judged(case: Case, outcome: dict[str, Any] | None, left: list[str], said: str, acted: float | None) -> Verdict:
    """Judge a case; ``outcome`` is None if no report came."""
    kind = KINDS[case.kind]
    error, text = ("", "") if outcome is None else (outcome["error"], outcome["text"])
    seconds = float("inf") if outcome is None else outcome["seconds"]
    if case.way in {"pytest", "suite"} and outcome is not None and acted is not None:
        seconds = outcome["ended"] - acted
    first = first_named(error, outcome["rank"] if outcome else None, text)
    passes = _may_pass(case)
    blamed: bool | None = False
    reason: bool | None = False
    if outcome is not None and acted is not None and not error:
        blamed = reason = None if passes != "no" else False
    elif outcome is not None and acted is not None and passes != "must":
        blamed = _blamed(case, error, first, text)
        pattern = kind.reasons[case.ending] if case.ending else kind.reason
        reason = re.search(pattern, text) is not None and outcome["length"] < LONG
    properties = {
        "in time": seconds <= case.deadline + GRACE,
        "guilty rank first": blamed,
        "right reason": reason,
        "nothing left": not left,
        "next test passes": not said,
    }
    good = all(holds is not False for holds in properties.values())
    return Verdict(
        case=case,
        properties=properties,
        text="" if good else text[:3000],
        error=error or ("nothing was done" if acted is None else "no report" if outcome is None else ""),
        seconds=round(min(seconds, 999.0), 2),
        left=left,
        said=said[:2000],
        named="" if first is None else str(first),
    )


def _may_pass(case: Case) -> str:
    """Whether a case ends without an error: no, may or must."""
    kind = KINDS[case.kind]
    if case.phase == "after" and kind.blame != "nobody":
        return "must"
    if case.ending == "return" and kind.reasons["return"] == r"(?!)":
        return "must" if kind.passes == "no" else kind.passes
    if case.phase == "turns" and kind.reason.startswith("ran out of memory"):
        return "may"  # what does not fit is a row of a comparison
    if case.phase == "start" and case.ending == "raise":
        return "must"  # exceptions of a fork's hook are ignored
    return kind.passes


def first_named(error: str, rank: int | None, text: str) -> set[int] | None:
    """The ranks that a report names first; None if it blames nobody."""
    if not error or error in {"LaunchError", "Session"}:
        return None
    if error == "RankFailed":
        return None if rank is None else _numbers(_RANKS.search(text))
    if error == "RanksTimedOut":  # lines before say where all stand; the guilty rank's stack comes first
        return None if rank is None else _numbers(_STACK.search(text))
    return _numbers(_RANKS.search(text))


def _numbers(found: re.Match[str] | None) -> set[int] | None:
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
