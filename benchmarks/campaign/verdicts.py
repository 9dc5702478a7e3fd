"""Judges whether a report is as it must be, which follows from the case alone; the table of a campaign."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.campaign.kinds import KINDS, NEVER, Case

GRACE = 5.0  # seconds after the deadline; docs/ranks.md says so
LONG = 400_000  # characters: no report is longer
GOALS = {"in time": 1.0, "guilty rank first": 0.99, "right reason": 0.98, "nothing left": 1.0, "next test passes": 1.0}
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


def line(verdict: Verdict) -> str:
    """Returns one case in a line."""
    case = verdict.case
    failed = ", ".join(name for name, holds in verdict.properties.items() if holds is False)
    end = f" then {case.ending}" if case.ending else ""
    return (
        f"{case.number:4} {case.kind}{end}, {case.phase}, rank {case.rank} of {case.world_size}, {case.way}, "
        f"{case.timeout:g} s: {verdict.seconds:.1f} s {verdict.error or 'passed'}{f'; NOT {failed}' if failed else ''}"
    )


def printed(verdicts: Sequence[Verdict]) -> Iterable[str]:
    """Yields the lines of the report."""
    cases = [verdict.case for verdict in verdicts]
    pairs = {(case.kind, case.phase) for case in cases}
    yield f"{len(cases)} random faults, seed {_all(case.seed for case in cases)}, Python {platform.python_version()}"
    yield (
        f"{len({case.kind for case in cases})} kinds of {len(KINDS)}, {len(pairs)} pairs of kind and phase, "
        f"{len({case.phase for case in cases})} phases, {_all(case.world_size for case in cases)} ranks, "
        f"deadlines of {_all(case.timeout for case in cases)} s"
    )
    yield ""
    for name, goal in GOALS.items():
        known = [verdict.properties[name] for verdict in verdicts if verdict.properties[name] is not None]
        good = sum(map(bool, known))
        met = "met" if good >= goal * len(known) else "NOT MET"
        share = 100 * good / max(1, len(known))
        yield f"  {name:<20} {good:4} of {len(known):4}  {share:6.2f} %  goal {goal:.0%}: {met}"
    untold = sum(verdict.properties["guilty rank first"] is None and bool(verdict.error) for verdict in verdicts)
    passed = sum(not verdict.error for verdict in verdicts)
    yield f"  {untold} reports name nobody where nobody can tell, and {passed} launches went well in spite of the fault"
    for error, what, begin in (("RankFailed", "a failed rank", 0), ("RanksTimedOut", "a deadline, after it", 1)):
        late = [each.seconds - begin * each.case.deadline for each in verdicts if each.error == error]
        if late:
            yield f"  report of {what}: {median(late):.2f} s (median), {max(late):.2f} s (most)"
    bad = [verdict for verdict in verdicts if not verdict.good]
    yield f"\n{len(bad)} cases that do not hold"
    for verdict in bad:
        case, verb = verdict.case, "sessions" if verdict.case.way == "session" else "run"
        yield f"  {line(verdict).strip()}"
        yield f"        repeat: python benchmarks/faults.py {verb} --seed {case.seed} --case {case.number}"
        for title, text in (("left", "; ".join(verdict.left)), ("next test", verdict.said), ("report", verdict.text)):
            if text:
                yield f"        {title}: {text.splitlines()[0][:200]}"


def _all(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in sorted(set(values)))
