"""Comparison of two results documents: by how much each metric of each benchmark differs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_ddpperf.baselines.earlier_run import key_of
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.counts import quantity_texts
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports import phrases
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.lines import with_names
from pytest_ddpperf.reports.table import NOTHING, Table
from pytest_ddpperf.units import format_change, format_count, format_values

_COUNTED = "[counted]"  # in place of an interval
_MEANING = "the runs did not alternate, so times show only gross slowdowns; --ddpperf-against shows smaller ones"


def two_runs(before: Run, after: Run, both: Sequence[Result]) -> Table:
    """Returns a table with a row for each gated metric of two runs; ``both``: the benchmarks of both runs."""
    told = [(name, result, _rows(name, result)) for name, result in with_names(both)]
    told.sort(key=lambda each: not any(row[-1].endswith(_COUNTED) for row in each[2]))
    notes = [
        f"{name}: times are not compared: {', '.join(obstacle)}"
        for name, result, _ in told
        if (obstacle := result.reference.differs)
    ]
    if same := [name for name, _, rows in told if not rows]:
        notes.append(f"no metric that can fail a test differs in {', '.join(same)}")
    shared = set(map(key_of, both))
    for which, run in (("first", before), ("second", after)):
        if alone := [result for result in run.results if key_of(result) not in shared]:
            notes.append(f"only in the {which} run: {', '.join(name for name, _ in with_names(alone))}")
    rows = tuple(row for *_, rows in told for row in rows)
    notes += phrases.meaning_of_mark(result[row[1]] for _, result, of in told for row in of if phrases.MARK in row[-1])
    return Table(
        title=f"{_run(before)} -> {_run(after)}",
        headers=("benchmark", "metric", "before", "after", "change"),
        rows=rows,
        notes=(*notes, *[_MEANING] * bool(rows), *["no benchmark is in both runs"] * (not both)),
        left=2,
        right=0,
    )


def _run(run: Run) -> str:
    commit = phrases.commit_text(run.commit, dirty=run.dirty) if run.commit else "unknown commit"
    day = f", {run.date[:10]}" if run.date else ""
    return f"{commit}{day}, {format_count(len(run.results), 'benchmark')}"


def _rows(name: str, result: Result) -> list[tuple[str, ...]]:
    then = {} if result.baseline is None else {each.metric: each for each in result.baseline.series}
    rows = []
    for comparison in sorted(result.comparisons, key=lambda each: each.series.metric != STEP_TIME):
        now, was = comparison.series, then.get(comparison.series.metric)
        if was is None or not now.gated or now.rules.repeats_step_time:
            continue
        if (was.unit, was.scale, was.better) != (now.unit, now.scale, now.better):
            continue
        values = (was.value, now.value)
        if not all(map(math.isfinite, values)):
            continue
        if now.scale == "exact":
            if now.value != was.value:
                share = f"{format_change(now.value / was.value - 1)} " if was.value > 0 else ""
                rows.append((name, now.metric, *quantity_texts(now.metric, values), share + _COUNTED))
        else:
            change = "" if result.reference.differs else phrases.change_text(comparison)
            change += phrases.MARK * bool(change and phrases.mean_change(comparison))
            rows.append((name, now.metric, *format_values(values, now.unit), change or NOTHING))
    return rows
