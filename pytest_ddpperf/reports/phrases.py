"""The words in which every report speaks of a judged metric."""

from __future__ import annotations

from collections.abc import Collection

from pytest_ddpperf.counts import quantity_texts
from pytest_ddpperf.records import Environment
from pytest_ddpperf.results import Comparison, Result
from pytest_ddpperf.units import (
    format_change,
    format_count,
    format_difference,
    format_percent,
    format_value,
    format_values,
    signed_percent,
)
from pytest_ddpperf.verdict import Verdict

# Computed from step_time alone: where that is told, these say the same thing again.
_DERIVED = frozenset({"throughput", "token_throughput", "throughput_per_rank"})


def find(result: Result, metric: str) -> Comparison | None:
    """The comparison of a metric; None if the benchmark has no such metric."""
    return next((c for c in result.comparisons if c.series.metric == metric), None)


def without_derived(comparisons: Collection[Comparison]) -> tuple[Comparison, ...]:
    """The comparisons without those that follow from a step time among them with the same verdict."""
    told = {c.verdict for c in comparisons if c.series.metric == "step_time"}
    return tuple(c for c in comparisons if c.series.metric not in _DERIVED or c.verdict not in told)


def decisive(result: Result, verdicts: Collection[Verdict]) -> tuple[Comparison, ...]:
    """The gated comparisons with one of these verdicts, each fact once."""
    return without_derived([c for c in result.comparisons if c.gated and c.verdict in verdicts])


def findings(result: Result) -> tuple[str, ...]:
    """All remarks on a result, each once, in order."""
    return tuple(dict.fromkeys((*result.findings, *result.measurement.findings)))


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
    if comparison.change is None:
        return ""
    ratio, unit = comparison.series.scale == "ratio", comparison.series.unit
    text = format_change(comparison.change) if ratio else format_difference(comparison.change, unit)
    interval = comparison.change_interval
    if interval is None:
        return text
    ends = (interval.low, interval.high)
    low, high = (signed_percent(end) if ratio else format_difference(end, unit) for end in ends)
    return f"{text} [{confidence_text(interval.confidence)} {low} .. {high}]"


def size_text(size: float, comparison: Comparison) -> str:
    """A tolerance or a detectable effect in the terms of its metric: ``3 %``, or ``0.030`` for differences."""
    if comparison.series.scale == "ratio":
        return format_percent(size)
    return format_value(size, comparison.series.unit)


def comparison_text(comparison: Comparison) -> str:
    """One judged metric in one line, up to what this run could have seen."""
    parts = [values_text(comparison)]
    if comparison.series.scale == "exact":
        return f"{comparison.series.metric} {comparison.verdict.value}: {parts[0]} per step, counted"
    if comparison.change is not None:
        parts += [change_text(comparison), f"tolerance {size_text(comparison.tolerance, comparison)}"]
    if comparison.mde is not None:
        parts.append(f"could have seen {size_text(comparison.mde, comparison)}")
    return f"{comparison.series.metric} {comparison.verdict.value}: {', '.join(parts)}"


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
