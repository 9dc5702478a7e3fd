"""The page of two runs beside each other."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from pytest_ddpperf.reports.charts.chart import filled
from pytest_ddpperf.reports.charts.of_benchmark import launches, phase_change
from pytest_ddpperf.reports.document import replaced
from pytest_ddpperf.reports.documents.results import MetricData, ResultData, ResultsData
from pytest_ddpperf.reports.formats.page.benchmark import environment_facts
from pytest_ddpperf.reports.formats.page.page import Page, PageEntry, PageRow, PageSection, html_of
from pytest_ddpperf.reports.table import Table
from pytest_ddpperf.reports.two_runs import TwoRunsRow, two_runs
from pytest_ddpperf.units import format_count

_SIDES = ("before", "after")


def two_runs_page(before: ResultsData, after: ResultsData) -> str:
    """Returns how far each metric differs, and the launches and phases of both runs for each benchmark."""
    table, rows = two_runs(before, after)
    by_benchmark = [(key, list(group)) for key, group in groupby(rows, attrgetter("key"))]
    places = {key: place for place, (key, _) in enumerate(by_benchmark)}
    return html_of(
        Page(
            title="ddpperf: " + table.title.replace("->", "\u2192"),  # an arrow that no line is broken in
            lines=table.notes,
            noun="metric",
            headers=table.headers,
            left=2,
            rows=tuple(
                PageRow(
                    cells=row.cells,
                    entry=places[row.key],
                    change=row.drawn,
                    search=" ".join(map(str, row.key)),
                    numbers=dict(enumerate(row.values, start=2)),
                )
                for row in rows
            ),
            entries=tuple(_entry(before, after, group, table.headers[1:]) for _, group in by_benchmark),
        )
    )


def _entry(before: ResultsData, after: ResultsData, rows: list[TwoRunsRow], headers: tuple[str, ...]) -> PageEntry:
    """A benchmark in both runs."""
    test, name, ranks = rows[0].key
    old, new = (_found(document, rows[0]) for document in (before, after))
    metrics = {name: _beside(metric, old.metrics.get(name)) for name, metric in new.metrics.items()}
    both = replaced(new, metrics=metrics, against=None)
    made = {"launches": launches(both, _SIDES), "phase_change": phase_change(both, _SIDES)}
    charts = tuple(replace(chart, kind=kind) for kind, charts in made.items() for chart in filled(charts))
    changes = Table(
        title="metrics that decide, and counts that differ",
        headers=headers,
        rows=tuple(row.cells[1:] for row in rows),
        right=0,
    )
    environments = [
        document.environments.get(data.environment_key, document.environment)
        for document, data in ((before, old), (after, new))
    ]
    facts = [{} if environment is None else environment_facts(environment) for environment in environments]
    machines = Table(
        title="environments",
        headers=("fact", *_SIDES),
        rows=tuple((fact, *(each.get(fact, "") for each in facts)) for fact in {**facts[0], **facts[1]}),
        left=3,
        right=0,
    )
    return PageEntry(
        title=f"{test} {name}, {format_count(ranks, 'rank')}",
        sections=(
            PageSection("Change", (changes,)),
            *([PageSection("Before and after", charts)] if charts else []),
            PageSection("Environment", (machines,)),
        ),
    )


def _found(document: ResultsData, row: TwoRunsRow) -> ResultData:
    """The benchmark in a document; of several with one name the last."""
    return next(data for data in reversed(document.results) if (data.test, data.name, data.world_size) == row.key)


def _beside(metric: MetricData, old: MetricData | None) -> MetricData:
    """The metric with that of the first run as its baseline."""
    value, samples = (None, []) if old is None else (old.value, old.samples)
    return replaced(metric, baseline=value, baseline_samples=samples, paired=False)
