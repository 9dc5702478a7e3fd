"""The summary of a run as one table, which every renderer takes as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_ddpperf.instruments.memory import LABELS
from pytest_ddpperf.judge.detection import POWER
from pytest_ddpperf.metrics.table import RESIDENT
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.phrases import confidence_text, environment_text, find, findings
from pytest_ddpperf.reports.remarks import verdict_remarks
from pytest_ddpperf.units import Scale, format_percent, scale, signed_percent

NOTHING = "-"
_NAMED = 3  # benchmarks with the same remark
MDE_MEANING = (
    f"MDE: the smallest slowdown that this run would have found in {format_percent(POWER)} of cases; "
    "unchanged: no worse by 5/3 of the tolerance"
)


@dataclass(frozen=True)
class Table:
    """Rows of text.

    Attributes:
        title: what holds for all rows.
        headers: of the columns; a unit stands on a second line.
        left: how many columns at the left are words and not numbers.
        right: how many at the right.
        notes: remarks below the rows.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    title: str = ""
    left: int = 1
    right: int = 1


class Listed(Protocol):
    """What has a row of its own: a benchmark of a test."""

    @property
    def test(self) -> str:
        """Pytest node id."""

    @property
    def measurement(self) -> Measurement:
        """What was measured."""


@dataclass(frozen=True)
class _Column:
    header: str
    cell: Callable[[Result], str]


def summary_table(results: Sequence[Result], *, accepting: bool = False, here: str = "") -> Table:
    """One row for each benchmark: what was measured, how it changed, and the verdict.

    Columns that no benchmark fills (throughput without a number of samples, scaling efficiency) are left out.

    Args:
        results: the judged benchmarks.
        accepting: what was measured is being stored, so that a worsening is no failure and nothing need be stored.
        here: the commit that was measured, as it is shown beside another revision; empty where none is known.
    """
    labels = labels_of(results)
    columns = [
        _Column("benchmark", lambda result: labels[result.test]),
        _Column("variant", variant_text),
        _Column("ranks", lambda result: str(result.measurement.world_size)),
        *_metric_columns(results),
        *([_Column("change\n%", _change), _Column("MDE\n%", _mde)] if _filled(results, "step_time") else []),
        _Column("verdict", lambda result: _verdict(result, accepting=accepting)),
    ]
    return Table(
        title=_title(results),
        headers=tuple(column.header for column in columns),
        rows=tuple(tuple(column.cell(result) for column in columns) for result in results),
        notes=(*_columns_explained(results, here), *_notes(results, labels, accepting=accepting)),
        left=2,
    )


def _metric_columns(results: Sequence[Result]) -> list[_Column]:
    memory = "peak_allocated" if _filled(results, "peak_allocated") else RESIDENT
    wanted = (
        ("step time", "step_time", _with_interval),
        ("throughput", "throughput" if _filled(results, "throughput") else "token_throughput", _value),
        ("memory", memory, _value),
        ("eff.", "scaling_efficiency", _value),
        *((("speedup", "speedup", _with_interval),) if any(result.measurement.over for result in results) else ()),
    )
    counts = (
        ("calls", "collective_calls", _whole),
        ("sent", "collective_send_bytes", _value),
        ("FLOPs", "flops", _value),
        ("peak", "peak_tensor_bytes", _value),
    )
    chosen = wanted if _filled(results, "step_time") else counts
    return [
        _metric_column(header, metric, cell, results) for header, metric, cell in chosen if _filled(results, metric)
    ]


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

    return _Column(f"{header}\n{common.unit}".rstrip(), text)


def _value(comparison: Comparison, common: Scale) -> str:
    return common.number(comparison.series.value)


def _whole(comparison: Comparison, _common: Scale) -> str:
    value = comparison.series.value
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"  # a mean over several steps


def _with_interval(comparison: Comparison, common: Scale) -> str:
    interval = comparison.series.interval
    value = _value(comparison, common)
    if interval is None:
        return value
    return f"{value} [{common.number(interval.low)}, {common.number(interval.high)}]"


def variant_text(result: Listed) -> str:
    """The variant's name, and what it says nothing of: ``weak w2 ddp``."""
    name, strategy = result.measurement.name, result.measurement.strategy
    return name if strategy in name else f"{name} {strategy}"


def _change(result: Result) -> str:
    step_time = find(result, "step_time")
    if step_time is None or step_time.change is None:
        return NOTHING
    interval = step_time.change_interval
    ends = f" [{signed_percent(interval.low)}, {signed_percent(interval.high)}]" if interval else ""
    return f"{signed_percent(step_time.change)}{ends}"


def _mde(result: Result) -> str:
    step_time = find(result, "step_time")
    if step_time is None or step_time.mde is None:
        return NOTHING
    return format_percent(step_time.mde).removesuffix(" %").replace("over ", ">")


def labels_of(results: Sequence[Listed]) -> dict[str, str]:
    """A short name for each test: without its module where only one module was run."""
    modules = {result.test.partition("::")[0] for result in results}
    labels = {}
    for result in results:
        module, _, test = result.test.partition("::")
        stem = module.rpartition("/")[2].removesuffix(".py")
        labels[result.test] = test if len(modules) == 1 else f"{stem}::{test}"
    if len(modules) == 1 or len({label.partition("::")[2] for label in labels.values()}) < len(labels):
        return labels
    return {test: label.partition("::")[2] for test, label in labels.items()}


def _title(results: Sequence[Result]) -> str:
    machines = dict.fromkeys(environment_text(result.measurement.environment) for result in results)
    return "; ".join([*machines, *intervals_explained(_filled(results, "step_time"))])


def intervals_explained(shown: Sequence[Comparison]) -> list[str]:
    """What stands in brackets behind these metrics' values: ``[intervals]: 95 % CI``; empty where nothing does."""
    levels = {one.series.interval.confidence for one in shown if one.series.interval is not None}
    return [f"[intervals]: {confidence_text(level)}" for level in sorted(levels)]


def _notes(results: Sequence[Result], labels: dict[str, str], *, accepting: bool) -> tuple[str, ...]:
    """Remarks, each once: below the benchmark's name if it concerns one, else behind those that it concerns."""
    concerned: dict[str, list[str]] = {}
    for result in results:
        for remark in (*([] if accepting else verdict_remarks(result)), *findings(result)):
            concerned.setdefault(remark, []).append(f"{labels[result.test]} {variant_text(result)}")
    several = [f"{whom(names, len(results))}: {remark}" for remark, names in concerned.items() if len(names) > 1]
    by_name: dict[str, list[str]] = {}
    for remark, names in concerned.items():
        if len(names) == 1:
            by_name.setdefault(names[0], []).append(remark)
    return (*several, *headed(by_name))


def whom(names: Sequence[str], number: int) -> str:
    """Those of so many benchmarks that a remark concerns: all, or by their names."""
    if len(names) == number > 1:
        return "both benchmarks" if number == 2 else f"all {number} benchmarks"  # noqa: PLR2004
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[: _NAMED - 1])} and {len(names) - _NAMED + 1} more"


def headed(remarks: Mapping[str, Sequence[str]]) -> list[str]:
    """Remarks by what they are on: one in a line with its name, several below it."""
    lines: list[str] = []
    for name, texts in remarks.items():
        if len(texts) == 1:
            lines.append(f"{name}: {texts[0]}")
        elif texts:
            lines += [f"{name}:", *(f"  {text}" for text in texts)]
    return lines


def _columns_explained(results: Sequence[Result], here: str) -> list[str]:
    """What columns mean, a line for each that its header does not tell."""
    memory = [f"memory: {LABELS[kind]}" for kind in (RESIDENT, "peak_allocated") if _filled(results, kind)]
    over = {result.measurement.over: None for result in results if result.measurement.over}
    partners = [f"speedup: over {' or '.join(over)}, measured side by side"] if over else []
    others = dict.fromkeys(result.paired.revision for result in results if result.paired is not None)
    timed = _filled(results, "step_time")
    to, this = (f" to {here}", f"{here}{',' * (',' in here)} ") if here else ("", "")
    beside = [
        f"change: from revision {other}{to}, measured side by side"
        if timed
        else f"{this}compared with revision {other}"
        for other in others
    ]
    mde = [MDE_MEANING] if any(one.mde is not None for one in timed) else []
    return [*memory, *(partners if timed else []), *beside, *mde]


def _verdict(result: Result, *, accepting: bool) -> str:
    accepted = accepting and result.verdict is Verdict.REGRESSED
    return f"{result.verdict.value} (accepted)" if accepted else result.verdict.value
