"""What became of a count: more, less, or as much of something else. No noise explains a difference. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ddpperf.judge.decision import decide_count
from pytest_ddpperf.records.counts import Counts, count_row, difference_text
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.verdict import Verdict


@dataclass(frozen=True)
class CountChange:
    """What became of a count.

    Attributes:
        gated: whether the verdict counts: not where the steps of a run differ in it and that is nothing new or worse,
            nor where it follows another count that changed in the same direction.
        note: what the change is made of, or why it is not gated; None where nothing changed.
    """

    gated: bool
    note: Finding | None


def change_of(metric: str, then: Counts, now: Counts) -> CountChange:
    """What became of a count that both have.

    Of steps that differ the largest is compared. What is steady on one side, now or then, and more now is a regression
    like any other: else a gate could be opened by doing more in every second step, and by saving such a run once. Where
    steps differ on both sides, so may two runs of one code.
    """
    verdict = decide_count(metric, then, now)
    unstable, unstable_then = now.unstable.get(metric), then.unstable.get(metric)
    worse = verdict is Verdict.REGRESSED
    if (unstable and unstable_then) or ((unstable or unstable_then) and not worse):
        reason = unstable or unstable_then
        return CountChange(gated=False, note=Finding("unsteady_count", {"reason": reason}))
    parts = () if verdict is Verdict.UNCHANGED else tuple(difference_text(metric, then, now))
    now_text, then_text = unstable or "", unstable_then or ""
    note = None
    if parts or now_text or then_text:
        note = Finding("count_changed", {"parts": parts, "unsteady_now": now_text, "unsteady_then": then_text})
    return CountChange(gated=not _follows(metric, verdict, then, now), note=note)


def _follows(metric: str, verdict: Verdict, then: Counts, now: Counts) -> bool:
    """Whether the change of another count says already what this one's does."""
    leader = count_row(metric).follows
    if not leader or verdict is Verdict.UNCHANGED or leader not in then.totals or leader not in now.totals:
        return False
    return decide_count(leader, then, now) in {Verdict.REGRESSED, verdict}
