"""The table of a campaign."""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from benchmarks.campaign.kinds import ANY_MOMENT, KINDS
from benchmarks.campaign.verdicts import GRACE, PROPERTIES, Verdict

GOALS = {"in time": 1.0, "guilty rank first": 0.99, "right reason": 0.98, "nothing left": 1.0, "next test passes": 1.0}


def line(verdict: Verdict) -> str:
    """One case in a line."""
    case = verdict.case
    failed = ", ".join(name for name, holds in verdict.properties.items() if holds is False)
    end = f" then {case.ending}" if case.ending else ""
    return (
        f"{case.number:4} {case.kind}{end}, {case.phase}, rank {case.rank} of {case.world_size}, {case.way}, "
        f"{case.timeout:g} s: {verdict.seconds:.1f} s {verdict.error or 'passed'}{f'; NOT {failed}' if failed else ''}"
    )


def printed(verdicts: Sequence[Verdict]) -> Iterable[str]:
    """The lines of the report."""
    seeds = sorted({verdict.case.seed for verdict in verdicts})
    kinds = {verdict.case.kind for verdict in verdicts}
    pairs = {(verdict.case.kind, verdict.case.phase) for verdict in verdicts}
    yield f"{len(verdicts)} random faults, seed {', '.join(map(str, seeds))}, Python {platform.python_version()}"
    yield (
        f"{len(kinds)} kinds of {len(KINDS)}, {len(pairs)} pairs of kind and phase, "
        f"{len({verdict.case.phase for verdict in verdicts})} phases, "
        f"{_span(verdict.case.world_size for verdict in verdicts)} ranks, deadlines of "
        f"{_span(verdict.case.timeout for verdict in verdicts)} s"
    )
    ways: dict[str, int] = defaultdict(int)
    for verdict in verdicts:
        ways[verdict.case.way] += 1
    yield ", ".join(f"{number} by {way}" for way, number in sorted(ways.items()))
    yield ""
    for name in PROPERTIES:
        known = [verdict.properties[name] for verdict in verdicts if verdict.properties[name] is not None]
        good = sum(map(bool, known))
        met = "met" if good >= GOALS[name] * len(known) else "NOT MET"
        share = 100 * good / max(1, len(known))
        yield f"  {name:<20} {good:4} of {len(known):4}  {share:6.2f} %  goal {GOALS[name]:.0%}: {met}"
    yield from _numbers(verdicts)
    bad = [verdict for verdict in verdicts if not verdict.good]
    yield ""
    yield f"{len(bad)} cases that do not hold"
    for verdict in bad:
        case = verdict.case
        yield f"  {line(verdict).strip()}"
        verb = "suites" if case.way == "suite" else "run"
        yield f"        repeat: python benchmarks/faults.py {verb} --seed {case.seed} --case {case.number}"
        for what in verdict.left:
            yield f"        left: {what}"
        if verdict.said:
            yield f"        next test: {verdict.said.splitlines()[0]}"
        if verdict.text:
            yield f"        report: {verdict.text.splitlines()[0][:200]}"
    yield ""
    yield "kind: cases that hold of all"
    by_kind: dict[str, list[bool]] = defaultdict(list)
    for verdict in verdicts:
        by_kind[verdict.case.kind].append(verdict.good)
    for name in sorted(by_kind):
        yield f"  {name:<44} {sum(by_kind[name])} of {len(by_kind[name])}"


def _span(values: Iterable[float]) -> str:
    least, most = min(found := list(values)), max(found)
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"


def _numbers(verdicts: Sequence[Verdict]) -> Iterable[str]:
    untold = sum(verdict.properties["guilty rank first"] is None and bool(verdict.error) for verdict in verdicts)
    passed = sum(not verdict.error for verdict in verdicts)
    yield f"  {untold} reports name nobody where nobody can tell, and {passed} launches went well in spite of the fault"
    soon = [verdict.seconds for verdict in verdicts if verdict.error == "RankFailed" and verdict.case.way == "launcher"]
    late = [verdict.seconds - verdict.case.deadline for verdict in verdicts if verdict.error == "RanksTimedOut"]
    ends = [verdict.seconds for verdict in verdicts if verdict.case.phase == ANY_MOMENT and verdict.seconds > 0]
    if ends:
        yield f"  end of a session {median(ends):.2f} s after a signal to it (median), {max(ends):.2f} s (most)"
    if soon:
        yield f"  report of a failed rank after {median(soon):.2f} s (median), {max(soon):.2f} s (most)"
    if late:
        yield f"  report of a deadline {median(late):.2f} s after it (median), {max(late):.2f} s (most), goal {GRACE:g}"
