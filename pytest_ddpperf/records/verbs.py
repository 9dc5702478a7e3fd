"""The results of ``scaling``, ``compare``, ``converge`` and ``find_batch_size``, which train several times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pytest_ddpperf.records.measurement import Interval, Measurement, Mode, Series


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingCurve:
    """A benchmark measured with several numbers of ranks side by side.

    Attributes:
        mode: ``strong`` (fixed global batch) or ``weak`` (fixed batch per rank); ``efficiency`` depends on the mode.
        points: a measurement per world size, ascending; all larger sizes are compared with the first.
    """

    mode: Mode
    points: tuple[Measurement, ...]

    def point(self, world_size: int) -> Measurement:
        """Returns the measurement with ``world_size`` ranks; raises KeyError, with known numbers, if there is none."""
        __tracebackhide__ = True
        points = {point.world_size: point for point in self.points}
        if world_size not in points:
            raise KeyError(f"no point has {world_size} ranks; the measured points have {list(points)}")
        point = points[world_size]
        return _over_itself(point, "scaling_efficiency", "speedup") if point is self._base else point

    @property
    def _base(self) -> Measurement:
        """The measurement with the fewest ranks that fits into memory; those with more ranks are compared with it."""
        return next((point for point in self.points if not point.unfit), self.points[0])

    def efficiency(self, world_size: int) -> float:
        """Returns the share of the ideal speed; 1 at the first point (strong scaling: T1/(n Tn), weak scaling: T1/Tn).

        If the model grows with the ranks, the share is T1/Tn times the factor by which a rank's FLOPs grew.
        """
        return self.point(world_size)["scaling_efficiency"].value

    def speedup(self, world_size: int) -> float:
        """Returns the work per second relative to the first point (strong scaling: T1/Tn, weak scaling: n T1/Tn)."""
        return self.point(world_size)["speedup"].value


@dataclass(frozen=True, kw_only=True, slots=True)
class SideBySide:
    """Several trainings for the same purpose, measured side by side.

    Attributes:
        over: name of the base of speedups; if the given base does not fit into memory, the first training that does.
        names: names of all trainings, in the given order; a name is a strategy as text, or a name that the test gives.
        measurements: one for each of ``names``, in the same order.
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
        """Returns the work per second of a training, divided by the work per second of the base."""
        __tracebackhide__ = True
        return self[name]["speedup"].value

    def fits(self, name: Any) -> bool:
        """Returns whether the training of this name fits into memory; otherwise it was not measured."""
        __tracebackhide__ = True
        return not self[name].unfit

    @property
    def fastest(self) -> tuple[str, ...]:
        """The name with the highest speedup, and the names whose speedups are not significantly lower."""
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
        """The names of trainings with a speedup and a memory ratio; empty if only the base has both."""
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
        """Returns the ends of a metric's interval: infinite if the interval is unknown, equal if the value is exact."""
        series = self[name][metric]
        if series.interval is not None:
            return series.interval.low, series.interval.high
        return (series.value,) * 2 if name == self.over or not series.drifts else (-math.inf, math.inf)

    def _value(self, name: str, metric: str) -> float:
        return self[name][metric].value


def _over_itself(measured: Measurement, *metrics: str) -> Measurement:
    """Adds ``metrics`` with the value 1 to the base of a comparison, because the base is compared with itself."""
    if measured.counts is not None and not measured.launches:
        return measured
    kind: dict[str, Any] = {"unit": "1", "better": "higher", "family": "relative", "scale": "ratio", "gated": False}
    one = {**kind, "min_tolerance": 0.0, "samples": (1.0,) * len(measured.launches), "value": 1.0, "interval": None}
    return replace(measured, series=(*measured.series, *(Series(metric=metric, **one) for metric in metrics)))


LOSS = "loss"
Agreement = Literal["equal", "within tolerance", "inconclusive", "differs", "worse"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One training: values after each of several optimizer steps; each value is a mean over the ranks."""

    steps: tuple[int, ...]  # the optimizer steps before each point
    # By name, a number for each point: ``loss``, the mean over the steps since the previous point, and each metric of
    # ``Workload(evaluate=...)``.
    values: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalValue:
    """The loss or metric at the end of a strategy's trainings: the mean over launches, with its interval."""

    value: float  # the mean over launches
    # 95 % interval over launches; None for a single launch. In Standings, all intervals together hold with 95 %.
    interval: Interval | None
    samples: tuple[float, ...]  # of each launch


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """The difference between a strategy and the first strategy in the last loss or metric, computed in each launch."""

    name: str  # of the strategy
    quantity: str  # ``loss``, or the name of a metric
    # By how much it is worse, as a share of the first strategy's value; below 0 if it is better. NaN if a value of a
    # training was not finite.
    worse: FinalValue
    apart: float  # the largest difference in a launch, in the quantity's unit
    # The largest difference that rounding explains; None if the strategy's gradients are not exact.
    allowed: float | None
    tolerance: float  # the share by which it may be worse

    @property
    def agreement(self) -> Agreement:
        """Returns the verdict on the difference from the first strategy's last values.

        ``worse``: significantly worse by more than the tolerance, or not finite. ``equal``: rounding explains the
        difference. ``differs``: gradients are exact, but rounding does not explain the difference. ``within
        tolerance``: the whole interval is within the tolerance. ``inconclusive``: all other cases.
        """
        if not math.isfinite(self.worse.value):
            return "worse"
        if self.allowed is not None and self.apart <= self.allowed:
            return "equal"
        if self.worse.interval is not None and self.worse.interval.low > self.tolerance:
            return "worse"
        if self.allowed is not None:
            return "differs"
        within = self.worse.interval is not None and self.worse.interval.high <= self.tolerance
        return "within tolerance" if within else "inconclusive"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainings:
    """The trainings by one strategy."""

    name: str  # of the strategy
    # One for each launch; a training ends at a loss or a metric that is not finite, and later values are NaN.
    curves: tuple[Curve, ...]
    finals: Mapping[str, FinalValue]  # by quantity, the last values of the trainings
    # A line for each launch with a value that is not finite: ``loss is nan at step 3 of 40 on rank 0 ...``.
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Convergence:
    """Trainings by several strategies, from the same weights on the same batches.

    Attributes:
        test: pytest node id.
        world_size: number of ranks.
        metric: the quantity that is compared, in addition to the loss; ``loss`` if there is no evaluation.
        strategies: in the order given; all later strategies are compared with the first one.
        kept: comparisons of all later strategies with the first one, for the loss and for the metric.
    """

    test: str
    world_size: int
    metric: str
    strategies: tuple[Trainings, ...]
    kept: tuple[Standing, ...]

    @property
    def curves(self) -> Mapping[str, tuple[Curve, ...]]:
        """A curve for each launch, by name of the strategy."""
        return {trained.name: trained.curves for trained in self.strategies}

    def final(self, name: str, quantity: str | None = None) -> FinalValue:
        """Returns the last value of a strategy's trainings.

        Args:
            name: of the strategy, as in ``curves``.
            quantity: ``loss``, or the name of a metric (default: the metric that is compared).

        Raises:
            KeyError: there is no such strategy or quantity; the message names the existing ones.
        """
        __tracebackhide__ = True
        found: Mapping[str, Trainings] = {trained.name: trained for trained in self.strategies}
        if name not in found:
            raise KeyError(f"no strategy {name!r} was trained; give one of {list(found)}")
        finals, quantity = found[name].finals, quantity or self.metric
        if quantity not in finals:
            raise KeyError(f"no quantity {quantity!r} was evaluated; give one of {list(finals)}")
        return finals[quantity]


@dataclass(frozen=True, slots=True)
class Trial:
    """A batch size that the search has tried, and whether it fits into memory."""

    size: int  # samples of one rank's batch
    fits: bool  # whether every rank could train with it
    peak: float | None  # the most bytes that a rank used; None if it ran out of memory, or if the peak is unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSize:
    """The largest batch size that fits into memory.

    Attributes:
        size: the number given to the user's function, usually the samples of one rank's batch.
        peak: the most bytes that a rank used with this size: resident on CPU, reserved on CUDA; None if unknown.
        tried: all sizes that the search has tried, in order.
    """

    size: int
    peak: float | None
    tried: tuple[Trial, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Search(BatchSize):
    """A test's search for the largest batch, with its arguments and its result."""

    test: str  # pytest node id
    training: str  # strategy and recipe in one line
    world_size: int  # number of ranks
    environment_key: str  # the key of the environment of the search
    limit: int | None  # the largest size to try; None for no limit
    memory_limit: int | None  # bytes for each rank; None for all of the device's memory
