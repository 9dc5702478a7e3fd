"""All that a run ends with on the terminal, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pytest_ddpperf.baselines.calibration import Calibrated
from pytest_ddpperf.instruments.memory import LABELS
from pytest_ddpperf.judge.detection import POWER
from pytest_ddpperf.metrics.table import RESIDENT
from pytest_ddpperf.records.batch_size import Search
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.breakdown import communication_table, phase_table
from pytest_ddpperf.reports.calibration import calibration_table
from pytest_ddpperf.reports.phrases import (
    environment_text,
    find,
    findings,
    headed,
    intervals_explained,
    labels_of,
    names_by_remark,
    variant_text,
    whom,
    with_interval,
)
from pytest_ddpperf.reports.remarks import verdict_remarks
from pytest_ddpperf.reports.table import NOTHING, Table, render, wrapped
from pytest_ddpperf.units import Scale, format_count, format_percent, format_values, scale, signed_percent

_MDE_MEANING = (
    f"MDE: the smallest slowdown that this run would have found in {format_percent(POWER)} of cases; "
    "unchanged: no worse by 5/3 of the tolerance"
)
_Column: TypeAlias = "tuple[str, Callable[[Result], str]]"  # header and cell
_MetricColumn: TypeAlias = "tuple[str, str, Callable[[Comparison, Scale], str]]"  # header, metric and cell


@dataclass(frozen=True, kw_only=True, slots=True)
class SummaryData:
    """What a run has to tell. Results, searches and calibrated benchmarks are in the order measured."""

    results: Sequence[Result] = ()
    searches: Sequence[Search] = ()  # for the largest batch
    calibrated: Sequence[Calibrated] = ()
    complaints: Sequence[str] = ()  # on the session itself
    stored: Sequence[str] = ()  # what became of baselines, a line each
    recorded: str = ""  # what became of the history; empty where there is none
    accepting: bool = False  # whether what was measured becomes the baseline
    here: str = ""  # the commit that was measured, as it is shown; empty where none is known


def summary_parts(
    summary: SummaryData, width: int | None = None, paint: Callable[[str], str] = str, *, brief: bool = False
) -> list[tuple[str, str]]:
    """Title and text of each part that has anything to say."""
    results = summary.results

    def rendered(table: Table | None) -> str:
        return "" if table is None else render(table, width, paint)

    parts = {
        "": rendered(summary_table(results, accepting=summary.accepting, here=summary.here)) if results else "",
        "phases": "" if brief else rendered(phase_table(results)),
        "communication": "" if brief else rendered(communication_table(results)),
        "batch sizes": "\n".join(wrapped([_batch_size_line(search) for search in summary.searches], width)),
        "calibration": rendered(calibration_table(summary.calibrated)) if summary.calibrated else "",
        "errors": "\n".join(summary.complaints),
        "baselines": "\n".join(wrapped(summary.stored, width)),
        "history": summary.recorded,
    }
    return [(f"ddpperf {title}".rstrip(), text) for title, text in parts.items() if text]


def summary_table(results: Sequence[Result], *, accepting: bool = False, here: str = "") -> Table:
    """One row for each benchmark: what was measured, how it changed, and the verdict.

    Columns that no benchmark fills (throughput without a number of samples, scaling efficiency) are left out.
    """
    labels = labels_of(results)
    columns: list[_Column] = [
        ("benchmark", lambda result: labels[result.test]),
        ("variant", variant_text),
        ("ranks", lambda result: str(result.measurement.world_size)),
        *(_metric_column(*column, results) for column in _metric_columns(results)),
        ("verdict", lambda result: _verdict(result, accepting=accepting)),
    ]
    machines = dict.fromkeys(environment_text(result.measurement.environment) for result in results)
    return Table(
        title="; ".join([*machines, *intervals_explained(_filled(results, "step_time"))]),
        headers=tuple(header for header, _ in columns),
        rows=tuple(tuple(cell(result) for _, cell in columns) for result in results),
        notes=(*_columns_explained(results, here), *_notes(results, labels, accepting=accepting)),
        left=2,
    )


def _metric_columns(results: Sequence[Result]) -> list[_MetricColumn]:
    """The columns that some benchmark fills: those of times, or of counts where nothing was timed."""
    speedup = any(result.measurement.over for result in results)
    timed: list[_MetricColumn] = [
        ("step time\n{unit}", "step_time", _value_with_interval),
        ("throughput\n{unit}", "throughput" if _filled(results, "throughput") else "token_throughput", _value),
        ("memory\n{unit}", "peak_allocated" if _filled(results, "peak_allocated") else RESIDENT, _value),
        ("eff.\n{unit}", "scaling_efficiency", _value),
        *([("speedup\n{unit}", "speedup", _value_with_interval)] if speedup else []),
        ("change\n%", "step_time", _change),
        ("MDE\n%", "step_time", _mde),
    ]
    counted: list[_MetricColumn] = [
        ("calls\n{unit}", "collective_calls", _whole),
        ("sent\n{unit}", "collective_send_bytes", _value),
        ("FLOPs\n{unit}", "flops", _value),
        ("peak\n{unit}", "peak_tensor_bytes", _value),
    ]
    columns = timed if _filled(results, "step_time") else counted
    return [(header, metric, cell) for header, metric, cell in columns if _filled(results, metric)]


def _filled(results: Sequence[Result], metric: str) -> list[Comparison]:
    return [comparison for result in results if (comparison := find(result, metric)) is not None]


def _metric_column(
    header: str, metric: str, cell: Callable[[Comparison, Scale], str], results: Sequence[Result]
) -> _Column:
    """A column in one unit, which fits all of its values."""
    filled = _filled(results, metric)
    common = scale([comparison.series.value for comparison in filled], filled[0].series.unit)

    def text(result: Result) -> str:
        comparison = find(result, metric)
        return NOTHING if comparison is None else cell(comparison, common)

    return header.format(unit=common.unit).rstrip(), text


def _value(comparison: Comparison, common: Scale) -> str:
    return common.number(comparison.series.value)


def _value_with_interval(comparison: Comparison, common: Scale) -> str:
    return with_interval(common.number, comparison.series.value, comparison.series.interval)


def _whole(comparison: Comparison, _common: Scale) -> str:
    value = comparison.series.value
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"  # a mean over several steps


def _change(step_time: Comparison, _common: Scale) -> str:
    if step_time.change is None:
        return NOTHING
    return with_interval(signed_percent, step_time.change, step_time.change_interval)


def _mde(step_time: Comparison, _common: Scale) -> str:
    if step_time.mde is None:
        return NOTHING
    return format_percent(step_time.mde).removesuffix(" %").replace("over ", ">")


def _verdict(result: Result, *, accepting: bool) -> str:
    accepted = accepting and result.verdict is Verdict.REGRESSED
    return f"{result.verdict.value} (accepted)" if accepted else result.verdict.value


def _columns_explained(results: Sequence[Result], here: str) -> list[str]:
    """What columns mean, a line for each that its header does not tell."""
    memory = [f"memory: {LABELS[kind]}" for kind in (RESIDENT, "peak_allocated") if _filled(results, kind)]
    others = dict.fromkeys(result.paired.revision for result in results if result.paired is not None)
    timed = _filled(results, "step_time")
    if not timed:
        this = f"{here}{',' * (',' in here)} " if here else ""
        return [*memory, *(f"{this}compared with revision {other}" for other in others)]
    over = dict.fromkeys(result.measurement.over for result in results if result.measurement.over)
    partners = [f"speedup: over {' or '.join(over)}, measured side by side"] if over else []
    to = f" to {here}" if here else ""
    changes = [f"change: from revision {other}{to}, measured side by side" for other in others]
    mde = [_MDE_MEANING] if any(comparison.mde is not None for comparison in timed) else []
    return [*memory, *partners, *changes, *mde]


def _notes(results: Sequence[Result], labels: dict[str, str], *, accepting: bool) -> tuple[str, ...]:
    """Remarks, each once: below the benchmark's name if it concerns one, else behind those that it concerns."""
    names = names_by_remark(
        (f"{labels[result.test]} {variant_text(result)}", remark)
        for result in results
        for remark in (*([] if accepting else verdict_remarks(result)), *findings(result))
    )
    several = [f"{whom(those, len(results))}: {remark}" for remark, those in names.items() if len(those) > 1]
    by_name: dict[str, list[str]] = {}
    for remark, (name, *others) in names.items():
        if not others:
            by_name.setdefault(name, []).append(remark)
    return (*several, *headed(by_name))


def _batch_size_line(search: Search) -> str:
    """What fits, what does not, what it takes and what was tried."""
    found = search.found
    group = f"{search.training}, {format_count(search.environment.world_size, 'rank')}"
    too_large = [trial.size for trial in found.tried if not trial.fits]
    limit = f"{min(too_large)} does not" if too_large else "and is the limit"
    peak = ""
    if found.peak is not None:
        memory = [found.peak] if search.memory_limit is None else [found.peak, search.memory_limit]
        peak = f"; a rank's peak is {' of '.join(format_values(memory, 'B'))}"
    tried = ", ".join(str(trial.size) for trial in found.tried)
    name = search.test.partition("::")[2]
    return f"{name} {group}: batch size {found.size} fits, {limit}{peak}; tried {tried}"
