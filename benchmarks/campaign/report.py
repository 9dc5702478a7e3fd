"""The table of a campaign."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from statistics import median

from benchmarks.campaign.kinds import KINDS
from benchmarks.campaign.verdicts import Verdict

GOALS = {"in time": 1.0, "guilty rank first": 0.99, "right reason": 0.98, "nothing left": 1.0, "next test passes": 1.0}


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
