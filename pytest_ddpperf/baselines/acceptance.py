"""What of a result becomes the baseline of later runs."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.metrics.findings import disturbed_baseline, thin_baseline
from pytest_ddpperf.records.results import BaselineRecord, Provenance, Result, record_of
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.summaries import step_summary


def acceptable(result: Result) -> bool:
    """Whether a result may take the place of its baseline unasked: an undecided one says no more than that did."""
    return result.verdict is not Verdict.INCONCLUSIVE


def warned(result: Result) -> Result:
    """A result that was stored, with what is to be said of it as a baseline."""
    measured = result.measurement
    warnings = [warning for warning in (thin_baseline(measured), disturbed_baseline(measured)) if warning is not None]
    return replace(result, findings=(*result.findings, *warnings))


def baseline_record(result: Result, now: Provenance) -> BaselineRecord:
    """What is stored of a result; what it did not look at, times or counts, stays as it was stored before."""
    measured, old = result.measurement, result.baseline
    new = record_of(measured, now, tuple(step_summary(launch.step_times) for launch in measured.launches))
    same = old is not None and environment_key(old.environment) == environment_key(measured.environment)
    if old is None or not same or result.differs:
        return new
    timed, counted = (tuple(one for one in old.series if (one.scale == "exact") is exact) for exact in (False, True))
    if not measured.launches:
        return replace(old, series=(*timed, *measured.series), counts=measured.counts, counted=now)
    if measured.counts is None and old.counts is not None:
        return replace(new, series=(*measured.series, *counted), counts=old.counts, counted=old.counts_from)
    return new
