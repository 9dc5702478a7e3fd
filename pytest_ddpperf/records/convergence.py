"""Trainings by several strategies that begin with the same weights, and their results."""

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
    """One training: values after each of several optimizer steps; each value is a mean over the ranks."""

    steps: tuple[int, ...]  # the optimizer steps before each point
    # By name, a number for each point: ``loss``, the mean over the steps since the previous point, and each metric of
    # ``Workload(evaluate=...)``.
    values: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalValue:
    """The mean last value of a strategy's trainings, with its interval."""

    value: float  # the mean over launches
    # 95 % interval over launches; None for a single launch. In Standings, all intervals together hold with 95 %.
    interval: Interval | None
    samples: tuple[float, ...]  # of each launch


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """The last values of a strategy's trainings compared with the first strategy's: differences of the same launch."""

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

        ``worse``: significantly worse by more than the tolerance, or not finite; ``equal``: rounding explains the
        difference; ``differs``: rounding should explain it, but does not; ``within tolerance``: with the whole
        interval; else ``inconclusive``.
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
        strategies: in the order given; the others are compared with the first one.
        kept: comparisons of the other strategies with the first one, for the loss and for the metric.
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
