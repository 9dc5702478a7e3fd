"""Counts held against a baseline's: compared exactly, and what of them no gate guards is named."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.judge.count_changes import FOLLOWS, change_of
from pytest_ddpperf.metrics.counted import BY_KERNEL
from pytest_ddpperf.records.counts import Counts, quantity_texts
from pytest_ddpperf.records.measurement import Measurement, Series
from pytest_ddpperf.records.results import Comparison, Found
from pytest_ddpperf.records.verdict import Verdict


def compare_counted(series: Series, measurement: Measurement, found: Found) -> Comparison:
    """The judgement on a count: equal, more or something else (regressed), or less (improved), on whatever machine."""
    then, now = _counts_of(found), measurement.counts
    if then is None or now is None:
        return _new_count(series, now, "" if found.record is None else f"{found.base_words} has no counts")
    if series.metric not in then.totals:
        return _new_count(series, now, f"not in {found.base_words}")
    value = then.totals[series.metric]
    became = change_of(series.metric, then, now)
    verdict, note, difference = became.verdict, became.note, ""
    differs = (*found.counted_differs, *(found.kernels_differ if series.metric in BY_KERNEL else ()))
    if differs:
        verdict = Verdict.INCOMPATIBLE
        if became.gated:
            note, difference = f"the baseline is not comparable: {', '.join(differs)}", became.note
    return Comparison(
        series=series,
        baseline=value,
        change=series.value - value,
        change_interval=None,
        tolerance=0.0,
        mde=0.0,
        verdict=verdict,
        gated=series.gated and became.gated,
        note=note,
        difference=difference,
    )


def count_findings(comparisons: Sequence[Comparison], measurement: Measurement, found: Found) -> tuple[str, ...]:
    """What is to be said of the counts as a whole, beside the verdict on each."""
    return (
        *lost_counts(measurement, found),
        *fewer_counts(comparisons, found),
        *ungated_counts(comparisons, measurement, found),
    )


def lost_counts(measurement: Measurement, found: Found) -> tuple[str, ...]:
    """A sentence where there are counts to hold others against, and this run has none."""
    if _counts_of(found) is None or found.counted_differs or measurement.counts is not None:
        return ()
    return (f"{found.base_words} has counts, this run has none: no count is gated",)


def fewer_counts(comparisons: Sequence[Comparison], found: Found) -> tuple[str, ...]:
    """A sentence on each count that fell, and what to do: no noise explains it, so the baseline guards it no longer.

    Where something else became more, less may be part of the same fault (a forgotten autocast leaves out its casts), so
    nobody is told to renew the baseline.
    """
    fell = tuple(
        _fewer_text(one.series, one.baseline, one.note, found.base_words)
        for one in comparisons
        if one.series.scale == "exact" and one.gated and one.verdict is Verdict.IMPROVED and one.baseline is not None
    )
    worse = any(one.gated and one.verdict is Verdict.REGRESSED for one in comparisons)
    if not fell or worse or found.counterpart is not None:
        return fell
    return (*fell, "less is counted than in the baseline: if that is meant, --ddpperf-save renews it")


def ungated_counts(comparisons: Sequence[Comparison], measurement: Measurement, found: Found) -> tuple[str, ...]:
    """A sentence on the counts that no gate guards, because steps differ in them now or did in the baseline."""
    then, now = _counts_of(found), measurement.counts
    unstable_now = {} if now is None else now.unstable
    unstable_then = {} if then is None else then.unstable
    restless = {**unstable_now, **unstable_then}
    ungated = [
        one
        for one in comparisons
        if one.series.scale == "exact" and one.series.gated and not one.gated and one.series.metric in restless
    ]
    told = [
        f"{one.series.metric} ({_restless_text(one, unstable_now.get(one.series.metric), found)})"
        for one in ungated
        if FOLLOWS.get(one.series.metric) not in restless  # told by that
    ]
    if not told:
        return ()
    steady_now = any(one.series.metric not in unstable_now for one in ungated)
    cure = "; --ddpperf-save renews the baseline" if steady_now and found.counterpart is None else ""
    return (f"not gated, for not all steps do the same: {', '.join(told)}{cure}",)


def _restless_text(one: Comparison, unstable: str | None, found: Found) -> str:
    """In what steps differ, and the most of both sides where this run's is more."""
    then = _counts_of(found)
    if unstable is None:
        reason = f"in {found.base_words} {then.unstable[one.series.metric]}" if then is not None else ""
    else:
        reason = unstable
    if one.baseline is None or one.series.value <= one.baseline:
        return reason
    before, after = quantity_texts(one.series.metric, [one.baseline, one.series.value])
    return f"{reason}; at most {after}, {before} in {found.base_words}"


def _fewer_text(series: Series, baseline: float, note: str, base: str) -> str:
    if series.value == baseline:  # it fell in what it is made of
        return f"{series.metric}: {note}"
    then, now = quantity_texts(series.metric, [baseline, series.value])
    made_of = f": {note}" if note else ""
    return f"{series.metric} is {now} per step, {then} in {base}{made_of}"


def _counts_of(found: Found) -> Counts | None:
    return None if found.counted is None else found.counted.counts


def _new_count(series: Series, now: Counts | None, note: str) -> Comparison:
    """A count without anything to compare with; one that is not the same in every step asks for nothing."""
    steady = now is None or series.metric not in now.unstable
    gated = series.gated and steady
    return Comparison(
        series=series,
        baseline=None,
        change=None,
        change_interval=None,
        tolerance=0.0,
        mde=None,
        verdict=Verdict.NEW,
        gated=gated,
        note=note,
    )
