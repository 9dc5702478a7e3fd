"""The judgement on a benchmark: each of its metrics against the baseline's, and the worst gated one for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpperf.judge.allowance import floor_of
from pytest_ddpperf.judge.counts import compare_counted, count_findings
from pytest_ddpperf.judge.metric import compare_metric, without_judgement
from pytest_ddpperf.judge.rules import Rules
from pytest_ddpperf.metrics.findings import findings_of
from pytest_ddpperf.metrics.table import BESIDE, CPU_TIME, STEP_TIME
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.results import BaselineRecord, Comparison, Found, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.units import format_percent

NOT_WORSE = {Verdict.IMPROVED, Verdict.UNCHANGED, Verdict.INCONCLUSIVE}


def compare(test: str, measurement: Measurement, found: Found, rules: Rules) -> Result:
    """The judgement on one measurement: each of its series against the baseline's, and the worst gated one for all.

    Args:
        test: pytest node id.
        measurement: what was measured.
        found: what the store knows for it. A foreign record is compared for display, never judged.
        rules: of the test.
    """
    comparisons = stand_in(
        [
            compare_counted(series, measurement, found)
            if series.scale == "exact"
            else compare_metric(series, measurement, found, rules)
            for series in measurement.series
        ],
        last=rules.last,
    )
    lost = lost_metrics(measurement, found)
    least = Verdict.INCOMPATIBLE if lost else Verdict.IMPROVED
    sentences = (
        *lost,
        *count_findings(comparisons, measurement, found),
        *near_misses(found),
        *raised_tolerance(comparisons, found, rules.tolerance),
    )
    return Result(
        test=test,
        measurement=measurement,
        comparisons=comparisons,
        verdict=max(worst(comparisons, found), least, key=lambda verdict: verdict.severity),
        baseline=_shown(measurement, found),
        origin=found.origin,
        findings=(
            *measurement.findings,
            *findings_of(measurement),
            *(Finding("text", {"text": sentence}) for sentence in sentences),
        ),
        differs=found.differs,
        counterpart=found.counterpart,
    )


def stand_in(comparisons: Sequence[Comparison], *, last: bool) -> tuple[Comparison, ...]:
    """The comparisons, of which the CPU time may only be worse in place of a step time that remains undecided.

    More work that makes no step longer is no regression: so it takes a step time that is at least not shorter, and
    counts at the last look alone, for until then the step time may be decided. Less work is no proof of shorter steps.

    Args:
        comparisons: of one measurement. Where the step time is not gated, they stay as they are.
        last: whether there is no time for another look.
    """
    step = next((one for one in comparisons if one.series.metric == STEP_TIME and one.gated), None)

    def standing_in(cpu: Comparison) -> Comparison:
        if step is None or not cpu.gated:
            return cpu
        longer = step.verdict is Verdict.INCONCLUSIVE and step.change is not None and step.change >= 0
        if not longer or cpu.verdict is Verdict.IMPROVED:
            return replace(cpu, gated=False)
        if cpu.verdict is Verdict.REGRESSED and not last:
            return replace(cpu, verdict=Verdict.INCONCLUSIVE)
        return replace(cpu, note=cpu.note or "in place of the step time, which remains undecided")

    return tuple(standing_in(one) if one.series.metric == CPU_TIME else one for one in comparisons)


def _shown(measurement: Measurement, found: Found) -> BaselineRecord | None:
    """The record that a result is told beside: where nothing was timed, one of another machine is as good."""
    if found.counterpart is not None:
        return None
    own = found.record is not None and not found.differs
    return found.record if own or measurement.launches or found.counted is None else found.counted


def lost_metrics(measurement: Measurement, found: Found) -> tuple[str, ...]:
    """A sentence for each gated metric that the comparable baseline has and this measurement does not.

    What only stands in for another metric is not missed.
    """
    if found.record is None or found.differs:
        return ()
    there = {series.metric for series in measurement.series}
    looked_at = {series.scale == "exact" for series in measurement.series}  # a run may only count, or not count at all
    accepted = "" if found.counterpart else "; --ddpperf-save accepts that"
    return tuple(
        f"{found.base_words} has {series.metric}, this run does not: it is gated no more{accepted}"
        for series in found.record.series
        if series.gated
        and series.metric not in BESIDE
        and series.metric not in there
        and (series.scale == "exact") in looked_at
    )


def near_misses(found: Found) -> tuple[str, ...]:
    """A sentence where there is no baseline, but one of the same benchmark with other options."""
    if not found.alike:
        return ()
    there = "there is a baseline" if len(found.alike) == 1 else "there are baselines"
    names = ", ".join(f"`{name}`" for name in found.alike)
    return (f"{there} for {names}: options are part of a benchmark's identity",)


def raised_tolerance(comparisons: Sequence[Comparison], found: Found, tolerance: float) -> tuple[str, ...]:
    """A sentence where the noise floor took the place of the test's tolerance."""
    judged = [one for one in comparisons if one.gated and one.baseline is not None and one.series.scale != "exact"]
    if found.noise is None or found.differs or not any(floor_of(one.series, found.noise) > tolerance for one in judged):
        return ()
    floor = f"{format_percent(found.noise.floor)}: the noise floor {found.noise.origin}"
    return (f"tolerance {format_percent(tolerance)} raised to {floor}",)


def worst(comparisons: Sequence[Comparison], found: Found) -> Verdict:
    """The worst verdict among the gated comparisons; without any, what is to be said of the baseline alone.

    Beside another revision, what got better and nowhere worse is improved: the question is what the change did, and
    what remains undecided in other metrics is told with it. So it is where there are counts alone, each of which is
    known exactly. Of times beside a baseline it takes all, for the word says that the whole baseline is stale.
    """
    gated = [comparison.verdict for comparison in comparisons if comparison.gated]
    if found.counterpart is not None and found.record is not None:
        gated = [one for one in gated if one is not Verdict.NEW] or gated  # this side alone has it: told beside
    only_counts = all(comparison.series.scale == "exact" for comparison in comparisons)
    better_alone = Verdict.IMPROVED in gated and set(gated) <= NOT_WORSE
    if better_alone and (only_counts or found.counterpart is not None):
        return Verdict.IMPROVED
    return max(gated, key=lambda verdict: verdict.severity, default=without_judgement(found))
