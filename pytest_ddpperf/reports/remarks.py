"""Remarks on a verdict, below the summary: what it rests on, and what got better beside it."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import words_of_note
from pytest_ddpperf.reports.phrases import (
    comparison_text,
    decisive,
    incomparable_changes,
    names_by_remark,
    note_text,
    short_text,
    tolerance_text,
)

_OPEN = (Verdict.INCONCLUSIVE, Verdict.INCOMPATIBLE)
_METRICS = 3  # with the same remark, that are named


def verdict_remarks(result: Result) -> list[str]:
    """What a row's verdict rests on, and what got better beside it, where the row itself does not show it."""
    return [*_grounds(result), *_stale(result), *_promises(result), *_ours_alone(result)]


def _ours_alone(result: Result) -> list[str]:
    """Metrics that the other revision does not have, although it ran."""
    ran = result.paired is not None and not result.paired.lacking
    return _named_notes(decisive(result, {Verdict.NEW})) if ran else []


def _gains(result: Result) -> list[str]:
    """That the baseline is stale; beside another revision what improved, and what is undecided with it."""
    if result.paired is None:
        timed = any(comparison.series.scale != "exact" for comparison in result.comparisons)  # counts are findings
        stale = "better than its baseline by more than the tolerance: the baseline is stale, --ddpperf-save renews it"
        return [stale] if timed else []
    better = [
        # What became of counts is told by findings.
        comparison.series.metric if comparison.series.scale == "exact" else short_text(comparison)
        for comparison in decisive(result, {Verdict.IMPROVED})
        if comparison.series.metric != "step_time"
    ]
    undecided = map(_remark, decisive(result, {Verdict.INCONCLUSIVE}))
    return [*([f"improved: {'; '.join(better)}"] if better else []), *undecided]


def _promises(result: Result) -> list[str]:
    """What is shown to be no worse, and looks better."""
    return [
        f"{short_text(comparison)} {note}"
        for comparison in decisive(result, {Verdict.UNCHANGED})
        # The note of what stands in for another metric is no promise.
        if result.verdict is Verdict.UNCHANGED or not comparison.series.rules.stands_in
        if (note := note_text(comparison))
    ]


def _stale(result: Result) -> list[str]:
    """Metrics that got better, where others keep the result from being called improved."""
    # To save what has regressed elsewhere would store the regression.
    if result.paired is not None or result.verdict in {Verdict.IMPROVED, Verdict.REGRESSED} or result.differs:
        return []
    better = [
        short_text(comparison)
        for comparison in decisive(result, {Verdict.IMPROVED})
        if comparison.series.scale != "exact"  # counts are findings
    ]
    return [f"{'; '.join(better)}: the baseline is stale, --ddpperf-save renews it"] if better else []


def _grounds(result: Result) -> list[str]:
    """What the row's verdict rests on."""
    if result.verdict is Verdict.NEW:
        return _new_remarks(result)
    if result.verdict is Verdict.IMPROVED:
        return _gains(result)
    if result.verdict is Verdict.INCOMPATIBLE and result.differs:
        return [f"the baseline is not comparable: {', '.join(result.differs)}", *incomparable_changes(result)]
    telling = decisive(result, {result.verdict})
    if result.verdict is Verdict.REGRESSED:  # told in full where the test failed
        others = [short_text(comparison) for comparison in telling if comparison.series.metric != "step_time"]
        return [f"regressed{' too' * (len(others) < len(telling))}: {'; '.join(others)}"] if others else []
    if result.verdict not in _OPEN:
        return []
    return [_remark(comparison) for comparison in telling if comparison.series.metric != "step_time" or comparison.note]


def _new_remarks(result: Result) -> list[str]:
    if result.baseline is not None:
        return _named_notes(decisive(result, {Verdict.NEW}))
    return ["no baseline; --ddpperf-save stores one"] if result.paired is None else []


def _named_notes(comparisons: Sequence[Comparison]) -> list[str]:
    """Each note once, with the metrics that it is of."""
    metrics = names_by_remark((comparison.series.metric, words_of_note(comparison.note)) for comparison in comparisons)
    return [f"{_named(names)}: {note}" for note, names in metrics.items() if note]


def _named(metrics: Sequence[str]) -> str:
    more = len(metrics) - _METRICS
    return ", ".join(metrics) if more <= 0 else f"{', '.join(metrics[:_METRICS])} and {more} more"


def _remark(comparison: Comparison) -> str:
    """A metric that decided the verdict; of the step time only what its row does not show."""
    if comparison.series.metric == "step_time":
        return f"step_time {comparison.verdict.value}, {tolerance_text(comparison)}: {words_of_note(comparison.note)}"
    return "; ".join(filter(None, (comparison_text(comparison), note_text(comparison))))
