"""The report as one HTML page for a browser, without other files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

import msgspec

from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.launch.messages import grouped
from pytest_ddpperf.records.counts import COUNTS, Counts
from pytest_ddpperf.records.finding import Diagnosis
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports import breakdown, phrases
from pytest_ddpperf.reports.calls import call_tables
from pytest_ddpperf.reports.charts.chart import Chart
from pytest_ddpperf.reports.charts.of_run import charts_of
from pytest_ddpperf.reports.diagnosis import advice_text, cause_text, diagnosis_text
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.findings import finding_text
from pytest_ddpperf.reports.formats.page import Block, Page, PageRow, Sections, html_of
from pytest_ddpperf.reports.remarks import all_findings, facts_line, headline, reasons, red_lines, run_lines
from pytest_ddpperf.reports.summary import summary_table, worst_first
from pytest_ddpperf.reports.table import Quantity, Table, table_of
from pytest_ddpperf.units import format_count, format_number, significant

_CURVES: Mapping[str, Sequence[str]] = {
    "Scaling": ("speedup", "efficiency", "rank_throughput"),
    "Variants": ("throughput",),
    "Sizes of buckets": ("bucket_sizes",),
    "Convergence": ("convergence",),
    "Epochs": ("epoch_time",),
}
"""The names of charts that show several benchmarks, by the title of their section of the page."""
_PARTS = 12  # of a count, the largest ones


def html(run: Run, *, title: str = "", compared: Table | None = None) -> str:
    """Returns the HTML page of a run: verdict, reasons of failures, a table, and sections on benchmarks.

    ``title``: a title in place of the verdict. ``compared``: a table that compares the run with another run.
    """
    table, charts = summary_table(run.results), charts_of(run)
    notes = compared.notes if compared else ()
    return html_of(
        Page(
            title=title or f"ddpperf: {headline(run)}",
            facts=tuple(facts_line(run).split("; ")) if run.results else (),
            lines=(*run_lines(run), *notes),
            headers=table.headers[:-1],
            rows=tuple(_rows(run, table, charts)),
            notes=(*table.notes, *(f"{word}: {meaning}" for word, meaning in table.legend.items())),
            sections=_shared(run, charts, compared),
        )
    )


def _rows(run: Run, table: Table, charts: Sequence[Chart]) -> Iterator[PageRow]:
    places = {id(result): i for i, result in enumerate(run.results)}
    for result, cells in zip(worst_first(run.results), table.rows, strict=True):
        step = phrases.find(result, "step_time")
        drawn = None
        shown = step is not None and step.series.scale == "ratio" and step.verdict is not Verdict.INCOMPATIBLE
        if step is not None and step.change is not None and shown:
            ends = step.change_interval
            drawn = (step.change, *((step.change, step.change) if ends is None else (ends.low, ends.high)))
        yield PageRow(
            title=f"{result.test} {result.name}, {format_count(result.measurement.world_size, 'rank')}",
            cells=cells[:-1],
            verdict=result.verdict.value.replace("_", " "),
            verdict_text=cells[-1],
            severity=result.severity,
            reasons=tuple(red_lines(result)) if result.red else (),
            change=drawn,
            tolerance=None if step is None or drawn is None else step.tolerance,
            sections=_of_benchmark(result, [one for one in charts if one.benchmark == places[id(result)]]),
        )


def _shared(run: Run, charts: Sequence[Chart], compared: Table | None) -> Sections:
    parts: dict[str, list[Block]] = {"Both runs": [replace(compared, notes=())] if compared else []}
    parts |= {title: _drawn(charts, kinds) for title, kinds in _CURVES.items()}
    parts |= {"Phases": [breakdown.phase_table(run.results)], "Notes": [tuple(all_findings(run.results))]}
    for title, tables in call_tables(run.batch_sizes, run.convergences, run.predictions, run.advice).items():
        parts.setdefault(title.capitalize(), []).extend(tables)
    return parts


def two_runs_page(after: Run, both: Sequence[Result], table: Table) -> str:
    """Returns a page that compares the run ``after`` with an earlier run.

    ``both``: the benchmarks of both runs, with the earlier run as the reference. ``table``: a table of the differences.
    """
    title = "ddpperf: " + table.title.replace("->", "\u2192")  # an arrow that no line is broken in
    return html(msgspec.structs.replace(after, results=tuple(both), common_change=None), title=title, compared=table)


def _of_benchmark(result: Result, charts: Sequence[Chart]) -> Sections:
    measured, diagnosis = result.measurement, result.step.diagnosis
    exact = [each for each in result.comparisons if each.series.scale == "exact"]
    others = [each for each in result.comparisons if each.series.scale != "exact"]
    environment = measured.environment
    recorded = {name.replace("_", " "): text for name, text in sorted(environment.recorded.items()) if text}
    return {
        "Verdict": [tuple(reasons(result))],
        "Notes": [() if result.verdict is Verdict.BROKEN else phrases.findings(result)],
        "Change": [_changes(result, others, "metrics, first those that can fail the test")],
        "Distribution over launches": _drawn(charts, ("launches", "steps")),
        "Phases": _of_one(result, breakdown.phase_table, breakdown.section_table),
        "Memory": _drawn(charts, ("memory", "memory_phases")),
        "Counts": [
            _changes(result, exact, "counts of a step, first those that can fail the test"),
            _parts(measured.counts),
        ],
        "Communication": _of_one(result, breakdown.communication_table, breakdown.collective_table),
        "Diagnosis": [] if diagnosis is None else _diagnosis(diagnosis),
        "Environment": [{"machine": phrases.environment_text(environment), **recorded}, _health(measured.launches)],
        "Settings": [_settings(result)],
    }


def _drawn(charts: Sequence[Chart], kinds: Sequence[str]) -> list[Block]:
    return [chart for kind in kinds for chart in charts if chart.kind == kind]


def _changes(result: Result, comparisons: Sequence[Comparison], title: str) -> Table:
    judged = result.verdict is not Verdict.BROKEN  # else less work is no improvement
    exact = all(each.series.scale == "exact" for each in comparisons)
    notes = grouped((each.series.metric, finding_text(each.note)) for each in comparisons if each.note)
    return table_of(
        sorted(comparisons, key=lambda each: not each.gated),
        {
            "metric": lambda each: each.series.metric,
            "verdict": lambda each: (
                (each.verdict.value.replace("_", " ") + ", cannot fail the test" * (not each.gated)) * judged
            ),
            "value": phrases.values_text,
            "change": lambda each: (
                "" if exact else phrases.change_text(each) + phrases.MARK * bool(phrases.mean_change(each))
            ),
            "at most": phrases.bound_text,
            "tolerance": lambda each: (
                "" if exact or not each.gated or math.isinf(each.tolerance) else phrases.size_text(each.tolerance, each)
            ),
            "could have seen": lambda each: "" if exact or each.mde is None else phrases.size_text(each.mde, each),
        },
        every=False,
        title=title,
        notes=(
            *(f"{', '.join(names)}: {text}" for text, names in notes.items()),
            *phrases.meaning_of_mark(comparisons),
        ),
        left=2,
        right=0,
    )


def _parts(counts: Counts | None) -> Table:
    known = {} if counts is None else counts.details
    parts = [
        (metric, *part)
        for metric in COUNTS
        for part in sorted(known.get(metric, {}).items(), key=lambda each: -each[1])[:_PARTS]
        if len(known[metric]) > 1 or part[0] != metric
    ]
    return table_of(
        parts,
        {"count": itemgetter(0), "part": itemgetter(1), "in a step": lambda part: format_number(part[2])},
        title=f"parts of counts, at most {_PARTS} of each",
        left=2,
        right=0,
    )


def _of_one(result: Result, *makers: Callable[[Sequence[Result]], Table]) -> list[Block]:
    """Returns tables of one benchmark without the first column, which only repeats its name."""
    return [
        replace(each, headers=each.headers[1:], rows=tuple(row[1:] for row in each.rows), left=each.left - 1)
        for each in (make([result]) for make in makers)
    ]


def _diagnosis(found: Diagnosis) -> list[Block]:
    causes = table_of(
        found.causes,
        {
            "cause": lambda each: each.bottleneck.replace("_", " "),
            "time": Quantity(value=lambda each: each.seconds, unit="s"),
            "of the step": Quantity(value=lambda each: each.share, unit="%"),
            "evidence": cause_text,
        },
        title="causes; their shares add up to the step",
    )
    advice = tuple(f"{number}. {advice_text(each)}" for number, each in enumerate(found.advice, 1))
    return [(f"bound by {diagnosis_text(found)}",), causes, advice]


def _health(launches: Sequence[Launch]) -> Table:
    known = [(number, each.health.cpu) for number, each in enumerate(launches, 1) if each.health is not None]
    return table_of(
        known,
        {
            "launch": lambda one: str(one[0]),
            "others": Quantity(value=lambda one: one[1].others, unit="%"),
            "steal": Quantity(value=lambda one: one[1].steal, unit="%"),
            "throttled": Quantity(value=lambda one: one[1].throttled or None, unit="s"),
            "frequency GHz": lambda one: "" if one[1].frequency is None else significant(one[1].frequency / 1e9),
            "governor": lambda one: one[1].governor or "",
        },
        every=False,
        title="the processor during launches: time that other processes used or a hypervisor took",
        right=int(any(cpu.governor for _, cpu in known)),
    )


def _settings(result: Result) -> dict[str, str]:
    measured, baseline = result.measurement, result.baseline
    size = measured.effective_batch_size
    facts = {
        "test": result.test,
        "name": result.name,
        "strategy": measured.strategy,
        "scaling": measured.mode or "",
        "speedup over": measured.over or "",
        **measured.recipe,
        "ranks": str(measured.world_size),
        "samples of an optimizer step": "" if size is None else format_number(size),
        "launches": str(len(measured.launches)),
        "steps of a launch": f"{measured.plan.steps}, after {measured.plan.warmup} of warm-up",
        "interleaved with others": "yes" if measured.turns else "",
        "compared with": result.reference.origin,
        "baseline saved": "" if baseline is None else baseline.date,
        "environment key": environment_key(measured.environment),
        "time of the call": "" if result.spent is None else breakdown.time_text(result.spent),
    }
    return {name: text for name, text in facts.items() if text}
