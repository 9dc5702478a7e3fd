"""The judgement on a benchmark: each of its metrics beside the reference's, and the worst gated one for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpperf.judge.counts import compare_counted, count_findings
from pytest_ddpperf.judge.decision import (
    DecisionContext,
    decide_benchmark,
    decide_failure,
    decide_unfit,
    settled_metric,
    with_stand_in,
)
from pytest_ddpperf.judge.metric import compare_metric
from pytest_ddpperf.metrics.control import pace
from pytest_ddpperf.metrics.findings import findings_of
from pytest_ddpperf.metrics.scaling import SPEEDUP
from pytest_ddpperf.metrics.table import STEP_TIME, counted_series
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import BenchmarkId, Measurement, Plan
from pytest_ddpperf.records.results import Comparison, PairedRevision, Reference, Result, StoredBaseline
from pytest_ddpperf.records.verdict import OPEN
from pytest_ddpperf.stats.intervals import from_log

OTHER_PACE = 0.03  # by how much the control step has to differ from the baseline's to be worth a remark
_OF_REFERENCE = {"lost_metric", "lost_counts", "fewer_counted", "ungated_counts", "few_launches", "no_time_to_diagnose"}


def compare(test: str, measurement: Measurement, reference: Reference, context: DecisionContext) -> Result:
    """The judgement on one benchmark; a reference of another environment is shown, and judges nothing but counts."""
    comparisons = with_stand_in(
        [
            compare_counted(series, measurement, reference)
            if series.scale == "exact"
            else compare_metric(series, measurement, reference, context)
            for series in measurement.series
        ],
        proves=context.proofs.proves,
        last=context.last or context.proofs.share >= 1,
    )
    lost = _lost_metrics(measurement, reference)
    return Result(
        test=test,
        measurement=measurement,
        comparisons=comparisons,
        verdict=decide_benchmark(comparisons, reference, lost=bool(lost)),
        reference=reference,
        findings=(
            *measurement.findings,
            *findings_of(measurement),
            *lost,
            *count_findings(comparisons, measurement, reference),
            *_near_misses(reference),
            *([Finding("other_facts", {"differ": reference.recorded_differ})] * bool(reference.recorded_differ)),
            *_other_pace(comparisons, reference),
        ),
    )


def settled(stored: Result, baseline: StoredBaseline, beside: Result) -> Result:
    """A judgement beside a stored baseline whose times ``beside`` settles, side by side with the baseline's commit.

    Counts, bytes and losses stay judged by the stored baseline, unless its launches left them open: no mood of a
    machine changes them.
    """
    left_open = {judged.series.metric for judged in stored.comparisons if judged.verdict in OPEN}
    timed = {
        comparison.series.metric: comparison
        for comparison in beside.comparisons
        if (comparison.series.drifts or comparison.series.metric in left_open) and comparison.baseline is not None
    }
    known = {series.metric for series in stored.measurement.series}
    comparisons = (
        *(settled_metric(judged, timed.get(judged.series.metric)) for judged in stored.comparisons),
        *(comparison for metric, comparison in timed.items() if metric not in known),
    )
    lost = any(finding.code == "lost_metric" for finding in stored.findings)
    of_launches = (*stored.measurement.findings, *findings_of(stored.measurement))
    return Result(
        test=stored.test,
        measurement=replace(
            beside.measurement,
            findings=tuple(one for one in beside.measurement.findings if one.code not in _OF_REFERENCE),
            series=tuple(comparison.series for comparison in comparisons),
            profile=stored.measurement.profile,
        ),
        comparisons=comparisons,
        verdict=decide_benchmark(comparisons, baseline, lost=lost),
        reference=replace(baseline, settled=beside.paired),
        findings=(
            *(one for one in stored.findings if one not in of_launches and one.code != "other_pace"),
            _settling(stored, beside),
            *(finding for finding in beside.findings if finding.code not in _OF_REFERENCE),
        ),
        seconds=beside.seconds,
    )


def _settling(stored: Result, beside: Result) -> Finding:
    """How the times were settled, and how the step time looked beside the stored one."""
    paired = beside.paired
    step = next((each for each in stored.comparisons if each.series.metric == STEP_TIME), None)
    return Finding(
        "settled",
        {
            "commit": "" if paired is None else paired.revision,
            "rounds": 0 if paired is None else paired.launches,
            "change": None if step is None else step.change,
        },
    )


def broken(test: str, identity: BenchmarkId, reason: str, counts: Counts | None = None) -> Result:
    """The result of a benchmark that could not be measured; ``counts``: what was counted before."""
    findings = (Finding("broken", {"reason": reason}),)
    plan = Plan(warmup=0, steps=0)
    return Result(
        test=test,
        measurement=Measurement(**identity.identity_fields, plan=plan, launches=(), findings=findings, counts=counts),
        comparisons=(),
        verdict=decide_failure(),
        reference=StoredBaseline(record=None, origin="not compared"),
        findings=findings,
    )


def unfit(test: str, identity: BenchmarkId, reason: str, reference: Reference, counts: Counts | None = None) -> Result:
    """The result of a benchmark that does not fit into memory; it is a regression where the reference fits.

    ``counts``: what was counted before it ran out of memory, which is judged as ever.
    """
    record = reference.record
    if isinstance(reference, PairedRevision):
        fitted = not reference.lacking
    else:
        fitted = record is not None and record.timed and not reference.differs
    finding = Finding("does_not_fit", {"reason": reason, "fitted": fitted})
    measurement = Measurement(
        **identity.identity_fields,
        plan=Plan(warmup=0, steps=0),
        launches=(),
        findings=(finding,),
        counts=counts,
        series=() if counts is None else counted_series(counts),
    )
    counted = tuple(compare_counted(each, measurement, reference) for each in measurement.series)
    return Result(
        test=test,
        measurement=measurement,
        comparisons=counted,
        verdict=decide_unfit(fitted=fitted, counted=counted),
        reference=reference,
        findings=(finding,),
    )


def beside_unfit(result: Result, unfit: Sequence[str]) -> Result:
    """The result of a benchmark beside those that do not fit, whose absence its notes name."""

    def told(note: Finding | None) -> Finding | None:
        alone = note is not None and note.code == "timed_otherwise" and note.facts["then_in_turns"]
        return Finding("partners_do_not_fit", {"names": tuple(unfit)}) if alone else note

    comparisons = tuple(replace(each, note=told(each.note)) for each in result.comparisons)
    return replace(result, comparisons=comparisons)


def _lost_metrics(measurement: Measurement, reference: Reference) -> tuple[Finding, ...]:
    """Each gated metric that the comparable reference has and this measurement does not, stand-ins left out.

    Where a session's budget had no time for a launch that diagnoses, nothing that it would have told is lost.
    """
    if reference.record is None or reference.differs:
        return ()
    there = {series.metric for series in measurement.series}
    told = reference.paired and reference.counted_differs  # of another torch: counts gate nothing
    looked_at = {series.scale == "exact" for series in measurement.series}  # a run may only count, or not count at all
    return tuple(
        Finding("lost_metric", {"metric": series.metric, "paired": reference.paired})
        for series in reference.record.series
        if series.gated
        and not (told and series.scale == "exact")
        and not series.rules.paired_only
        and not (series.metric == SPEEDUP and reference.record.over != measurement.over)
        and (measurement.diagnoses or not series.rules.diagnosed)
        and series.metric not in there
        and (series.scale == "exact") in looked_at
    )


def _near_misses(reference: Reference) -> tuple[Finding, ...]:
    """Where there is no baseline, but one of the same benchmark with other options."""
    if not isinstance(reference, StoredBaseline) or not reference.alike:
        return ()
    return (Finding("alike_baselines", {"names": reference.alike}),)


def _other_pace(comparisons: Sequence[Comparison], reference: Reference) -> tuple[Finding, ...]:
    """Where the machine is much faster or slower than it was for the baseline, as the control step tells."""
    step = next((each.series for each in comparisons if each.controlled and each.series.metric == STEP_TIME), None)
    if step is None or reference.record is None:
        return ()
    (base,) = (series for series in reference.record.series if series.metric == STEP_TIME)
    change = from_log(pace(step, base, reference.record.sizes_of_runs(base)))
    return (Finding("other_pace", {"change": change}),) if abs(change) > OTHER_PACE else ()
