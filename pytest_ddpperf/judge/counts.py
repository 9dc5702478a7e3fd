"""Counts held against a baseline's: compared exactly, and what of them no gate guards is named."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.judge.count_changes import change_of
from pytest_ddpperf.judge.decision import decide_compared_count
from pytest_ddpperf.records.counts import Counts, count_row
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Measurement, Series
from pytest_ddpperf.records.results import Comparison, PairedRevision, Reference
from pytest_ddpperf.records.verdict import Verdict


def compare_counted(series: Series, measurement: Measurement, reference: Reference) -> Comparison:
    """The judgement on a count: equal, more or something else (regressed), or less (improved), on whatever machine."""
    metric, then, now = series.metric, _counts_of(reference), measurement.counts
    differs = (*reference.counted_differs, *(reference.kernels_differ if count_row(metric).by_kernel else ()))
    verdict = decide_compared_count(metric, then, now, differs=bool(differs))
    missing = Finding("no_counts_in_reference", {"reference": reference.words})
    if then is None or now is None:
        return _new_count(series, now, verdict, None if reference.record is None else missing)
    if metric not in then.totals:
        return _new_count(series, now, verdict, Finding("not_in_reference", {"reference": reference.words}))
    change = change_of(metric, then, now)
    note, difference = change.note, None
    if differs and change.gated:
        note, difference = Finding("incomparable", {"differs": differs}), change.note
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
) -> tuple[Finding, ...]:
    """What is to be said of the counts as a whole, beside the verdict on each."""
    return (
        *lost_counts(measurement, reference),
        *fewer_counts(comparisons, reference),
        *ungated_counts(comparisons, measurement, reference),
    )


def lost_counts(measurement: Measurement, reference: Reference) -> tuple[Finding, ...]:
    """Where there are counts to hold others against, and this run has none."""
    if _counts_of(reference) is None or reference.counted_differs or measurement.counts is not None:
        return ()
    return (Finding("lost_counts", {"reference": reference.words}),)


def fewer_counts(comparisons: Sequence[Comparison], reference: Reference) -> tuple[Finding, ...]:
    """Each count that fell, and what to do: no noise explains it, so the baseline guards it no longer.

    Where something else became more, less may be part of the same fault (a forgotten autocast leaves out its casts), so
    nobody is told to renew the baseline.
    """
    fell = tuple(
        _fewer(one, one.baseline, reference)
        for one in comparisons
        if one.series.scale == "exact" and one.gated and one.verdict is Verdict.IMPROVED and one.baseline is not None
    )
    worse = any(one.gated and one.verdict is Verdict.REGRESSED for one in comparisons)
    if not fell or worse or isinstance(reference, PairedRevision):
        return fell
    return (*fell, Finding("fewer_than_baseline"))


def ungated_counts(
    comparisons: Sequence[Comparison], measurement: Measurement, reference: Reference
) -> tuple[Finding, ...]:
    """The counts that no gate guards, because steps differ in them now or did in the baseline."""
    then, now = _counts_of(reference), measurement.counts
    unstable_now = {} if now is None else now.unstable
    unstable_then = {} if then is None else then.unstable
    restless = {**unstable_now, **unstable_then}
    ungated = [
        one
        for one in comparisons
        if one.series.scale == "exact" and one.series.gated and not one.gated and one.series.metric in restless
    ]
    unsteady = tuple(
        _unsteady(one, unstable_now.get(one.series.metric), reference)
        for one in ungated
        if count_row(one.series.metric).follows not in restless  # told by that
    )
    if not unsteady:
        return ()
    steady_now = any(one.series.metric not in unstable_now for one in ungated)
    renew = steady_now and not isinstance(reference, PairedRevision)
    return (Finding("ungated_counts", {"counts": unsteady, "reference": reference.words, "renew": renew}),)


def _unsteady(one: Comparison, unstable: str | None, reference: Reference) -> tuple[str, str, bool, tuple[float, ...]]:
    """A count, in what steps differ, whether they do so now, and the most of both sides where this run's is more."""
    then, metric = _counts_of(reference), one.series.metric
    reason = unstable if unstable is not None else "" if then is None else then.unstable[metric]
    more = one.baseline is not None and one.series.value > one.baseline
    values = (one.baseline, one.series.value) if more and one.baseline is not None else ()
    return metric, reason, unstable is not None, values


def _fewer(one: Comparison, baseline: float, reference: Reference) -> Finding:
    """A count that fell, in all or in what it is made of."""
    made_of = () if one.note is None else one.note.facts.get("parts", ())
    metric, now = one.series.metric, one.series.value
    return Finding(
        "fewer_counted",
        {"metric": metric, "then": baseline, "now": now, "made_of": made_of, "reference": reference.words},
    )


def _counts_of(reference: Reference) -> Counts | None:
    return None if reference.counted is None else reference.counted.counts


def _new_count(series: Series, now: Counts | None, verdict: Verdict, note: Finding | None) -> Comparison:
    """A count without anything to compare with; one that is not the same in every step asks for nothing."""
    steady = now is None or series.metric not in now.unstable
    return Comparison(series=series, tolerance=0.0, verdict=verdict, gated=series.gated and steady, note=note)
