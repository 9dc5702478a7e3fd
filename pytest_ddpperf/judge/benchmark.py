"""The verdict on a benchmark: the worst verdict on its gated metrics, which are those that can fail a test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.judge import decision
from pytest_ddpperf.judge.counts import compare_counted, copies_apart, count_findings, gate_changed_work, ranks_apart
from pytest_ddpperf.judge.metric import compare_metric, slower_than_stored
from pytest_ddpperf.metrics import findings, launch_figures, scaling, table
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.parsers import closest, instead
from pytest_ddpperf.records.acceptance import Acceptance, belongs
from pytest_ddpperf.records.counts import COUNTS, Counts, count_row
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import BenchmarkId, Measurement, Plan
from pytest_ddpperf.records.results import Comparison, PairedRevision, Reference, Result, StoredBaseline
from pytest_ddpperf.records.verdict import GREEN, Verdict
from pytest_ddpperf.settings import KNOBS, Settings

LONG_SHARE = 0.1  # by how much long steps' share of the time has to exceed the reference's share, for a finding


def compare(test: str, measurement: Measurement, reference: Reference, context: decision.DecisionContext) -> Result:
    """Returns the benchmark's result: each metric compared with the reference, the verdict, and the findings."""
    every = [
        compare_counted(series, measurement, reference)
        if series.scale == "exact"
        else compare_metric(series, measurement, reference, context)
        for series in measurement.series
    ]
    gated, last = gate_changed_work(every, measurement, reference), context.last or context.proofs.share >= 1
    comparisons = decision.with_stand_in(gated, proves=context.proofs.proves, last=last)
    lost = _lost_metrics(measurement, reference)
    apart = (*ranks_apart(measurement, reference), *copies_apart(measurement, reference))
    alike = reference.alike if isinstance(reference, StoredBaseline) else ()
    decided = decision.decide_benchmark(comparisons, reference, lost=bool(lost), untimed=measurement.untimed)
    return Result(
        test=test,
        measurement=measurement,
        comparisons=comparisons,
        verdict=decision.decide_failure() if apart else decided,
        reference=reference,
        findings=(
            *apart,
            *measurement.findings,
            *findings.findings_of(measurement),
            *lost,
            *count_findings(comparisons, measurement, reference),
            *([Finding("alike_baselines", {"names": alike})] * bool(alike)),
            *([Finding("other_facts", {"differ": reference.recorded_differ})] * bool(reference.recorded_differ)),
            *_long_steps(measurement, reference),
            *_warnings(measurement, reference, context),
        ),
    )


def acceptances(test: str, settings: Settings, added: Iterable[table.Metric]) -> list[Acceptance]:
    """Returns the metrics that the settings allow to get worse; raises SettingError for an unknown metric."""
    option, reason = KNOBS["allow"].option, settings.reason or ""
    found = [
        *(Acceptance(name, reason, limit, share=share) for name, (limit, share) in (settings.accept or {}).items()),
        *(Acceptance(name, option) for node, name in settings.allow or () if belongs(test, node)),
    ]
    known = {*COUNTS, scaling.EFFICIENCY, scaling.SPEEDUP, *(row.name for row in (*table.METRICS, *added))}
    for name in (each.metric for each in found if each.metric not in known):
        raise SettingError(f"{option} or accept: {name!r} is no metric; {instead(closest(name, known), sorted(known))}")
    return found


def with_accepted(result: Result, acceptances: Sequence[Acceptance]) -> Result:
    """Returns the result without the failures that ``acceptances`` allow; findings name acceptances and reasons."""
    if result.measurement.unfit:
        return result  # it could not be measured
    known = {each.series.metric: each for each in result.comparisons if each.gated and each.baseline is not None}
    for acceptance in sorted(acceptances, key=lambda each: count_row(each.metric).follows):  # leading metrics first
        one = known.get(acceptance.metric)
        if one is None or not (one.verdict is Verdict.REGRESSED or one.verdict in GREEN):
            continue
        needed, covered = one.verdict is Verdict.REGRESSED, acceptance.covers(one)
        remark = Finding(
            "acceptance", {"worse": one, "reason": acceptance.reason, "needed": needed, "covered": covered}
        )
        result = replace(result, findings=(*result.findings, remark))
        if needed and covered:
            also = [each for each in result.comparisons if _follows(each, one.series.metric)]
            unsteady = {each.series.metric for each in also if each.note and each.note.code == "unsteady_count"}
            worse = {each.series.metric for each in also if each.verdict is Verdict.REGRESSED} - unsteady
            worse -= {each.series.metric for each in also if acceptance.covers(each)}
            known |= {each.series.metric: replace(each, gated=each.series.metric in worse) for each in (one, *also)}
    comparisons = tuple(known.get(each.series.metric, each) for each in result.comparisons)
    if result.verdict is not Verdict.REGRESSED:
        return result  # nothing to accept, or broken
    return decision.decided_anew(result, comparisons)


def _follows(comparison: Comparison, metric: str) -> bool:
    """Returns whether a comparison's metric usually changes with ``metric``, as throughput does with the step time."""
    series = comparison.series
    return count_row(series.metric).follows == metric or (series.rules.repeats_step_time and metric == STEP_TIME)


def broken(test: str, identity: BenchmarkId, reason: str, counts: Counts | None = None) -> Result:
    """Returns the result of a benchmark that could not be measured; ``counts`` were made before the failure."""
    finding = Finding("broken", {"reason": reason})
    return Result(
        test=test,
        measurement=_unmeasured(identity, finding, counts),
        comparisons=(),
        verdict=decision.decide_failure(),
        reference=StoredBaseline(record=None, origin="not compared"),
        findings=(finding,),
    )


def _unmeasured(identity: BenchmarkId, why: Finding, counts: Counts | None) -> Measurement:
    plan = Plan(warmup=0, steps=0)
    return Measurement(**identity.identity_fields, plan=plan, launches=(), findings=(why,), counts=counts)


def unfit(test: str, identity: BenchmarkId, reason: str, reference: Reference, counts: Counts | None = None) -> Result:
    """Returns the result of a benchmark that does not fit into memory; ``counts`` were made before memory ran out."""
    record = reference.record
    if isinstance(reference, PairedRevision):
        fitted = not reference.lacking
    else:
        fitted = record is not None and record.timed and not reference.differs
    finding = Finding("does_not_fit", {"reason": reason, "fitted": fitted})
    series = () if counts is None else table.counted_series(counts)
    measurement = replace(_unmeasured(identity, finding, counts), series=series)
    compared = [compare_counted(each, measurement, reference) for each in measurement.series]
    counted = gate_changed_work(compared, measurement, reference)
    return Result(
        test=test,
        measurement=measurement,
        comparisons=counted,
        verdict=decision.decide_unfit(fitted=fitted, counted=counted),
        reference=reference,
        findings=(finding,),
    )


def _lost_metrics(measurement: Measurement, reference: Reference) -> tuple[Finding, ...]:
    """Returns a finding for each gated metric that a comparable reference has and this measurement lacks."""
    if reference.record is None or reference.differs:
        return ()
    there = {series.metric for series in measurement.series}
    told = reference.paired and reference.counted_differs  # another torch: counts are shown, but not gated
    looked_at = {series.scale == "exact" for series in measurement.series}  # a run may only count, or not count at all
    return tuple(
        Finding("lost_metric", {"metric": series.metric, "paired": reference.paired})
        for series in reference.record.series
        if series.gated
        and not (told and series.scale == "exact")
        and not series.rules.stands_in
        and not count_row(series.metric).guessed
        and not (series.metric == scaling.SPEEDUP and reference.record.over != measurement.over)
        and (measurement.diagnoses or not series.rules.diagnosed)  # the budget may have left no time for a diagnosis
        and series.metric not in there
        and (series.scale == "exact") in looked_at
    )


def _warnings(measurement: Measurement, reference: Reference, context: decision.DecisionContext) -> tuple[Finding, ...]:
    """Returns warnings if only stored times can be compared, or if both revisions are slower than the stored times."""
    if not isinstance(reference, StoredBaseline) or reference.record is None or not measurement.launches:
        return ()
    slower = slower_than_stored(measurement, reference, context)
    unpaired = Finding("unpaired", {"reason": reference.unpaired}) if reference.unpaired else None
    return tuple(finding for finding in (slower, unpaired) if finding is not None)


def _long_steps(measurement: Measurement, reference: Reference) -> tuple[Finding, ...]:
    """Returns a finding if long steps take a much larger share of the time than in the reference.

    If no launches of the reference ran in the same rounds, only long steps at regular intervals are reported.
    """
    pair = reference if isinstance(reference, PairedRevision) else reference.pair
    now = launch_figures.long_steps_of(measurement)
    before = None if pair is None else pair.long_steps
    regular = 0.0 if now.period is not None else 1.0
    if now.share - (regular if before is None else before.share) < LONG_SHARE:
        return ()
    return (Finding("long_steps", {"now": now, "before": before}),)
