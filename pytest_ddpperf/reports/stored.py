"""Stored baselines in words: as tables, for the command line, and what changed in one that was saved."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.baselines.codec import BaselineFile
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.baselines.store import SavedRecord
from pytest_ddpperf.judge.decision import decide_count
from pytest_ddpperf.records.counts import quantity_texts
from pytest_ddpperf.records.measurement import Series
from pytest_ddpperf.records.results import BaselineRecord
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.count_changes import difference_text
from pytest_ddpperf.reports.phrases import commit_text, confidence_text, counts_origin, environment_text
from pytest_ddpperf.reports.table import NOTHING, Table
from pytest_ddpperf.units import format_change, format_count, format_difference, format_value, format_values, scale


def list_table(files: Sequence[BaselineFile]) -> Table:
    """One row for each stored record: test, variant, environment, origin, step time."""
    return Table(
        headers=("test", "variant", "environment", "date", "commit", "step time"),
        rows=tuple(
            (file.test, r.name, environment_key(r.environment), r.date, _commit(r), _step_time(r))
            for file in files
            for r in file.records
        ),
        left=5,
        right=0,
        narrower=("commit", "date"),
    )


def record_table(test: str, record: BaselineRecord) -> Table:
    """All metrics of one record, with their intervals; its title tells what was measured where and when."""
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
    return Table(
        title="\n".join(filter(None, facts)),
        headers=("metric", "value", interval, "samples", "better", "gated"),
        rows=tuple(_metric_row(series) for series in record.series),
        right=2,
    )


def _metric_row(series: Series) -> tuple[str, ...]:
    common = scale([series.value], series.unit)
    interval = NOTHING
    if series.interval is not None:
        interval = f"{common.number(series.interval.low)} .. {common.number(series.interval.high)}"
    gated = "yes" if series.gated else "no"
    return (series.metric, common.text(series.value), interval, str(len(series.samples)), series.better, gated)


def _plan(record: BaselineRecord) -> str:
    launches = format_count(len(record.steps), "launch")
    return f"{launches} x {format_count(record.plan.steps, 'step')} after {record.plan.warmup} of warm-up"


def _commit(record: BaselineRecord) -> str:
    return commit_text(record.commit, dirty=record.dirty) if record.commit else NOTHING


def _step_time(record: BaselineRecord) -> str:
    found = [series for series in record.series if series.metric == "step_time"]
    return format_value(found[0].value, found[0].unit) if found else NOTHING


def saved_lines(saved: SavedRecord, place: str) -> list[str]:
    """What a reviewer of the file at ``place`` needs to know: each gated time, and of the counts those that changed."""
    old, new = saved.old, saved.new
    replaced = "" if old is None else f", replacing that of {old.date}"
    if old is not None and _times(new) and _times(old) == _times(new):
        replaced = f", its counts replaced, its times kept as of {old.date}"
    return [f"{place}: {new.name}{replaced}", *(f"  {change}" for change in _changes(saved))]


def _times(record: BaselineRecord) -> tuple[Series, ...]:
    return tuple(series for series in record.series if series.scale != "exact")


def _changes(saved: SavedRecord) -> list[str]:
    """Each gated time that was measured, the counts that changed, and how many others there are."""
    old, new = saved.old, saved.new
    before = {series.metric: series for series in old.series} if old else {}
    changes, added, kept = [], 0, 0
    for series in new.series:
        was = before.get(series.metric)
        if not series.gated:
            continue
        if series.scale != "exact":
            changes += [f"{series.metric} {_change(was, series)}"] if was != series else []
        elif was is None or old is None:
            added += 1
        elif change := _count_change(was, series, old, new):
            changes.append(f"{series.metric} {change}")
        else:
            kept += 1
    return [
        *changes,
        *([f"{format_count(added, 'count')} new"] if added else []),
        *([f"{format_count(kept, 'count')} as before"] if kept else []),
    ]


def _count_change(was: Series, series: Series, old: BaselineRecord, new: BaselineRecord) -> str:
    """How a count changed; empty where it did not."""
    if was.value != series.value:
        return " -> ".join(quantity_texts(series.metric, (was.value, series.value)))
    if old.counts is None or new.counts is None:
        return ""
    if decide_count(series.metric, old.counts, new.counts) is Verdict.UNCHANGED:
        return ""
    return "; ".join(difference_text(series.metric, old.counts, new.counts))


def _change(was: Series | None, series: Series) -> str:
    if was is None or was.unit != series.unit:
        return f"new: {format_value(series.value, series.unit)}"
    if series.scale == "ratio" and was.value > 0:
        change = format_change(series.value / was.value - 1)
    else:
        change = format_difference(series.value - was.value, series.unit)
    return f"{' -> '.join(format_values((was.value, series.value), series.unit))} ({change})"
