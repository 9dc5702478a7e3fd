"""A baseline of several runs: which runs belong together, and what they amount to."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from pytest_ddpperf.judge.decision import decide_count
from pytest_ddpperf.metrics.table import outlying_end
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.measurement import Control, Series
from pytest_ddpperf.records.results import BaselineRecord, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.centers import parted
from pytest_ddpperf.stats.intervals import center

MOST_RUNS = 10  # of a baseline: more would hardly move its mean, and the first ones grow old


def adds_run(old: BaselineRecord | None, new: BaselineRecord, *, same_session: bool = False) -> bool:
    """Whether a run is one more of the same code, measured in the same way, and not another baseline.

    Runs of one session are of the same code, committed or not.
    """
    if old is None or not old.steps or not new.steps:
        return False
    if not same_session and (old.commit is None or old.dirty or new.dirty):
        return False
    same = ("commit", "plan", "turns", "strategy", "mode", "recipe", "controlled")
    return all(getattr(old, name) == getattr(new, name) for name in same)


def changed_counts(old: BaselineRecord, new: BaselineRecord) -> tuple[str, ...]:
    """The counts that two runs of the same code differ in, those left out that steps of a run differ in."""
    if old.counts is None or new.counts is None:
        return ()
    unstable = {*old.counts.unstable, *new.counts.unstable}
    return tuple(
        metric
        for metric in old.counts.totals
        if metric in new.counts.totals
        and metric not in unstable
        and decide_count(metric, old.counts, new.counts) is not Verdict.UNCHANGED
    )


def lies_apart(result: Result) -> bool:
    """Whether a gated time differs from that of the baseline's runs by more than runs do."""
    far = {Verdict.REGRESSED, Verdict.IMPROVED}
    return any(each.gated and each.series.drifts and each.verdict in far for each in result.comparisons)


def with_run(old: BaselineRecord, new: BaselineRecord) -> BaselineRecord:
    """The baseline with a run more; of more than ``MOST_RUNS`` the oldest are left out."""
    runs = (*old.each_run, *new.each_run)
    kept = runs[-MOST_RUNS:]
    spared = sum(run.launches for run in runs) - sum(run.launches for run in kept)
    lost, counts = median(run.lost for run in kept), _counts(old.counts, new.counts)
    joined = replace(new, runs=kept, steps=(*old.steps, *new.steps)[spared:], lost=lost, counts=counts)
    before = {series.metric: series for series in old.series}

    def series_of(now: Series) -> Series:
        then = before.pop(now.metric, None)
        if then is None or now.scale == "exact":
            return now
        samples = (*then.samples, *now.samples)
        control = None
        if then.control is not None and now.control is not None:
            control = Control(seconds=(*then.control.seconds, *now.control.seconds))
        if len(samples) == sum(run.launches for run in runs):
            samples = samples[spared:]
            control = control and Control(seconds=control.seconds[spared:])
        together = replace(now, samples=samples, within=(), control=control)
        outliers = outlying_end(now.rules, now.better)
        sizes = joined.sizes_of_runs(together)
        each = [center(part, now.scale, outliers)[0] for part in parted(samples, sizes)] if sizes else samples
        value, interval = center(each, now.scale, None if sizes else outliers)
        return replace(together, value=value, interval=interval)

    series = [series_of(now) for now in new.series]
    return replace(joined, series=(*series, *(each for each in before.values() if each.scale != "exact")))


def _counts(old: Counts | None, new: Counts | None) -> Counts | None:
    """The counts of the last run; one that steps of an earlier run differ in stays so, with the most of any step."""
    if old is None or new is None:
        return new
    restless = {metric: why for metric, why in old.unstable.items() if metric in new.totals}
    more = [metric for metric in restless if old.totals[metric] > new.totals[metric]]
    return replace(
        new,
        totals={**new.totals, **{metric: old.totals[metric] for metric in more}},
        details={**new.details, **{metric: old.details.get(metric, {}) for metric in more}},
        unstable={**restless, **new.unstable},
    )
