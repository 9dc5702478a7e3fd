"""Measurements that were made side by side: points of a scaling curve, or ways to do the same work."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pytest_ddpperf.records.measurement import Measurement, Mode, Series


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingCurve:
    """A benchmark measured with several numbers of ranks side by side.

    Attributes:
        mode: ``strong`` (fixed global batch) or ``weak`` (fixed batch per rank): it defines efficiency.
        points: a measurement per world size, ascending; the others are compared with the first.
    """

    mode: Mode
    points: tuple[Measurement, ...]

    def point(self, world_size: int) -> Measurement:
        """Returns the measurement with ``world_size`` ranks.

        Raises:
            KeyError: this number was not measured; the message names the measured ones.
        """
        __tracebackhide__ = True
        points = {point.world_size: point for point in self.points}
        if world_size not in points:
            raise KeyError(f"no point has {world_size} ranks; the measured points have {list(points)}")
        point = points[world_size]
        return _over_itself(point, "scaling_efficiency", "speedup") if point is self._base else point

    @property
    def _base(self) -> Measurement:
        """The first point that fits into memory; the others are compared with it."""
        return next((point for point in self.points if not point.unfit), self.points[0])

    def efficiency(self, world_size: int) -> float:
        """Returns the share of the ideal speed; it is 1 at the first point (strong: T1/(n Tn), weak: T1/Tn).

        If the model grows with the ranks: T1/Tn times a rank's FLOPs over the FLOPs of a rank at the first point.
        """
        return self.point(world_size)["scaling_efficiency"].value

    def speedup(self, world_size: int) -> float:
        """Returns the work per second, relative to the first point (strong: T1/Tn, weak: n T1/Tn)."""
        return self.point(world_size)["speedup"].value


@dataclass(frozen=True, kw_only=True, slots=True)
class SideBySide:
    """Several trainings for the same purpose, measured side by side.

    Attributes:
        over: the name of the base: the given one, or the first one that fits into memory if the given one does not fit.
        names: all names, in the given order: a strategy as text, or a name from the test.
        measurements: in the same order.
        canonical: function that converts any spelling of a name to the spelling in ``names``.
    """

    over: str
    names: tuple[str, ...]
    measurements: tuple[Measurement, ...]
    canonical: Callable[[Any], str] = str

    def __getitem__(self, name: Any) -> Measurement:
        """Returns one measurement, by its name, or by its strategy in any form that ``compare`` accepts.

        Raises:
            KeyError: this name was not measured; the message names the measured ones.
        """
        __tracebackhide__ = True  # readers need the line of their test
        kept = self.canonical(name)
        if kept not in self.names:
            raise KeyError(f"{kept!r} was not measured; give one of {list(self.names)}")
        measured = self.measurements[self.names.index(kept)]
        return _over_itself(measured, "speedup", "memory_ratio") if kept == self.over else measured

    def speedup(self, name: Any) -> float:
        """Returns the work per second, relative to the base ``over``."""
        __tracebackhide__ = True
        return self[name]["speedup"].value

    def fits(self, name: Any) -> bool:
        """Returns whether a strategy or subject fits into memory; otherwise it was not measured."""
        __tracebackhide__ = True
        return not self[name].unfit

    @property
    def fastest(self) -> tuple[str, ...]:
        """The fastest name that fits, and the names whose speedups are not significantly lower."""
        return self._best("speedup", better=1)

    @property
    def leanest(self) -> tuple[str, ...]:
        """The name with the least memory, and the names whose memory is not significantly higher."""
        return self._best("memory_ratio", better=-1)

    @property
    def unbeaten(self) -> tuple[str, ...]:
        """The names of trainings that no other training beats in both speed and memory (Pareto-optimal ones)."""
        found = {name: (self._value(name, "speedup"), -self._value(name, "memory_ratio")) for name in self.compared}
        return tuple(
            name
            for name, (speed, memory) in found.items()
            if not any(
                other_speed >= speed and other_memory >= memory and (other_speed, other_memory) != (speed, memory)
                for other_speed, other_memory in found.values()
            )
        )

    @property
    def compared(self) -> list[str]:
        """The names with both speedup and memory ratio; empty if only the base has them."""
        needed = {"speedup", "memory_ratio"}
        known = [name for name in self.names if needed <= {series.metric for series in self[name].series}]
        return known if len(known) > 1 else []

    def _best(self, metric: str, better: int) -> tuple[str, ...]:
        known = self.compared
        if not known:
            return ()
        best = max(known, key=lambda name: better * self._value(name, metric))
        least = min(better * end for end in self._ends(best, metric))
        return (best, *(n for n in known if n != best and max(better * end for end in self._ends(n, metric)) >= least))

    def _ends(self, name: str, metric: str) -> tuple[float, float]:
        """Returns the ends of a metric's interval; without an interval, the exact value twice, or infinities."""
        series = self[name][metric]
        if series.interval is not None:
            return series.interval.low, series.interval.high
        return (series.value,) * 2 if name == self.over or not series.drifts else (-math.inf, math.inf)

    def _value(self, name: str, metric: str) -> float:
        return self[name][metric].value


def _over_itself(measured: Measurement, *metrics: str) -> Measurement:
    """Returns the base of a comparison with metrics relative to itself, which are 1 in each launch."""
    ones = (
        Series(
            metric=metric,
            unit="1",
            better="higher",
            family="relative",
            scale="ratio",
            gated=False,
            min_tolerance=0.0,
            samples=(1.0,) * len(measured.launches),
            value=1.0,
            interval=None,
        )
        for metric in metrics
    )
    only_counted = measured.counts is not None and not measured.launches
    return measured if only_counted else replace(measured, series=(*measured.series, *ones))
