"""Describes stored baselines: tables for the command line, and lines on the baselines that a run has saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_ddpperf.baselines.codec import BaselineFile
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.baselines.store import SavedRecord
from pytest_ddpperf.records.counts import quantity_texts
from pytest_ddpperf.records.measurement import Series
from pytest_ddpperf.records.results import BaselineRecord
from pytest_ddpperf.reports import phrases
from pytest_ddpperf.reports.lines import some_of, whom, with_names, wrapped
from pytest_ddpperf.reports.outputs import Stored
from pytest_ddpperf.reports.table import NOTHING, Column, Table, table_of
from pytest_ddpperf.units import format_count, format_value, scale, span


def list_tables(files: Sequence[BaselineFile]) -> list[Table]:
    """Returns a table for each environment, with a row for each record: test, variant, origin, and step time if any."""
    records: dict[str, list[tuple[str, BaselineRecord]]] = {}
    for file in files:
        for record in file.records:
            records.setdefault(environment_key(record.environment), []).append((file.test, record))
    columns: dict[str, Column[tuple[str, BaselineRecord]]] = {
        "test": lambda each: each[0],
        "variant": lambda each: each[1].name,
        "date": lambda each: each[1].date,
        "commit": lambda each: _commit(each[1]),
        "step time": lambda each: "".join(
            format_value(series.value, series.unit) for series in each[1].series if series.metric == "step_time"
        ),
    }
    tables = []
    for key, several in sorted(records.items()):
        table = table_of(several, columns, every=False, left=4, right=0)
        alone = "" if "step time" in table.headers else " of counts alone"
        tables.append(replace(table, title=f"{key}: {format_count(len(several), 'baseline')}{alone}"))
    return tables


def record_table(test: str, record: BaselineRecord) -> Table:
    """Returns a table of all metrics of one record, gated ones first, without empty columns."""
    levels = sorted({series.interval.confidence for series in record.series if series.interval is not None})
    interval = ", ".join(["interval", *map(phrases.confidence_text, levels)])
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
        phrases.counts_origin(record),
        phrases.environment_text(record.environment),
        ", ".join(f"{name} {value}" for name, value in sorted(record.environment.recorded.items())),
    )
    columns: dict[str, Callable[[Series], str]] = {
        "metric": lambda series: series.metric,
        "value": lambda series: (
            quantity_texts(series.metric, (series.value,))[0]
            if series.scale == "exact"
            else format_value(series.value, series.unit)
        ),
        interval: lambda series: _interval(series) if record.timed else "",
        "launches": lambda series: str(len(series.samples)) if record.timed and series.scale != "exact" else "",
        "better": lambda series: series.better,
        "gated": lambda series: "yes" if series.gated else "no",
    }
    gated_first = sorted(record.series, key=lambda series: not series.gated)
    return table_of(gated_first, columns, every=False, title="\n".join(filter(None, facts)), right=2)


def _interval(series: Series) -> str:
    common = scale([series.value], series.unit)
    if series.interval is not None:
        return f"{common.number(series.interval.low)} .. {common.number(series.interval.high)}"
    return phrases.NOISY if series.scale != "exact" and len(series.samples) > 1 else ""


def _plan(record: BaselineRecord) -> str:
    if not record.timed:
        return "counts alone"
    most = max(len(series.samples) for series in record.series if series.scale != "exact")
    launches = format_count(most, "launch")
    return f"{launches} x {format_count(record.plan.steps, 'step')} after {record.plan.warmup} of warm-up"


def _commit(record: BaselineRecord) -> str:
    return phrases.commit_text(record.commit, dirty=record.dirty) if record.commit else NOTHING


def stored_lines(stored: Stored, width: int | None = None) -> list[str]:
    """Returns a line on the saved baselines of each folder, and lines on the reasons why others were not saved."""
    folders: dict[Path, list[SavedRecord]] = {}
    for _, each in stored.saved:
        folders.setdefault(each.file.parents[1], []).append(each)
    saved = [
        f"{format_count(len(each), 'baseline')} saved in {folder}: {', '.join(_replaced(each))}"
        for folder, each in folders.items()
    ]
    why = stored.without_commit
    alone = [f"no commit has the code of these baselines, so later runs compare only stored times: {why}"] * bool(why)
    of = len(stored.saved) + len(stored.unfit) + len(stored.removed)
    unfit, removed = ([name for name, _ in with_names(each)] for each in (stored.unfit, stored.removed))
    left_out = {
        "does not fit into memory, and its baseline is kept (--ddpperf-force-save removes it)": whom(unfit, of),
        "does not fit into memory, and its baseline is removed": whom(removed, of),
        "failed, so not stored": some_of([test.partition("::")[2] for test in sorted(stored.failed)]),
    }
    others = [f"{why}: {names}" for why, names in left_out.items() if names]
    return [*wrapped([*saved, *alone], width), *wrapped(others, width, clipped=True)]


def _replaced(saved: Sequence[SavedRecord]) -> list[str]:
    """Returns texts with the numbers of new baselines, of replaced ones, and of baselines with only new counts."""
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


def _times(record: BaselineRecord) -> tuple[Series, ...]:
    return tuple(series for series in record.series if series.scale != "exact")
