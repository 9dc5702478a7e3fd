"""Two results documents beside each other: how far each metric of each benchmark differs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

from pytest_ddpperf.baselines.fingerprint import differences
from pytest_ddpperf.judge.allowance import drift_of, spread_between_runs
from pytest_ddpperf.metrics.table import STEP_TIME, outlying_end
from pytest_ddpperf.records.counts import quantity_texts
from pytest_ddpperf.records.measurement import Series
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.documents.judged import results_of
from pytest_ddpperf.reports.documents.results import ResultsData
from pytest_ddpperf.reports.names import names_of
from pytest_ddpperf.reports.phrases import commit_text, find
from pytest_ddpperf.reports.table import NOTHING, RowNote, Table
from pytest_ddpperf.stats import intervals
from pytest_ddpperf.units import format_change, format_count, format_difference, format_values

_ALPHA = 0.05
_COUNTED = "[counted]"  # in place of an interval
_Key: TypeAlias = "tuple[str, str, int]"
_MEANING = (
    "no verdict: an interval holds what launches scatter by and what runs usually differ by, not what else changed on "
    "the machine between both runs; for a verdict store the first one as a baseline, or give --ddpperf-against"
)


def two_runs_table(before: ResultsData, after: ResultsData) -> Table:
    """A row for each gated metric that both runs have; of counts those that differ, and these benchmarks first.

    The step time comes first.
    """
    old, new = ({_key(result): result for result in results_of(each)} for each in (before, after))
    both = [result for key, result in new.items() if key in old]
    names = dict(zip(map(_key, both), names_of(both), strict=True))
    rows: list[tuple[str, ...]] = []
    notes: list[str | RowNote] = []
    same: list[str] = []
    for key, name in sorted(names.items(), key=lambda each: not _differs(old[each[0]], new[each[0]])):
        obstacle = _obstacle(old[key], new[key])
        told = _rows(name, old[key], new[key], comparable=not obstacle)
        rows += told
        same += [] if told else [name]
        if obstacle:
            notes.append(f"{name}: times are not compared: {', '.join(obstacle)}")
    if same:
        notes.append(f"no gated metric of {format_count(len(same), 'benchmark')} differs: {', '.join(same)}")
    for which, here, there in (("first", old, new), ("second", new, old)):
        if alone := [result for key, result in here.items() if key not in there]:
            notes.append(f"only in the {which} run: {', '.join(names_of(alone))}")
    return Table(
        title=f"{_run(before)} -> {_run(after)}",
        headers=("benchmark", "metric", "before", "after", "change [95 % CI]"),
        rows=tuple(rows),
        notes=(*notes, *([_MEANING] if rows else []), *([] if names else ["no benchmark is in both runs"])),
        left=2,
        right=0,
    )


def _key(result: Result) -> _Key:
    return result.test, result.name, result.measurement.world_size


def _run(document: ResultsData) -> str:
    """The code and the day of a run."""
    commit = commit_text(document.commit, dirty=document.dirty) if document.commit else "unknown commit"
    day = f", {document.date[:10]}" if document.date else ""
    return f"{commit}{day}, {format_count(len(document.results), 'benchmark')}"


def _obstacle(old: Result, new: Result) -> list[str]:
    """Why the times of a benchmark cannot be compared; empty where they can."""
    was, now = old.measurement, new.measurement
    found = list(differences(was.environment, now.environment))
    if was.training != now.training or was.recipe != now.recipe:
        found.append(f"trained as {was.training} -> {now.training}")
    if was.turns != now.turns:
        found.append("steps of one run were timed in turns with those of other launches")
    return found


def _rows(name: str, old: Result, new: Result, *, comparable: bool) -> list[tuple[str, ...]]:
    rows = []
    for comparison in sorted(new.comparisons, key=lambda each: each.series.metric != STEP_TIME):
        now, other = comparison.series, find(old, comparison.series.metric)
        if other is None or not now.gated or now.rules.repeats_step_time:
            continue
        was = other.series
        if (was.unit, was.scale, was.better) != (now.unit, now.scale, now.better):
            continue
        if now.scale == "exact":
            if now.value != was.value:
                share = f"{format_change(now.value / was.value - 1)} " if was.value > 0 else ""
                rows.append((name, now.metric, *quantity_texts(now.metric, (was.value, now.value)), share + _COUNTED))
            continue
        if math.isfinite(was.value) and math.isfinite(now.value):
            change = _change(was, now, new) if comparable else NOTHING
            rows.append((name, now.metric, *format_values((was.value, now.value), now.unit), change))
    return rows


def _differs(old: Result, new: Result) -> bool:
    """Whether a gated count differs."""
    return any(row[-1].endswith(_COUNTED) for row in _rows("", old, new, comparable=False))


def _change(was: Series, now: Series, new: Result) -> str:
    """The change with its interval, as of a run beside a stored baseline of which no noise was learned."""
    step = find(new, "step_time")
    seconds = None if step is None else step.series.value
    spread = spread_between_runs(now, new.measurement.environment, seconds)
    ours, theirs = _finite(now.samples), _finite(was.samples)
    if not (ours and theirs):
        return NOTHING
    found = intervals.change(
        ours,
        theirs,
        scale=now.scale,
        between_runs=spread.sd,
        between_df=spread.df,
        drift=drift_of(now),
        outliers=outlying_end(now.rules, now.better),
    )
    if found is None:
        return NOTHING
    interval, text = intervals.interval_at(found, _ALPHA), partial(_signed, now, was)
    ends = "" if interval is None else f" [{text(interval.low)} .. {text(interval.high)}]"
    return text(found.estimate) + ends


def _signed(now: Series, was: Series, change: float) -> str:
    if now.scale == "ratio":
        return format_change(change)
    return format_difference(change, now.unit, (was.value, now.value))


def _finite(samples: Sequence[float]) -> list[float]:
    return [sample for sample in samples if math.isfinite(sample)]
