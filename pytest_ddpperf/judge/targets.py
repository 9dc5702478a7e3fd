"""The targets that a test declares for metrics, compared with the metrics' 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.metrics.scaling import EFFICIENCY, MEMORY, SPEEDUP
from pytest_ddpperf.metrics.table import METRICS
from pytest_ddpperf.parsers import byte_count, closest, instead
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import BUSY, Interval, Measurement, Series
from pytest_ddpperf.records.verbs import ScalingCurve, SideBySide
from pytest_ddpperf.stats.intervals import FEW
from pytest_ddpperf.units import format_count, format_percent, format_value

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

        Bytes and counts without an interval are exact. A machine-dependent metric is open if it has fewer than three
        launches, or if it misses its target while the machine is busy.
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
        low, high = (self.series.value,) * 2 if interval is None else (interval.low, interval.high)
        worst, best = (low, high) if self.series.better == "higher" else (-high, -low)
        wanted = self.wanted if self.series.better == "higher" else -self.wanted
        return "met" if worst >= wanted else "missed" if best < wanted else "open"

    @property
    def text(self) -> str:
        """The metric, its interval and the target in a line; the machine's load, too, if it leaves the outcome open."""
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

    Raises:
        SettingError: there is no such metric or benchmark, or a target is no number.
        NotTimed: this run only counts.
    """
    return [
        MetricTarget(
            measurement=measurement,
            whose=whose,
            series=(series := _series(measurement, ALIASES.get(metric, metric))),
            wanted=_number(metric, number, series.unit),
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


def _series(measurement: Measurement, metric: str) -> Series:
    known = [*(row.name for row in METRICS), EFFICIENCY, SPEEDUP, MEMORY, *measurement]
    if metric not in known:
        there = instead(closest(metric, [*known, *ALIASES]), [*measurement] or known)
        raise SettingError(f"ddpperf.expect({metric}=...): there is no metric {metric!r}; {there}")
    try:
        return measurement[metric]
    except KeyError as error:
        raise SettingError(f"ddpperf.expect({metric}=...): {error.args[0]}") from None


def _number(metric: str, wanted: object, unit: str) -> float:
    """Returns a target as a number in the metric's unit."""
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
