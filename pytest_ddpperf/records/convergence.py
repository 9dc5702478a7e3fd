"""Trainings by several strategies from the same start, and how far they came."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pytest_ddpperf.records.measurement import Interval

LOSS = "loss"
Agreement = Literal["equal", "within tolerance", "inconclusive", "differs", "worse"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One training: a point after every so many optimizer steps, each a mean over the ranks.

    Attributes:
        steps: the optimizer steps before each point.
        values: by name, a number for each point: ``loss``, the mean over the steps since the point before, and what
            ``Workload(evaluate=...)`` gives.
    """

    steps: tuple[int, ...]
    values: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalValue:
    """Where trainings ended.

    Attributes:
        value: the mean over launches.
        interval: its 95 % interval over launches; None for a single launch. Worsenings have it all together.
        samples: of each launch.
    """

    value: float
    interval: Interval | None
    samples: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How the end of a strategy's trainings stands to that of the first strategy's, launch by launch.

    Attributes:
        name: of the strategy.
        quantity: ``loss``, or the name of a metric.
        worse: by how much it is worse, as a share of the first strategy's value; below 0 if it is better. NaN where
            a training was lost.
        apart: the largest difference in a launch, in the quantity's unit.
        allowed: the largest such difference that rounding explains; None if the strategy's gradients are not exact.
        tolerance: the share by which it may be worse.
    """

    name: str
    quantity: str
    worse: FinalValue
    apart: float
    allowed: float | None
    tolerance: float

    @property
    def agreement(self) -> Agreement:
        """``worse`` by more than the tolerance beyond chance, or lost; ``differs`` by more than rounding explains.

        ``within tolerance`` where the whole interval is; ``inconclusive`` where it reaches beyond the tolerance.
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
    """The trainings by one strategy.

    Attributes:
        name: of the strategy.
        curves: one for each launch; from where a loss or a metric was not finite, a training ends, and all is NaN.
        finals: by quantity, where trainings ended.
        lost: what was not finite, a line for each launch that has such: ``loss is nan at step 3 of 40 on rank 0 ...``.
    """

    name: str
    curves: tuple[Curve, ...]
    finals: Mapping[str, FinalValue]
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Convergence:
    """Trainings by several strategies, from the same weights on the same batches.

    Attributes:
        test: pytest node id.
        world_size: number of ranks.
        metric: the quantity that is held, besides the loss; ``loss`` where nothing is evaluated.
        strategies: in the order given; the others are held to the first one.
        kept: how each of the others stands to the first one: a row for the loss, and one for the metric.
    """

    test: str
    world_size: int
    metric: str
    strategies: tuple[Trainings, ...]
    kept: tuple[Standing, ...]

    @property
    def curves(self) -> Mapping[str, tuple[Curve, ...]]:
        """By name of the strategy, a curve for each launch."""
        return {trained.name: trained.curves for trained in self.strategies}

    def final(self, name: str, quantity: str | None = None) -> FinalValue:
        """The last value of a strategy's trainings.

        Args:
            name: of the strategy, as in ``curves``.
            quantity: ``loss``, or the name of a metric (default: the metric that is held).

        Raises:
            KeyError: there is no such strategy or quantity; the message names those that there are.
        """
        __tracebackhide__ = True
        found: Mapping[str, Trainings] = {trained.name: trained for trained in self.strategies}
        if name not in found:
            raise KeyError(f"{name!r} was not trained; there are {list(found)}")
        finals, quantity = found[name].finals, quantity or self.metric
        if quantity not in finals:
            raise KeyError(f"no quantity {quantity!r}; there are {list(finals)}")
        return finals[quantity]
