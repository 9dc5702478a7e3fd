"""The words in which every report speaks of a judged metric."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from pytest_ddpperf.baselines.calibration import Calibrated
from pytest_ddpperf.records.counts import count_row, quantity_texts
from pytest_ddpperf.records.measurement import Environment, Interval
from pytest_ddpperf.records.results import BaselineRecord, Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import finding_text, words_of_note
from pytest_ddpperf.units import (
    format_change,
    format_count,
    format_difference,
    format_percent,
    format_value,
    format_values,
    signed_percent,
)

_SHORT_COMMIT = 7  # characters
LISTED = 10  # lines, of more than one reads
_NAMED = 3  # benchmarks with the same remark

Listed: TypeAlias = "Result | Calibrated"
"""What has a row of its own: a benchmark of a test."""


def find(result: Result, metric: str) -> Comparison | None:
    """The comparison of a metric; None if the benchmark has no such metric."""
    return next((c for c in result.comparisons if c.series.metric == metric), None)


def without_derived(comparisons: Collection[Comparison]) -> tuple[Comparison, ...]:
    """The comparisons without those that follow from a step time among them with the same verdict."""
    told = {c.verdict for c in comparisons if c.series.metric == "step_time"}
    return tuple(c for c in comparisons if not c.series.rules.repeats_step_time or c.verdict not in told)


def decisive(result: Result, verdicts: Collection[Verdict]) -> tuple[Comparison, ...]:
    """The gated comparisons with one of these verdicts, each fact once, and what only follows from others last."""
    told = without_derived([c for c in result.comparisons if c.gated and c.verdict in verdicts])
    return tuple(sorted(told, key=lambda comparison: count_row(comparison.series.metric).symptom))


def findings(result: Result, *, without: Collection[str] = ()) -> tuple[str, ...]:
    """All findings on a result in words, each once, in order; without those of some codes."""
    every = dict.fromkeys((*result.findings, *result.measurement.findings))
    return tuple(finding_text(finding) for finding in every if finding.code not in without)


def words_of(names: Sequence[str]) -> str:
    """Names in a row: ``forward, backward and optimizer``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def first_of(lines: Sequence[str]) -> list[str]:
    """As many lines as one reads, and how many there are besides."""
    return [*lines[:LISTED], *([f"and {len(lines) - LISTED} more"] if len(lines) > LISTED else [])]


def confidence_text(confidence: float) -> str:
    """A confidence level: 0.95 is ``95 % CI``."""
    return f"{format_percent(confidence)} CI"


def values_text(comparison: Comparison) -> str:
    """Old and new value in one unit: ``41.8 ms -> 47.3 ms``; the new one alone where there is no old one."""
    series = comparison.series
    if series.scale == "exact":
        known = [series.value] if comparison.baseline is None else [comparison.baseline, series.value]
        return " -> ".join(quantity_texts(series.metric, known))
    if comparison.baseline is None:
        return format_value(series.value, series.unit)
    return " -> ".join(format_values((comparison.baseline, series.value), series.unit))


def change_text(comparison: Comparison) -> str:
    """The change with its interval: ``+13.2 % [95 % CI +11.9 .. +14.6]``; empty where there is none."""
    ratio, unit = comparison.series.scale == "ratio", comparison.series.unit
    text, interval = _change(comparison), comparison.change_interval
    if interval is None:
        return text
    ends = (interval.low, interval.high)
    low, high = (signed_percent(end) if ratio else format_difference(end, unit) for end in ends)
    return f"{text} [{confidence_text(interval.confidence)} {low} .. {high}]"


def _change(comparison: Comparison) -> str:
    if comparison.change is None:
        return ""
    if comparison.series.scale == "ratio":
        return format_change(comparison.change)
    return format_difference(comparison.change, comparison.series.unit)


def short_text(comparison: Comparison) -> str:
    """What became of a metric, in a few words: ``peak_resident 412 MiB -> 463 MiB (+12.4 %)``."""
    text, change = f"{comparison.series.metric} {values_text(comparison)}", _change(comparison)
    if comparison.series.scale == "exact" and comparison.series.value == comparison.baseline and comparison.note:
        # As many of something else, or on another rank.
        return f"{comparison.series.metric} {finding_text(comparison.note)}"
    return text if comparison.series.scale == "exact" or not change else f"{text} ({change})"


def size_text(size: float, comparison: Comparison) -> str:
    """A tolerance or a detectable effect in the terms of its metric: ``3 %``, or ``0.030`` for differences."""
    if comparison.series.scale == "ratio":
        return format_percent(size)
    return format_value(size, comparison.series.unit)


def tolerance_text(comparison: Comparison) -> str:
    """What the test accepts: ``tolerance 3 %``, and what is proven where nothing got worse: ``margin 5 %``."""
    tolerance = f"tolerance {size_text(comparison.tolerance, comparison)}"
    proof = comparison.verdict in (Verdict.UNCHANGED, Verdict.INCONCLUSIVE)
    if not proof or comparison.margin is None or comparison.margin <= comparison.tolerance:
        return tolerance
    return f"{tolerance}, margin {size_text(comparison.margin, comparison)}"


def comparison_text(comparison: Comparison) -> str:
    """One judged metric in one line, up to what this run could have seen."""
    if comparison.series.scale == "exact":
        return _count_text(comparison)
    parts = [values_text(comparison)]
    if comparison.change is not None:
        parts += [change_text(comparison), tolerance_text(comparison)]
    if comparison.mde is not None:
        parts.append(f"could have seen {size_text(comparison.mde, comparison)}")
    return f"{comparison.series.metric} {comparison.verdict.value}: {', '.join(parts)}"


def note_text(comparison: Comparison) -> str:
    """What there is to be said besides ``comparison_text``; empty for nothing."""
    return "" if comparison.series.scale == "exact" else words_of_note(comparison.note)


def _count_text(comparison: Comparison) -> str:
    """A count with what its change is made of."""
    changed = "; ".join(filter(None, map(words_of_note, (comparison.note, comparison.difference))))
    return f"{comparison.series.metric} {comparison.verdict.value}, counted: {_values_and(changed, comparison)}"


def _values_and(changed: str, comparison: Comparison) -> str:
    """A count's values and what is said of their change: once where that is one thing with the same numbers."""
    values = values_text(comparison)
    as_many = comparison.series.value == comparison.baseline  # of something else, or on another rank
    if changed and (as_many or f" {values} " in changed):
        return changed
    return f"{values} per step" + (f"; {changed}" if changed else "")


def incomparable_changes(result: Result) -> tuple[str, ...]:
    """The counts that differ from those of a baseline that cannot judge them, and in what."""
    return tuple(
        f"{comparison.series.metric}, counted: {_values_and(words_of_note(comparison.difference), comparison)}"
        for comparison in decisive(result, {Verdict.INCOMPATIBLE})
        if comparison.difference
    )


def commit_text(commit: str, *, dirty: bool) -> str:
    """A commit as it is shown: ``3f2a1c0``; ``3f2a1c0+changes`` where tracked files differed from it."""
    return commit[:_SHORT_COMMIT] + "+changes" * dirty


def counts_origin(record: BaselineRecord) -> str:
    """Where a baseline's counts are from, if not from the run that the rest is: ``counts of 2026-01-12, 3f2a1c0``."""
    if record.counted is None:
        return ""
    commit = record.counted.commit
    told = [record.counted.date, *([commit_text(commit, dirty=record.counted.dirty)] if commit else [])]
    return f"counts of {', '.join(told)}"


def environment_text(environment: Environment) -> str:
    """The machine and the software in a line, without the number of ranks."""
    device = environment.cpu_model
    if environment.device != "cpu":
        device = f"{environment.device_count} x {environment.device_model}, {device}"
    parts = [
        f"{environment.device} {device}",
        format_count(environment.cores, "core"),
        f"{format_count(environment.threads, 'thread')} per rank",
        *([format_count(environment.nodes, "node")] if environment.nodes > 1 else []),
        environment.backend,
        f"torch {environment.torch}",
        *([f"CUDA {environment.cuda}"] if environment.cuda is not None else []),
    ]
    return ", ".join(parts)


def variant_text(result: Listed) -> str:
    """The variant's name, and what it says nothing of: ``weak w2 ddp``."""
    name, strategy = result.measurement.name, result.measurement.strategy
    return name if strategy in name else f"{name} {strategy}"


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


def intervals_explained(comparisons: Sequence[Comparison]) -> list[str]:
    """What stands in brackets behind these metrics' values: ``[intervals]: 95 % CI``; empty where nothing does."""
    levels = {shown.series.interval.confidence for shown in comparisons if shown.series.interval is not None}
    return [f"[intervals]: {confidence_text(level)}" for level in sorted(levels)]


def with_interval(number: Callable[[float], str], value: float, interval: Interval | None) -> str:
    """A value and its interval, if it has one, as ``number`` writes them: ``41.8 [41.2, 42.4]``."""
    return number(value) if interval is None else f"{number(value)} [{number(interval.low)}, {number(interval.high)}]"


def names_by_remark(remarks: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Each remark once, with the names of those that it concerns, from pairs of name and remark."""
    names: dict[str, list[str]] = {}
    for name, remark in remarks:
        names.setdefault(remark, []).append(name)
    return names


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
