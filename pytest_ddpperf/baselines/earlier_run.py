"""Compares two recorded runs: judges the later run as if the earlier run had stored baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpperf.baselines.fingerprint import counted_differences, differences, kernel_differences
from pytest_ddpperf.judge.benchmark import compare, unfit
from pytest_ddpperf.judge.decision import TOLERANCE, DecisionContext
from pytest_ddpperf.judge.sequential import alpha_of_benchmark
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.results import Provenance, Result, StoredBaseline, record_of
from pytest_ddpperf.records.verdict import Verdict


def key_of(result: Result) -> tuple[str, str, int]:
    """Returns the key of a result's benchmark, which is equal in all runs: test, name and number of ranks."""
    return result.test, *result.measurement.key


def judged_by(earlier: Sequence[Result], provenance: Provenance, results: Sequence[Result]) -> list[Result]:
    """Judges each result by the ``earlier`` result of the same benchmark; omits benchmarks without an earlier result.

    ``provenance`` is the code that the earlier results measured.
    """
    old, new = ({key_of(result): result for result in each} for each in (earlier, results))
    alpha, kept = alpha_of_benchmark(len(new)), ("step", "seconds", "spent")
    return [
        replace(_judged(old[key], result, provenance, alpha), **{name: getattr(result, name) for name in kept})
        for key, result in new.items()
        if key in old
    ]


def _judged(old: Result, result: Result, provenance: Provenance, alpha: float) -> Result:
    measured, reference = result.measurement, _reference(old, result, provenance)
    if result.verdict is Verdict.BROKEN:
        return result
    if result.verdict is Verdict.DOES_NOT_FIT:
        return unfit(result.test, measured, "this happened in the second run", reference, measured.counts)
    by_metric = any(each.verdict is Verdict.INCONCLUSIVE for each in result.comparisons)
    only_counts = all(series.scale == "exact" for series in measured.series)
    if result.verdict is Verdict.INCONCLUSIVE and only_counts and not by_metric:
        measured = replace(measured, findings=(*measured.findings, Finding("no_time_to_measure")))
    tolerances = (each.tolerance for each in result.comparisons if each.series.metric == STEP_TIME)
    accepted = max(TOLERANCE, next(tolerances, 0.0))  # the test's own, if it is wider than that of stored times
    return compare(result.test, measured, reference, DecisionContext(alpha=alpha, tolerance=accepted))


def _reference(old: Result, new: Result, provenance: Provenance) -> StoredBaseline:
    was, now = old.measurement, new.measurement
    record, environments = record_of(was, provenance), (was.environment, now.environment)
    same = was.training == now.training and was.recipe == now.recipe
    trained = () if same else (f"trained as {was.training} -> {now.training}",)
    turns = () if was.turns == now.turns else ("only one run interleaved its launches",)
    return StoredBaseline(
        record=record,
        origin="the first run",
        differs=(*differences(*environments), *trained, *turns),
        counted=None if record.counts is None else record,
        counted_differs=(*counted_differences(*environments), *trained),
        kernels_differ=kernel_differences(*environments),
    )
