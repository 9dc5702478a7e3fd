"""What became of a count: more, less, or as much of something else. No noise explains a difference. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_ddpperf.records.counts import MADE_UP, Counts, difference_text, on_ranks, parts_on_ranks
from pytest_ddpperf.records.verdict import Verdict

FOLLOWS = {"collective_send_bytes": "collective_bytes"}
"""Counts that move with another, but not with it alone: on the size of a group it depends what its ranks send."""


@dataclass(frozen=True)
class CountChange:
    """What became of a count.

    Attributes:
        verdict: as of ``verdict_of``.
        gated: whether the verdict counts: not where the steps of a run differ in it and that is nothing new or worse,
            nor where it follows another count that changed in the same direction.
        note: what the change is made of, or why it is not gated; empty where nothing changed.
    """

    verdict: Verdict
    gated: bool
    note: str


def change_of(metric: str, then: Counts, now: Counts) -> CountChange:
    """What became of a count that both have.

    Of steps that differ the largest is compared. What is steady on one side, now or then, and more now is a regression
    like any other: else a gate could be opened by doing more in every second step, and by saving such a run once. Where
    steps differ on both sides, so may two runs of one code.
    """
    verdict = verdict_of(metric, then, now)
    unstable, unstable_then = now.unstable.get(metric), then.unstable.get(metric)
    worse = verdict is Verdict.REGRESSED
    if (unstable and unstable_then) or ((unstable or unstable_then) and not worse):
        reason = unstable or unstable_then
        return CountChange(verdict, gated=False, note=f"not the same in every step, so not compared exactly: {reason}")
    lines = [] if verdict is Verdict.UNCHANGED else difference_text(metric, then, now)
    if unstable:
        lines.append(f"no longer the same in every step: {unstable}")
    if unstable_then:
        lines.append(f"it was not the same in every step: {unstable_then}")
    return CountChange(verdict, gated=not _follows(metric, verdict, then, now), note="; ".join(lines))


def _follows(metric: str, verdict: Verdict, then: Counts, now: Counts) -> bool:
    """Whether the change of another count says already what this one's does."""
    leader = FOLLOWS.get(metric)
    if leader is None or verdict is Verdict.UNCHANGED or leader not in then.totals or leader not in now.totals:
        return False
    return verdict_of(leader, then, now) in {Verdict.REGRESSED, verdict}


def verdict_of(metric: str, then: Counts, now: Counts) -> Verdict:
    """``regressed`` for more on any rank, and for as much of something else; ``improved`` for less; else ``unchanged``.

    Args:
        metric: one that both have.
        then: of the baseline.
        now: of this run.
    """
    totals = _direction([(then.totals[metric], now.totals[metric]), *on_ranks(metric, then, now)])
    if totals is not Verdict.UNCHANGED or metric not in MADE_UP:
        return totals
    before, after = then.details.get(metric, {}), now.details.get(metric, {})
    parts = [(before.get(name, 0.0), after.get(name, 0.0)) for name in {**before, **after}]
    on_others = [pair for pairs in parts_on_ranks(metric, then, now).values() for pair in pairs]
    return _direction([*parts, *on_others])


def _direction(pairs: Iterable[tuple[float, float]]) -> Verdict:
    """Whether any became more; if none did, whether any became less."""
    differences = [after - before for before, after in pairs]
    if max(differences, default=0.0) > 0:
        return Verdict.REGRESSED
    return Verdict.IMPROVED if min(differences, default=0.0) < 0 else Verdict.UNCHANGED
