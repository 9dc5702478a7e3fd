"""How what is left of a session's budget is dealt out to its benchmarks: numbers in, seconds out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from pytest_ddpperf.judge.sequential import Look
from pytest_ddpperf.judge.suspects import going_on, wants_launches
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import OPEN, Verdict

TIMES = 4.0
"""A suspect, or a blind benchmark, is given no more than so many times the seconds of its screening."""

CONFIRMED = 2.5
"""Times the launches that would just show a suspect to be worse if its estimate stayed: with them 19 of 20 are shown.

The critical value of a red verdict is about 2.9 standard errors: with ``(2.9 + 1.645)**2 / 2.9**2`` times the launches,
an estimate is beyond it in 95 %.
"""


ROOM = 1.1
"""Times what a diagnosis is expected to take: one that was dealt all but a moment of it is not made."""


class Aim(IntEnum):
    """What a benchmark needs more time for, the most urgent first."""

    CONFIRM = 1  # or clear a suspect
    SEE = 2  # rule out a slowdown beyond the resolution
    PROVE = 3  # show that nothing has changed
    DIAGNOSE = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """The seconds that a benchmark needs on top of its screening."""

    aim: Aim
    least: float = 0.0  # it takes them in any case
    wanted: float = math.inf  # more would be of no use
    decides: float = math.inf  # so many would decide it, of which ``wanted`` may be a part
    explains: float = 0.0  # for a diagnosis, proven or not


def dealt(pool: float, needs: Sequence[Need]) -> list[float]:
    """The seconds for each need: all have their least, then the more urgent aim comes first.

    Of the same aim, those that take least come first: suspects that look much worse, and what is nearest to a proof. A
    proof or a diagnosis that does not fit gets nothing: half of it would tell nothing. What may be proven is diagnosed
    last, proven or not.
    """
    shares = [need.least for need in needs]
    left = max(0.0, pool - math.fsum(shares))
    for i in sorted(range(len(needs)), key=lambda i: (needs[i].aim, needs[i].decides, needs[i].wanted)):
        missing = max(0.0, needs[i].wanted - needs[i].least)
        given = missing if missing <= left else left * (needs[i].aim < Aim.PROVE)
        shares[i] += given
        left -= given
    for i in sorted(range(len(needs)), key=lambda i: needs[i].explains):
        given = needs[i].explains * (needs[i].explains <= left)
        shares[i] += given
        left -= given
    return shares


def need_of(
    results: Sequence[Result], look: Look, made: int, diagnosis: float, *, screened: float | None = None
) -> Need:
    """What a benchmark needs after ``made`` launches.

    ``diagnosis``: seconds of a full one. ``screened``: those of the screening, where more launches followed it.
    """
    explains = ROOM * diagnosis
    apart = any(result.pair is None for result in results)
    fresh = min((len(result.measurement.fresh) for result in results if result.measurement.fresh_from), default=0)
    screening = look.elapsed if screened is None else screened
    most = max(0.0, TIMES * screening - (look.elapsed - screening))
    return _need_beside_reference(results, look, made, explains, counted=fresh if apart else made, most=most)


def _need_beside_reference(
    results: Sequence[Result], look: Look, made: int, explains: float, *, counted: int, most: float
) -> Need:
    """The same; ``counted`` of its launches count where a suspect is confirmed, and ``most`` seconds are given."""
    compared = [
        (result, comparison)
        for result in results
        for comparison in result.comparisons
        if comparison.gated and wants_launches(comparison)
    ]
    worse = [(result, each) for result, each in compared if each.suspicious or each.verdict is Verdict.REGRESSED]
    if worse:
        seconds = _round_seconds(results, look, worse)
        launched = max(_launches(result, made) for result, _ in worse)
        least = launched * seconds  # most look worse by chance, and need no diagnosis
        needed = min((CONFIRMED * each.enough for _, each in worse if each.enough), default=math.inf)
        fresh = max(0.0, needed - min(counted, launched)) * seconds
        return Need(aim=Aim.CONFIRM, least=least, wanted=max(least, min(most, fresh + explains)), decides=fresh)
    undecided = [
        (result, each) for result, each in compared if each.verdict in OPEN and not each.series.rules.alarm_only
    ]
    blind = [(result, each) for result, each in undecided if each.verdict is Verdict.INCONCLUSIVE]
    if blind:
        return Need(aim=Aim.SEE, wanted=min(most, 2 * max(0.0, _missing(results, look, made, blind))))
    if not undecided:
        return Need(aim=Aim.DIAGNOSE, wanted=explains)
    seconds, of_round = _missing(results, look, made, undecided), _round_seconds(results, look, undecided)
    proves = 0 < seconds < math.inf
    return Need(aim=Aim.PROVE, wanted=seconds + of_round / 2 if proves else 0.0, explains=explains)


def _missing(results: Sequence[Result], look: Look, made: int, which: Sequence[tuple[Result, Comparison]]) -> float:
    """The seconds of the launches that are still to be made to decide these metrics."""
    enough = [math.inf if each.enough is None else each.enough - _launches(result, made) for result, each in which]
    return math.inf if math.inf in enough else max(enough) * _round_seconds(results, look, which)


def _launches(result: Result, made: int) -> int:
    """The launches of a benchmark, which may have ended before others of its call, that have ``made``."""
    return min(made, len(result.measurement.launches) or made)


def _round_seconds(results: Sequence[Result], look: Look, which: Sequence[tuple[Result, Comparison]]) -> float:
    """The seconds of a round that launches what is launched on for the sake of these metrics."""
    metrics = {result.measurement.key: [metric for one, metric in which if one is result] for result in results}
    return look.seconds_of(going_on(results, metrics) if all(result.pair is not None for result in results) else None)
