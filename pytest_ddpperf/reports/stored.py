"""Stored baselines in words: as tables, for the command line, and what changed in one that was saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from pytest_ddpperf.baselines.codec import BaselineFile
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.baselines.store import SavedRecord
from pytest_ddpperf.judge.decision import decide_count
from pytest_ddpperf.records.counts import quantity_texts
from pytest_ddpperf.records.measurement import Series
from pytest_ddpperf.records.results import BaselineRecord, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.count_changes import difference_text
from pytest_ddpperf.reports.lines import CUT, INDENT, clipped, printable, shortened, whom, wrapped
from pytest_ddpperf.reports.names import names_of
from pytest_ddpperf.reports.outputs import Stored
from pytest_ddpperf.reports.phrases import (
    NOISY,
    commit_text,
    confidence_text,
    counts_origin,
    environment_text,
    named_metrics,
)
from pytest_ddpperf.reports.table import NOTHING, Table
from pytest_ddpperf.units import (
    format_change,
    format_count,
    format_difference,
    format_value,
    format_values,
    scale,
    span,
)

_NEWS = 0.01  # of a time or of memory: what changes by less is as before


def list_tables(files: Sequence[BaselineFile]) -> list[Table]:
    """A table for each environment, a row for each record: test, variant, origin; step time where any has one."""
    records: dict[str, list[tuple[str, BaselineRecord]]] = {}
    for file in files:
        for record in file.records:
            records.setdefault(environment_key(record.environment), []).append((file.test, record))
    return [_list_table(key, records[key]) for key in sorted(records)]


def _list_table(key: str, records: Sequence[tuple[str, BaselineRecord]]) -> Table:
    times = [_step_time(record) for _, record in records]
    timed = set(times) != {NOTHING}
    number = format_count(len(records), "baseline") + ("" if timed else " of counts alone")
    rows = [(test, record.name, record.date, _commit(record)) for test, record in records]
    return Table(
        title=f"{key}: {number}",
        headers=("test", "variant", "date", "commit", *(["step time"] if timed else [])),
        rows=tuple((*row, time) for row, time in zip(rows, times, strict=True)) if timed else tuple(rows),
        left=4,
        right=0,
        narrower=("commit", "date"),
    )


def record_table(test: str, record: BaselineRecord) -> Table:
    """All metrics of one record, gated ones first; its title tells what was measured where and when.

    Columns that no metric fills are left out.
    """
    levels = sorted({series.interval.confidence for series in record.series if series.interval is not None})
    interval = ", ".join(["interval", *map(confidence_text, levels)])
    strategy = ", ".join(
        (
            f"strategy {record.strategy}",
            *(f"{name} {value}" for name, value in record.recipe.items()),
            *(() if record.mode is None else (f"{record.mode} scaling",)),
        )
    )
    facts = (
        f"{test}: {record.name}",
        f"{strategy}, {format_count(record.environment.world_size, 'rank')}; {_plan(record)}",
        f"saved {record.date} at commit {_commit(record)} as {environment_key(record.environment)}",
        counts_origin(record),
        environment_text(record.environment),
        ", ".join(f"{name} {value}" for name, value in sorted(record.environment.recorded.items())),
    )
    rows = [_metric_row(series) for series in sorted(record.series, key=lambda series: not series.gated)]
    timed = bool(record.steps)
    return Table(
        title="\n".join(filter(None, facts)),
        headers=("metric", "value", *([interval, "launches"] if timed else []), "better", "gated"),
        rows=tuple(rows if timed else [(*row[:2], *row[4:]) for row in rows]),
        right=2,
    )


def _metric_row(series: Series) -> tuple[str, ...]:
    common = scale([series.value], series.unit)
    interval = NOTHING
    if series.interval is None and series.scale != "exact" and len(series.samples) > 1:
        interval = NOISY
    elif series.interval is not None:
        interval = f"{common.number(series.interval.low)} .. {common.number(series.interval.high)}"
    samples = NOTHING if series.scale == "exact" else str(len(series.samples))
    gated = "yes" if series.gated else "no"
    value = quantity_texts(series.metric, (series.value,))[0] if series.scale == "exact" else common.text(series.value)
    return (series.metric, value, interval, samples, series.better, gated)


def _plan(record: BaselineRecord) -> str:
    if not record.steps:
        return "counts alone"
    launches = format_count(len(record.steps), "launch")
    return f"{launches} x {format_count(record.plan.steps, 'step')} after {record.plan.warmup} of warm-up"


def _commit(record: BaselineRecord) -> str:
    return commit_text(record.commit, dirty=record.dirty) if record.commit else NOTHING


def _step_time(record: BaselineRecord) -> str:
    found = [series for series in record.series if series.metric == "step_time"]
    return format_value(found[0].value, found[0].unit) if found else NOTHING


def stored_lines(stored: Stored, width: int | None = None) -> list[str]:
    """How many baselines were saved where, what changed in each in a line of its own, and what was not stored."""
    others = (stored.unfit, stored.removed)
    results = [*(result for result, _ in stored.saved), *(result for each in others for result in each)]
    names = names_of(results)
    failed = [test.partition("::")[2] for test in sorted(stored.failed)]
    short = {} if width is None else shortened([*names, *failed], width // 3)
    changed = [(name, _changes(saved)) for name, (_, saved) in zip(names, stored.saved, strict=False)]
    ends = list(accumulate(map(len, others), initial=len(stored.saved)))
    unfit, removed = (
        whom(those, len(results), short, width) if (those := names[begin:end]) else "" for begin, end in pairwise(ends)
    )
    left_out = {
        "does not fit into memory, so a baseline stays without --ddpperf-force-save": unfit,
        "does not fit into memory, and its baseline is removed": removed,
        "failed, so not stored": named_metrics([short.get(name, name) for name in failed]),
    }
    why = stored.without_commit
    alone = [f"they name no commit, and times can be compared with stored ones alone: {why}"] * bool(why)
    return [
        *wrapped([*_places(stored.saved), *alone], width),
        *(_fitting(f"{INDENT}{short.get(name, name)}: ", changes, width) for name, changes in changed if changes),
        *(line for why, who in left_out.items() if who for line in clipped(f"{why}: {who}", width)),
    ]


def _places(saved: Sequence[tuple[Result, SavedRecord]]) -> list[str]:
    """For each folder how many baselines were saved there, and what they replace."""
    folders: dict[Path, list[SavedRecord]] = {}
    for _, each in saved:
        folders.setdefault(each.file.parents[1], []).append(each)
    return [
        f"{format_count(len(each), 'baseline')} saved in {folder}: {', '.join(_replaced(each))}"
        for folder, each in folders.items()
    ]


def _replaced(saved: Sequence[SavedRecord]) -> list[str]:
    """How many are new, how many replace older ones, and of how many nothing but counts does."""
    kinds: dict[str, list[str]] = {"{} new": [], "{} in place of {}": [], "{} with new counts and the times of {}": []}
    first, replaced, counted = kinds.values()
    for each in saved:
        old, new = each.old, each.new
        if old is None:
            first.append(new.date)
        elif _times(new) and _times(old) == _times(new):
            counted.append(old.date)
        else:
            replaced.append(old.date)
    return [text.format(len(dates), span(str, dates)) for text, dates in kinds.items() if dates]


def _fitting(before: str, changes: Sequence[str], width: int | None) -> str:
    """As many changes as one line has room for, and the number of the others."""
    line = ""
    for told in range(len(changes), 0, -1):
        more = [f"{len(changes) - told} more"] if told < len(changes) else []
        line = printable(before + "; ".join([*changes[:told], *more]))
        if width is None or len(line) <= width:
            return line
    return line if width is None else line[: width - len(CUT)] + CUT


def _times(record: BaselineRecord) -> tuple[Series, ...]:
    return tuple(series for series in record.series if series.scale != "exact")


def _changes(saved: SavedRecord) -> list[str]:
    """What changed in a baseline, what became worse by most first: gated metrics by more than noise, and counts."""
    old, new = saved.old, saved.new
    # Times of the usual steps are another quantity.
    before = {each.metric: each for each in old.series if not (old.typical and each.drifts)} if old else {}
    gated = [(was, series) for series in new.series if series.gated and (was := before.get(series.metric)) is not None]
    steps = any(series.metric == "step_time" and _is_news(was, series) for was, series in gated)
    return [
        f"{series.metric} {change}"
        for was, series in sorted(gated, key=_improvement)
        if not (steps and series.rules.repeats_step_time)
        if (change := _change(was, series, old, new))
    ]


def _improvement(sides: tuple[Series, Series]) -> float:
    """By what share of its old value a metric became better; negative where it became worse."""
    was, now = sides
    worse = now.value - was.value if now.better == "lower" else was.value - now.value
    if worse and not was.value:
        return -math.inf if worse > 0 else math.inf
    return round(-worse / abs(was.value), 2) if was.value else 0.0  # about as much: in the order of metrics


def _change(was: Series, series: Series, old: BaselineRecord | None, new: BaselineRecord) -> str:
    """How a metric changed; empty where it did not."""
    if series.scale != "exact":
        return _change_of_time(was, series) if _is_news(was, series) else ""
    if was.value != series.value:
        return " -> ".join(quantity_texts(series.metric, (was.value, series.value)))
    if old is None or old.counts is None or new.counts is None:
        return ""
    if decide_count(series.metric, old.counts, new.counts) is Verdict.UNCHANGED:
        return ""
    return "; ".join(difference_text(series.metric, old.counts, new.counts))


def _is_news(was: Series, series: Series) -> bool:
    return was.unit != series.unit or abs(series.value - was.value) >= _NEWS * abs(was.value)


def _change_of_time(was: Series, series: Series) -> str:
    if was.unit != series.unit:
        return f"new: {format_value(series.value, series.unit)}"
    if series.scale == "ratio" and was.value > 0:
        change = format_change(series.value / was.value - 1)
    else:
        change = format_difference(series.value - was.value, series.unit, (series.value, was.value))
    return f"{' -> '.join(format_values((was.value, series.value), series.unit))} ({change})"
