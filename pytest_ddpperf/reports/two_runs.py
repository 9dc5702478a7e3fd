"""Two results documents beside each other: how far each metric of each benchmark differs."""

from __future__ import annotations

import math
from dataclasses import replace

from pytest_ddpperf.baselines.fingerprint import counted_differences, differences, kernel_differences
from pytest_ddpperf.judge.benchmark import compare, unfit
from pytest_ddpperf.judge.decision import TOLERANCE, DecisionContext
from pytest_ddpperf.judge.sequential import alpha_of_benchmark
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.counts import quantity_texts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.results import Provenance, Result, StoredBaseline, record_of
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.lines import names_of, with_names
from pytest_ddpperf.reports.phrases import change_text, commit_text, find
from pytest_ddpperf.reports.table import NOTHING, Table
from pytest_ddpperf.units import format_change, format_count, format_values

_COUNTED = "[counted]"  # in place of an interval
_MEANING = "runs of different minutes: of times only a gross slowdown is regressed; --ddpperf-against shows less"


def two_runs(before: Run, after: Run) -> Table:
    """A row for each gated metric that both runs have; of counts those that differ, and these benchmarks first.

    The step time comes first.
    """
    both = judged(before, after)
    old = {key_of(result): result for result in before.results}
    told = [(name, result, _rows(name, old[key_of(result)], result)) for name, result in with_names(both)]
    told.sort(key=lambda each: not any(row[-1].endswith(_COUNTED) for row in each[2]))
    notes = [
        f"{name}: times are not compared: {', '.join(result.reference.differs)}"
        for name, result, _ in told
        if result.reference.differs
    ]
    same = [name for name, _, rows in told if not rows]
    if same:
        notes.append(f"no gated metric of {format_count(len(same), 'benchmark')} differs: {', '.join(same)}")
    common = set(map(key_of, both))
    for which, run in ("first", before), ("second", after):
        if alone := [result for result in run.results if key_of(result) not in common]:
            notes.append(f"only in the {which} run: {', '.join(names_of(alone))}")
    every = tuple(row for _, _, rows in told for row in rows)
    return Table(
        title=f"{_run(before)} -> {_run(after)}",
        headers=("benchmark", "metric", "before", "after", "change"),
        rows=every,
        notes=(*notes, *[_MEANING] * bool(every), *["no benchmark is in both runs"] * (not both)),
        left=2,
        right=0,
    )


def judged(before: Run, after: Run) -> list[Result]:
    """The benchmarks of the second run that both have, judged as if the first run had stored their baselines."""
    old, new = ({key_of(result): result for result in each.results} for each in (before, after))
    provenance = Provenance(date=before.date or "", commit=before.commit)
    alpha = alpha_of_benchmark(len(new))
    return [
        replace(
            _judged(result, _reference(old[key], result, provenance), alpha),
            **{name: getattr(result, name) for name in ("step", "seconds", "spent")},
        )
        for key, result in new.items()
        if key in old
    ]


def _judged(result: Result, reference: StoredBaseline, alpha: float) -> Result:
    measured = result.measurement
    if result.verdict is Verdict.BROKEN:
        return result
    if result.verdict is Verdict.DOES_NOT_FIT:
        return unfit(result.test, measured, "as the second run says", reference, measured.counts)
    if result.verdict is Verdict.INCONCLUSIVE and all(series.scale == "exact" for series in measured.series):
        measured = replace(measured, findings=(*measured.findings, Finding("no_time_to_measure")))
    tolerances = (each.tolerance for each in result.comparisons if each.series.metric == STEP_TIME)
    accepted = max(TOLERANCE, next(tolerances, 0.0))  # the test's own, if it is wider than that of stored times
    return compare(result.test, measured, reference, DecisionContext(alpha=alpha, tolerance=accepted))


def _reference(old: Result, new: Result, provenance: Provenance) -> StoredBaseline:
    """The first run's benchmark as a stored baseline."""
    was, now = old.measurement, new.measurement
    record, environments = record_of(was, provenance), (was.environment, now.environment)
    same = was.training == now.training and was.recipe == now.recipe
    trained = () if same else (f"trained as {was.training} -> {now.training}",)
    turns = () if was.turns == now.turns else ("steps of one run were timed in turns with those of other launches",)
    return StoredBaseline(
        record=record,
        origin="the first run",
        differs=(*differences(*environments), *trained, *turns),
        counted=None if record.counts is None else record,
        counted_differs=(*counted_differences(*environments), *trained),
        kernels_differ=kernel_differences(*environments),
    )


def key_of(result: Result) -> tuple[str, str, int]:
    """Returns what a benchmark has in common with the same one of another run."""
    return result.test, *result.measurement.key


def _run(run: Run) -> str:
    """The code and the day of a run."""
    commit = commit_text(run.commit, dirty=run.dirty) if run.commit else "unknown commit"
    day = f", {run.date[:10]}" if run.date else ""
    return f"{commit}{day}, {format_count(len(run.results), 'benchmark')}"


def _rows(name: str, old: Result, new: Result) -> list[tuple[str, ...]]:
    rows = []
    for comparison in sorted(new.comparisons, key=lambda each: each.series.metric != STEP_TIME):
        now, other = comparison.series, find(old, comparison.series.metric)
        if other is None or not now.gated or now.rules.repeats_step_time:
            continue
        was = other.series
        if (was.unit, was.scale, was.better) != (now.unit, now.scale, now.better):
            continue
        values = (was.value, now.value)
        if now.scale == "exact":
            if now.value != was.value:
                share = f"{format_change(now.value / was.value - 1)} " if was.value > 0 else ""
                rows.append((name, now.metric, *quantity_texts(now.metric, values), share + _COUNTED))
        elif all(map(math.isfinite, values)):
            rows.append((name, now.metric, *format_values(values, now.unit), change_text(comparison) or NOTHING))
    return rows
