"""How what is left of a session's budget is dealt out to its benchmarks: numbers in, seconds out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from pytest_ddpperf.judge.sequential import MIN_LAUNCHES, Look
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import OPEN, Verdict

TIMES = 8.0
"""A benchmark is given so many times the seconds of its screening, where nothing tells how many it needs."""


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
    settles: bool = False  # whether it is going to be measured beside the commit of its baselines


def dealt(pool: float, needs: Sequence[Need]) -> list[float]:
    """The seconds for each need: all have their least, then the more urgent aim comes first.

    Suspects share alike, and so do the blind. Of proofs and diagnoses those that take least come first, and one that
    does not fit gets nothing: half of it would tell nothing.
    """
    shares = [need.least for need in needs]
    left = max(0.0, pool - math.fsum(shares))
    for aim in Aim:
        of_aim = sorted((i for i, need in enumerate(needs) if need.aim is aim), key=lambda i: needs[i].wanted)
        for served, i in enumerate(of_aim):
            missing = max(0.0, needs[i].wanted - needs[i].least)
            given = min(missing, left / (len(of_aim) - served))
            if aim >= Aim.PROVE:
                given = missing if missing <= left else 0.0
            shares[i] += given
            left -= given
    return shares


def need_of(results: Sequence[Result], look: Look, made: int, diagnosis: float, *, settles: bool = False) -> Need:
    """What a benchmark needs after its screening of ``made`` launches; ``diagnosis``: seconds of a full one."""
    need = _need_beside_reference(results, look, made, diagnosis)
    if not settles:
        return need
    # A launch ends the screening beside the baseline; then both sides are screened, confirmed and diagnosed in full.
    least = look.round_seconds + 2 * (2 * MIN_LAUNCHES * look.round_seconds + diagnosis)
    return replace(need, least=least, wanted=max(least, need.wanted), settles=True)


def _need_beside_reference(results: Sequence[Result], look: Look, made: int, diagnosis: float) -> Need:
    compared = [
        comparison
        for result in results
        for comparison in result.comparisons
        if comparison.gated and comparison.series.scale != "exact"
    ]
    verdicts = {comparison.verdict for comparison in compared}
    if any(comparison.suspicious for comparison in compared) or Verdict.REGRESSED in verdicts:
        least = made * look.round_seconds + max(diagnosis, look.round_seconds)
        return Need(aim=Aim.CONFIRM, least=least, wanted=max(least, TIMES * look.elapsed))
    least = look.round_seconds  # whatever the verdict, one more launch tells whether memory grows
    if not verdicts & OPEN:
        return Need(aim=Aim.DIAGNOSE, least=least, wanted=max(least, diagnosis))
    needed = [*_needed([comparison for comparison in compared if comparison.verdict in OPEN])]
    seconds = math.inf if None in needed else max(n - made for n in needed if n is not None) * look.round_seconds
    if Verdict.INCONCLUSIVE in verdicts:
        return Need(aim=Aim.SEE, least=least, wanted=least + min(TIMES * look.elapsed, 2 * max(seconds, 0.0)))
    return Need(aim=Aim.PROVE, least=least, wanted=least + max(seconds, 0.0) if seconds < math.inf else least)


def _needed(comparisons: Sequence[Comparison]) -> Iterator[int | None]:
    """The launches that would decide each metric; None where no number is known to."""
    for comparison in comparisons:
        note = comparison.note
        yield note.facts.get("launches") if note is not None and note.code == "launches_needed" else None
