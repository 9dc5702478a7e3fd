"""The expectations of a test, compared with its measurements: counts of a step, and targets for metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeAlias

from pytest_ddpperf.errors import SettingError, UnexpectedCount
from pytest_ddpperf.metrics.scaling import EFFICIENCY, MEMORY, SPEEDUP
from pytest_ddpperf.metrics.table import METRICS
from pytest_ddpperf.parsers import byte_count, closest, instead
from pytest_ddpperf.records.counts import COLLECTIVES, SHOWN, Counts, quantity_texts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import BUSY
from pytest_ddpperf.records.measurement import Interval, Measurement, Series
from pytest_ddpperf.records.verbs import ScalingCurve, SideBySide
from pytest_ddpperf.stats.intervals import FEW
from pytest_ddpperf.units import format_count, format_number, format_percent, format_value


def require_counts(
    measured: Sequence[Measurement], collectives: Mapping[str, float] | None, totals: Mapping[str, Any]
) -> None:
    """Raises UnexpectedCount if counts differ from the expected ones, and SettingError if nothing can be compared."""
    counted = [(each, each.counts) for each in measured if each.counts is not None]
    problem = unsaid(collectives, totals)
    if problem is None and (not counted or len(counted) < len(measured)):
        problem = "nothing was counted; call check, compare or measure first, with counts=on"
    problems = chain([problem], (misnamed(counts, collectives or (), totals) for _, counts in counted))
    for problem in filter(None, problems):
        raise SettingError(f"ddpperf.expect: {problem}")
    lines: list[str] = []
    for each, counts in counted:
        if different := unexpected(counts, collectives, totals):
            lines += [*different, f"  benchmark {each.name}, {format_count(each.world_size, 'rank')}"]
    if lines:
        raise UnexpectedCount("\n".join(lines))


def unsaid(collectives: object, totals: Mapping[str, object]) -> str | None:
    """Returns an error message if ``ddpperf.expect`` got no count, or a value of the wrong type; else None."""
    if not isinstance(collectives, (Mapping, type(None))):
        return f"collectives={collectives!r}: expected calls by collective, such as {{'all_reduce': 3}}"
    if collectives is None and not totals:
        return "no expectation is given; name counts, such as optimizer_steps=1"
    for name, number in {**(collectives or {}), **totals}.items():
        if isinstance(number, Mapping):
            return f"{name} has to be one number; for calls of several collectives, give collectives={number!r}"
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            return f"{name} is expected to be {number!r}, which is not a number"
    return None


def misnamed(counts: Counts, collectives: Iterable[str], totals: Iterable[str]) -> str | None:
    """Returns an error message for the first expected count with an unknown name; None if all names are known."""
    known_totals = [*counts.totals, "collectives"]
    for kind, names, known in (("collective", collectives, COLLECTIVES), ("count", totals, counts.totals)):
        for name in names:
            if name not in known:
                hint = closest(name, known_totals if kind == "count" else known)
                return f"there is no {kind} {name}; {instead(hint, known)}"
    return None


def unexpected(counts: Counts, collectives: Mapping[str, float] | None, totals: Mapping[str, float]) -> list[str]:
    """Returns a line of text for each count that differs from the expected one on any rank or in any step."""
    differing = counts.differing
    # For each rank the number of all calls is known, but not the number of calls of each collective.
    expected = {**({} if collectives is None else {"collective_calls": sum(collectives.values())}), **totals}
    lines = [
        f"expected {metric} to be the same in every step: {differing[metric]}"
        for metric in expected
        if metric in differing
    ]
    steady = {metric: wanted for metric, wanted in expected.items() if metric not in differing}
    if collectives is not None and "collective_calls" in steady:
        lines += _unexpected_calls(counts.details.get("collective_calls", {}), collectives)
    for metric, wanted in totals.items():
        if metric in steady and wanted != counts.totals[metric]:
            details = counts.details[metric]
            want, got = quantity_texts(metric, [wanted, counts.totals[metric]])
            parts = zip(details, quantity_texts(metric, details.values()), strict=True)
            made_of = ", ".join(f"{name} {text}" for name, text in parts)
            lines.append(f"expected {metric} {want} per step, counted {got}{f' ({made_of})' if made_of else ''}")
    for metric, wanted in steady.items():
        lines += _unexpected_on_ranks(counts, metric, wanted)
    return lines


def _unexpected_calls(calls: Mapping[str, float], expected: Mapping[str, float]) -> list[str]:
    """Returns a line for each collective that is called more or less often than expected."""
    numbers = [(name, expected.get(name, 0), calls.get(name, 0)) for name in sorted({*expected, *calls})]
    return [
        f"expected {format_number(wanted)} {name} call{'' if wanted == 1 else 's'} per step, "
        f"counted {format_number(found)}"
        for name, wanted, found in numbers
        if wanted != found
    ]


def _unexpected_on_ranks(counts: Counts, metric: str, wanted: float) -> list[str]:
    """Returns a line that names the ranks with unexpected counts, if ranks differ; else no line."""
    others = {rank: value for rank, value in enumerate(counts.by_rank.get(metric, ())) if value != wanted}
    if not others:
        return []
    want, *got = quantity_texts(metric, [wanted, *others.values()])
    told = [f"rank {rank}: {text}" for rank, text in zip(others, got, strict=True)]
    more = [f"{len(told) - SHOWN} more"] if len(told) > SHOWN else []
    return [f"expected {metric} {want} per step on every rank, counted {', '.join([*told[:SHOWN], *more])}"]


ALIASES: Mapping[str, str] = {"efficiency": "scaling_efficiency"}
Measured: TypeAlias = "Measurement | ScalingCurve | SideBySide"
Outcome: TypeAlias = "Literal['met', 'missed', 'open']"


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricTarget:
    """A test's target for a metric, and its outcome."""

    measurement: Measurement  # the benchmark's measurement
    whose: str  # the benchmark in words, such as ``4 ranks`` or ``bf16``; empty for a single benchmark
    series: Series  # the metric
    wanted: float  # the least value if higher is better, the largest value if lower is better

    @property
    def outcome(self) -> Outcome:
        """``met`` or ``missed`` if the whole interval is better or worse than the target, else ``open``.

        Counts are exact. Without an interval, all launches have to meet or to miss the target. A machine-dependent
        metric is open if it has fewer than three launches, or if it misses its target while the machine is busy.
        """
        found = self._beside_interval
        few = self.series.drifts and not self.series.rules.diagnosed and len(self.series.samples) < FEW
        return "open" if few or (found == "missed" and self._busy) else found

    @property
    def _busy(self) -> bool:
        """Returns whether the metric is machine-dependent, and other processes took cores while it was measured."""
        return self.series.drifts and self.measurement.lost > BUSY

    @property
    def _beside_interval(self) -> Outcome:
        interval = self.series.interval
        if interval is None and self.series.unit != "B" and self.series.scale != "exact":
            return "open"
        ends = self.series.samples or (self.series.value,)  # of too few launches for an interval
        low, high = (min(ends), max(ends)) if interval is None else (interval.low, interval.high)
        worst, best = (low, high) if self.series.better == "higher" else (-high, -low)
        wanted = self.wanted if self.series.better == "higher" else -self.wanted
        return "met" if worst >= wanted else "missed" if best < wanted else "open"

    @property
    def text(self) -> str:
        """A line with metric, interval and target, and with the machine's load if the load leaves the outcome open."""
        name = f"{self.series.metric}{self.whose and f' of {self.whose}'}"
        bound = "at least" if self.series.better == "higher" else "at most"
        others = f"; other processes took {format_percent(self.measurement.lost)} of the cores"
        others = others if self.outcome == "open" and self._busy else ""
        return f"{name}: {_figure(self.series)}, the target is {bound} {_value(self.wanted, self.series.unit)}{others}"

    @property
    def finding(self) -> Finding:
        """The outcome as a finding on the benchmark."""
        if self.outcome == "met":
            return Finding("target_met", {"text": self.text})
        if self.outcome == "missed":
            return Finding("target_missed", {"text": self.text})
        return Finding("target_open", {"text": self.text})


def targets(measured: Measured, wanted: Mapping[str, object]) -> list[MetricTarget]:
    """Returns the targets that a test names, each with its metric.

    ``wanted`` maps a metric to a number, or to numbers by name (for a comparison) or by number of ranks (for a curve).
    Raises SettingError for an unknown metric or benchmark or an invalid number, and NotTimed if nothing was timed.
    """
    return [
        MetricTarget(
            measurement=measurement,
            whose=whose,
            series=(series := _target_series(measurement, ALIASES.get(metric, metric))),
            wanted=_target_number(metric, number, series.unit),
        )
        for metric, number in wanted.items()
        for whose, measurement, number in _chosen(measured, metric, number)
    ]


def _chosen(measured: Measured, metric: str, wanted: object) -> Iterable[tuple[str, Measurement, object]]:
    """Returns the benchmarks that have a target, each with its name, measurement and target."""
    if isinstance(measured, Measurement):
        if isinstance(wanted, Mapping):
            raise SettingError(f"ddpperf.expect({metric}={wanted!r}): one benchmark was measured; give one number")
        return [("", measured, wanted)]
    known: Mapping[object, Measurement]
    if isinstance(measured, ScalingCurve):
        known = {point.world_size: measured.point(point.world_size) for point in measured.points}
        words = {size: format_count(point.world_size, "rank") for size, point in known.items()}
    else:
        known = {name: measured[name] for name in measured.names}
        words = {name: str(name) for name in known}
        if isinstance(wanted, Mapping):
            wanted = {measured.canonical(name): number for name, number in wanted.items()}
    fitting = [which for which, each in known.items() if not each.unfit]
    asked = wanted if isinstance(wanted, Mapping) else dict.fromkeys(fitting, wanted)
    for which in asked:
        if which not in known:
            there = ", ".join(map(repr, known))
            raise SettingError(f"ddpperf.expect({metric}={wanted!r}): {which!r} was not measured, only {there}")
    return [(words[which], known[which], number) for which, number in asked.items()]


def _target_series(measurement: Measurement, metric: str) -> Series:
    known = [*(row.name for row in METRICS), EFFICIENCY, SPEEDUP, MEMORY, *measurement]
    if metric not in known:
        there = instead(closest(metric, [*known, *ALIASES]), [*measurement] or known)
        raise SettingError(f"ddpperf.expect({metric}=...): there is no metric {metric!r}; {there}")
    try:
        return measurement[metric]
    except KeyError as error:
        raise SettingError(f"ddpperf.expect({metric}=...): {error.args[0]}") from None


def _target_number(metric: str, wanted: object, unit: str) -> float:
    if unit == "B":
        try:
            return byte_count(int(wanted) if isinstance(wanted, float) and wanted.is_integer() else wanted)
        except ValueError as error:
            raise SettingError(f"ddpperf.expect({metric}={wanted!r}): expected {error}") from None
    if isinstance(wanted, bool) or not isinstance(wanted, (int, float)) or math.isnan(wanted):
        raise SettingError(f"ddpperf.expect({metric}={wanted!r}): expected a number (unit: {unit})")
    return float(wanted)


def _figure(series: Series) -> str:
    interval: Interval | None = series.interval
    value = _value(series.value, series.unit)
    if interval is None:
        return value
    ends = " .. ".join(_value(end, series.unit) for end in (interval.low, interval.high))
    return f"{value} [{interval.confidence:.0%} CI {ends}]".replace("% CI", " % CI")


def _value(value: float, unit: str) -> str:
    return f"{value:.3g}" if unit == "1" else format_value(value, unit)
