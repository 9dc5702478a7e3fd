"""The reasons why a benchmark fails its test: the metrics that fail, and why they became worse."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Sequence

from pytest_ddpperf.metrics.communication import EXPOSED
from pytest_ddpperf.records.counts import count_row
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.phases import PHASES
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.sites import CHECKPOINT
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports import phrases
from pytest_ddpperf.reports.findings import broken_reason, finding_text
from pytest_ddpperf.reports.setup_changes import setup_changes
from pytest_ddpperf.units import format_count

_GAINS = 3  # counts that are named
# The metrics that take a step apart, in words. Exposed communication is inside the phases.
PARTS = {EXPOSED: "exposed communication", **{f"phase_{phase}": phase.replace("_", " ") for phase in PHASES}}
EXPLAINING = frozenset({"not_the_code", "rare_long_steps"})  # notes on a change that say where it comes from


def general_cause(result: Result, verdict: Verdict) -> str:
    """Returns the reason why the benchmark fails as a whole, such as a crash; empty if only metrics fail."""
    if verdict is Verdict.BROKEN or result.measurement.unfit:
        return broken_reason(result)
    if verdict is Verdict.NEW and result.baseline is None:
        return result.reference.origin
    lost = [finding_text(finding) for finding in result.findings if finding.code == "lost_metric"]
    if verdict is Verdict.INCOMPATIBLE and lost and not phrases.decisive(result, {Verdict.INCOMPATIBLE}):
        return lost[0]
    if verdict is Verdict.INCOMPATIBLE and result.reference.differs:
        return f"the baseline is not comparable: {', '.join(result.reference.differs)}"
    return ""


def grounds(result: Result, verdict: Verdict, failing: Collection[Verdict]) -> tuple[list[str], tuple[Comparison, ...]]:
    """Returns lines, if the whole benchmark fails, as in a crash; and failing metrics, the worst one first."""
    general = general_cause(result, verdict)
    if general:
        unfit = phrases.decisive(result, {Verdict.REGRESSED}) if result.measurement.unfit else ()
        return [general, *phrases.incomparable_changes(result)], unfit
    heads = phrases.decisive(result, {verdict, *failing})
    return [], tuple(sorted(heads, key=lambda head: -head.verdict.severity))


def causes(result: Result, heads: Sequence[Comparison]) -> list[str]:
    """Returns the probable causes of failing metrics, the likeliest first, such as changed lines or slower phases."""
    metrics = {head.series.metric for head in heads}
    counts = [head for head in heads if head.series.scale == "exact"]
    if counts:
        said = {"collective_bytes"} if "collective_calls" in metrics else set()
        # A count that is only a symptom of other counts is a cause only if no other count changed.
        leading = [c for c in counts if not count_row(c.series.metric).symptom and c.series.metric not in said]
        noted = [c.note for c in counts if c not in (leading or counts) and c.note and c.note.code == "count_changed"]
        lost = [text for note in noted for text in setup_changes(**note.facts) if text.startswith(CHECKPOINT)]
        return [*lost, *map(_count_text, leading or counts)]
    skew, timed = phrases.find(result, "straggler_skew"), "step_time" in metrics
    codes = {"long_steps"} | ({"memory_growth"} & metrics)
    told = [finding_text(each) for each in phrases.every_finding(result) if each.code in codes]
    told += [_slowest(result.measurement)] if skew is not None and skew.verdict is Verdict.REGRESSED else []
    told += [parts] if timed and (parts := parts_text(result)) else []
    told += [finding_text(head.note) for head in heads if head.note is not None and head.note.code in EXPLAINING]
    told += [phrases.open_text(head) for head in heads if head.verdict is not Verdict.REGRESSED]
    unsure = {each.code for each in phrases.every_finding(result)} & {"unsure_counts", "ungated_counts"}
    same = phrases.counts_text(result, brief=True) == "same" and not unsure
    return told or [f"not known{': by its counts a step does the same as before' if same else ''}"]


def _count_text(count: Comparison) -> str:
    name = "" if count.note or count.difference else f"{count.series.metric} "
    return f"{name}{phrases.count_text(count)}"


def gains(result: Result, heads: Sequence[Comparison]) -> list[str]:
    """Returns lines on improved counts if a count among the failing metrics ``heads`` regressed, else an empty list."""
    if not any(head.series.scale == "exact" and head.verdict is Verdict.REGRESSED for head in heads):
        return []
    improved = [each for each in phrases.decisive(result, {Verdict.IMPROVED}) if each not in heads]
    better = [each for each in improved if each.series.scale == "exact" and each.change]
    better.sort(key=lambda c: -abs(c.change or 0.0) / max(c.baseline or 0.0, c.series.value))
    short = ", ".join(map(phrases.short_text, better[:_GAINS]))
    return [f"in exchange: {short}", *(finding_text(each.note) for each in better[:1] if each.note)] if better else []


def reason_text(result: Result, verdict: Verdict, failing: Collection[Verdict]) -> str:
    """Returns why a test fails: a line for each failing metric, or one line if the whole benchmark fails."""
    general, heads = grounds(result, verdict, failing)
    return f"{verdict.value}: " * bool(general) + "\n".join(general or map(phrases.change_line, heads))


def parts_text(result: Result) -> str:
    """Returns a text on phases whose time changed significantly, in the same direction as the step time."""
    step = phrases.find(result, "step_time")
    if step is None or step.baseline is None or step.change is None:
        return ""
    limit = step.tolerance * step.baseline
    found = [(part, words) for metric, words in PARTS.items() if (part := phrases.find(result, metric)) is not None]
    moved = [
        (part.change, f"{words} {phrases.change_text(part)}")
        for part, words in found
        if part.change is not None and (interval := part.change_interval) is not None
        if part.change * step.change > 0 and abs(part.change) > limit and not interval.low <= 0 <= interval.high
    ]
    return "; ".join(text for _, text in sorted(moved, key=lambda one: -abs(one[0])))


def _slowest(measurement: Measurement) -> str:
    slowest = Counter(
        max(launch.ranks, key=lambda rank: statistics.median(rank.step_times)).rank for launch in measurement.launches
    )
    if not slowest:
        return "step times of ranks differ more than before; the slowest rank is unknown"
    rank, times = slowest.most_common(1)[0]
    return f"rank {rank} was the slowest in {times} of {format_count(len(measurement.launches), 'launch')}"
