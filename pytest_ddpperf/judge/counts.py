"""Counts held against a baseline's: compared exactly, and what of them no gate guards is named."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.judge.count_changes import FOLLOWS, change_of
from pytest_ddpperf.judge.decision import decide_compared_count
from pytest_ddpperf.metrics.counted import BY_KERNEL
from pytest_ddpperf.records.counts import Counts, quantity_texts
from pytest_ddpperf.records.measurement import Measurement, Series
from pytest_ddpperf.records.results import Comparison, PairedRevision, Reference
from pytest_ddpperf.records.verdict import Verdict


def compare_counted(series: Series, measurement: Measurement, reference: Reference) -> Comparison:
    """The judgement on a count: equal, more or something else (regressed), or less (improved), on whatever machine."""
    metric, then, now = series.metric, _counts_of(reference), measurement.counts
    differs = (*reference.counted_differs, *(reference.kernels_differ if metric in BY_KERNEL else ()))
    verdict = decide_compared_count(metric, then, now, differs=bool(differs))
    if then is None or now is None:
        return _new_count(series, now, verdict, "" if reference.record is None else f"{reference.words} has no counts")
    if metric not in then.totals:
        return _new_count(series, now, verdict, f"not in {reference.words}")
    change = change_of(metric, then, now)
    note, difference = change.note, ""
    if differs and change.gated:
        note, difference = f"the baseline is not comparable: {', '.join(differs)}", change.note
    return Comparison(
        series=series,
        baseline=then.totals[metric],
        change=series.value - then.totals[metric],
        tolerance=0.0,
        mde=0.0,
        verdict=verdict,
        gated=series.gated and change.gated,
        note=note,
        difference=difference,
    )


def count_findings(
    comparisons: Sequence[Comparison], measurement: Measurement, reference: Reference
) -> tuple[str, ...]:
    """What is to be said of the counts as a whole, beside the verdict on each."""
    return (
        *lost_counts(measurement, reference),
        *fewer_counts(comparisons, reference),
        *ungated_counts(comparisons, measurement, reference),
    )


def lost_counts(measurement: Measurement, reference: Reference) -> tuple[str, ...]:
    """A sentence where there are counts to hold others against, and this run has none."""
    if _counts_of(reference) is None or reference.counted_differs or measurement.counts is not None:
        return ()
    return (f"{reference.words} has counts, this run has none: no count is gated",)


def fewer_counts(comparisons: Sequence[Comparison], reference: Reference) -> tuple[str, ...]:
    """A sentence on each count that fell, and what to do: no noise explains it, so the baseline guards it no longer.

    Where something else became more, less may be part of the same fault (a forgotten autocast leaves out its casts), so
    nobody is told to renew the baseline.
    """
    fell = tuple(
        _fewer_text(one.series, one.baseline, one.note, reference.words)
        for one in comparisons
        if one.series.scale == "exact" and one.gated and one.verdict is Verdict.IMPROVED and one.baseline is not None
    )
    worse = any(one.gated and one.verdict is Verdict.REGRESSED for one in comparisons)
    if not fell or worse or isinstance(reference, PairedRevision):
        return fell
    return (*fell, "less is counted than in the baseline: if that is meant, --ddpperf-save renews it")


def ungated_counts(
    comparisons: Sequence[Comparison], measurement: Measurement, reference: Reference
) -> tuple[str, ...]:
    """A sentence on the counts that no gate guards, because steps differ in them now or did in the baseline."""
    then, now = _counts_of(reference), measurement.counts
    unstable_now = {} if now is None else now.unstable
    unstable_then = {} if then is None else then.unstable
    restless = {**unstable_now, **unstable_then}
    ungated = [
        one
        for one in comparisons
        if one.series.scale == "exact" and one.series.gated and not one.gated and one.series.metric in restless
    ]
    told = [
        f"{one.series.metric} ({_restless_text(one, unstable_now.get(one.series.metric), reference)})"
        for one in ungated
        if FOLLOWS.get(one.series.metric) not in restless  # told by that
    ]
    if not told:
        return ()
    steady_now = any(one.series.metric not in unstable_now for one in ungated)
    cure = "; --ddpperf-save renews the baseline" if steady_now and not isinstance(reference, PairedRevision) else ""
    return (f"not gated, for not all steps do the same: {', '.join(told)}{cure}",)


def _restless_text(one: Comparison, unstable: str | None, reference: Reference) -> str:
    """In what steps differ, and the most of both sides where this run's is more."""
    then = _counts_of(reference)
    if unstable is None:
        reason = f"in {reference.words} {then.unstable[one.series.metric]}" if then is not None else ""
    else:
        reason = unstable
    if one.baseline is None or one.series.value <= one.baseline:
        return reason
    before, after = quantity_texts(one.series.metric, [one.baseline, one.series.value])
    return f"{reason}; at most {after}, {before} in {reference.words}"


def _fewer_text(series: Series, baseline: float, note: str, base: str) -> str:
    if series.value == baseline:  # it fell in what it is made of
        return f"{series.metric}: {note}"
    then, now = quantity_texts(series.metric, [baseline, series.value])
    made_of = f": {note}" if note else ""
    return f"{series.metric} is {now} per step, {then} in {base}{made_of}"


def _counts_of(reference: Reference) -> Counts | None:
    return None if reference.counted is None else reference.counted.counts


def _new_count(series: Series, now: Counts | None, verdict: Verdict, note: str) -> Comparison:
    """A count without anything to compare with; one that is not the same in every step asks for nothing."""
    steady = now is None or series.metric not in now.unstable
    return Comparison(series=series, tolerance=0.0, verdict=verdict, gated=series.gated and steady, note=note)
