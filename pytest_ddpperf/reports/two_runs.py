"""Two results documents beside each other: how far each metric of each benchmark differs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TypeAlias

from pytest_ddpperf.baselines.fingerprint import differences
from pytest_ddpperf.metrics.scaling import EFFICIENCY, SPEEDUP
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.counts import quantity_texts
from pytest_ddpperf.records.measurement import Series
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.documents.judged import results_of
from pytest_ddpperf.reports.documents.results import MetricData, ResultData, ResultsData
from pytest_ddpperf.reports.names import names_of
from pytest_ddpperf.reports.phrases import NOISY, commit_text, find, is_noisy
from pytest_ddpperf.reports.table import NOTHING, Table
from pytest_ddpperf.stats import intervals
from pytest_ddpperf.units import format_change, format_count, format_difference, format_values

_ALPHA = 0.05
_COUNTED = "[counted]"  # in place of an interval
_QUOTIENTS = {EFFICIENCY, SPEEDUP}  # of step times
_PLACE = ("first", "second")  # of the two runs
BenchmarkKey: TypeAlias = "tuple[str, str, int]"
_MEANING = (
    "no verdict: an interval holds what launches scatter by, not what changed on the machine between both runs; for a "
    "verdict give --ddpperf-against"
)
_ANEW = "step_time is the mean of all steps, computed anew from the steps of both files: {} from before it was that"


@dataclass(frozen=True, kw_only=True, slots=True)
class TwoRunsRow:
    """A metric of a benchmark that both runs have."""

    benchmark: str  # a short name
    metric: str
    before: str
    after: str
    values: tuple[float, float]  # both as numbers
    change: str
    drawn: tuple[float, float, float] | None = None  # the change and the ends of its interval, as fractions
    key: BenchmarkKey  # of the benchmark


def two_runs_table(before: ResultsData, after: ResultsData) -> Table:
    """A row for each gated metric that both runs have; of counts those that differ, and these benchmarks first.

    The step time comes first.
    """
    rows, notes = two_runs(before, after)
    return Table(
        title=f"{_run(before)} -> {_run(after)}",
        headers=("benchmark", "metric", "before", "after", "change [95 % CI]"),
        rows=tuple((row.benchmark, row.metric, row.before, row.after, row.change) for row in rows),
        notes=tuple(notes),
        left=2,
        right=0,
    )


def two_runs(before: ResultsData, after: ResultsData) -> tuple[list[TwoRunsRow], list[str]]:
    """The rows, and what is to be said of them all."""
    typical = [_is_typical(each) for each in (before, after)]
    old, new = ({_key(result): result for result in results_of(each)} for each in alike(before, after))
    both = [result for key, result in new.items() if key in old]
    names = dict(zip(map(_key, both), names_of(both), strict=True))
    rows: list[TwoRunsRow] = []
    notes: list[str] = []
    same: list[str] = []
    for key, name in sorted(names.items(), key=lambda each: not _differs(old[each[0]], new[each[0]])):
        obstacle = _obstacle(old[key], new[key])
        told = _rows(name, old[key], new[key], comparable=not obstacle)
        rows += told
        same += [] if told else [name]
        if obstacle:
            notes.append(f"{name}: times are not compared: {', '.join(obstacle)}")
    if any(typical) and any(row.metric == STEP_TIME for row in rows):
        notes.append(_ANEW.format("both files are" if all(typical) else f"the {_PLACE[typical.index(True)]} file is"))
    if same:
        notes.append(f"no gated metric of {format_count(len(same), 'benchmark')} differs: {', '.join(same)}")
    for which, (here, there) in zip(_PLACE, ((old, new), (new, old)), strict=True):
        if alone := [result for key, result in here.items() if key not in there]:
            notes.append(f"only in the {which} run: {', '.join(names_of(alone))}")
    return rows, [*notes, *([_MEANING] if rows else []), *([] if names else ["no benchmark is in both runs"])]


def _key(result: Result) -> BenchmarkKey:
    return result.test, result.name, result.measurement.world_size


def alike(before: ResultsData, after: ResultsData) -> tuple[ResultsData, ResultsData]:
    """Both documents, with step times that are the mean of all steps, if those of either are not.

    Quotients of step times are left out if those of one of them alone are not.
    """
    typical = [_is_typical(each) for each in (before, after)]
    if not any(typical):
        return before, after
    first, second = (
        ResultsData(**{**vars(each), "results": [_anew(one, both=all(typical)) for one in each.results]})
        for each in (before, after)
    )
    return first, second


def _is_typical(document: ResultsData) -> bool:
    """Whether times in it are those of the usual steps, as in files from before they were those of all steps."""
    return any(metric.paired is None for result in document.results for metric in result.metrics.values())


def _anew(result: ResultData, *, both: bool) -> ResultData:
    """The result with a step time that is the mean of all of its steps; ``both``: whether those of neither file are."""
    samples = [fmean(times) for times in result.step_times if times]
    metrics = {name: one for name, one in result.metrics.items() if both or name not in _QUOTIENTS}
    if samples and STEP_TIME in result.metrics:
        told = {"samples": samples, "value": fmean(samples), "interval": None}
        metrics[STEP_TIME] = MetricData(**{**vars(result.metrics[STEP_TIME]), **told})
    return ResultData(**{**vars(result), "metrics": metrics})


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


def _rows(name: str, old: Result, new: Result, *, comparable: bool) -> list[TwoRunsRow]:
    rows = []
    for comparison in sorted(new.comparisons, key=lambda each: each.series.metric != STEP_TIME):
        now, other = comparison.series, find(old, comparison.series.metric)
        if other is None or not now.gated or now.rules.repeats_step_time:
            continue
        was = other.series
        if (was.unit, was.scale, was.better) != (now.unit, now.scale, now.better):
            continue
        values = (was.value, now.value)
        made = partial(TwoRunsRow, benchmark=name, metric=now.metric, values=values, key=_key(new))
        if now.scale == "exact":
            if now.value != was.value:
                share = f"{format_change(now.value / was.value - 1)} " if was.value > 0 else ""
                then, here = quantity_texts(now.metric, values)
                rows.append(made(before=then, after=here, change=share + _COUNTED))
            continue
        if all(map(math.isfinite, values)):
            change, drawn = _change(was, now) if comparable else (NOTHING, None)
            then, here = format_values(values, now.unit)
            rows.append(made(before=then, after=here, change=change, drawn=drawn))
    return rows


def _differs(old: Result, new: Result) -> bool:
    """Whether a gated count differs."""
    return any(row.change.endswith(_COUNTED) for row in _rows("", old, new, comparable=False))


def _change(was: Series, now: Series) -> tuple[str, tuple[float, float, float] | None]:
    """The change with its interval in words, and of a ratio in numbers, too."""
    ours, theirs = _finite(now.samples), _finite(was.samples)
    if not (ours and theirs):
        return NOTHING, None
    found = intervals.change(ours, theirs, scale=now.scale)
    if found is None:
        return NOTHING, None
    interval, text = intervals.interval_at(found, _ALPHA), partial(_signed, now, was)
    ends = "" if interval is None else f" [{text(interval.low)} .. {text(interval.high)}]"
    if interval is not None and now.scale == "ratio" and is_noisy(interval):
        ends = f" ({NOISY})"
    low, high = (found.estimate, found.estimate) if interval is None else (interval.low, interval.high)
    return text(found.estimate) + ends, (found.estimate, low, high) if now.scale == "ratio" else None


def _signed(now: Series, was: Series, change: float) -> str:
    if now.scale == "ratio":
        return format_change(change)
    return format_difference(change, now.unit, (was.value, now.value))


def _finite(samples: Sequence[float]) -> list[float]:
    return [sample for sample in samples if math.isfinite(sample)]
