"""Compares the training quality of strategies with the first strategy's: the last loss and metric of each launch."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pytest_ddpperf.records.measurement import Better, Interval
from pytest_ddpperf.records.verbs import LOSS, Convergence, Curve, FinalValue, Standing, Trainings
from pytest_ddpperf.stats.intervals import CONFIDENCE, center
from pytest_ddpperf.units import format_count, format_percent, signed_percent, significant

SAME_LOSS = 1e-4  # share of the loss by which strategies that average gradients exactly may differ in any case
SMALLEST = 0.01  # least divisor of a difference, as a share of the first strategy's largest value: values may be near 0
MOVED = 8.0  # times the effect of moving all weights by a unit in the last place: other rounding may do more


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityRules:
    """The rules by which trainings are compared."""

    metric: str  # the quantity that is compared besides the loss; ``loss`` without an evaluation
    better: Better  # its direction of an improvement
    tolerance: float  # the share of the first strategy's value by which another one may be worse
    confidence: float = CONFIDENCE  # of the intervals of all worsenings together


def trained(name: str, curves: Sequence[Curve], *, lost: Sequence[str] = ()) -> Trainings:
    """Returns a strategy's trainings with their last values; ``lost``: lines about values that were not finite."""
    finals = {quantity: _final([curve.values[quantity][-1] for curve in curves]) for quantity in curves[0].values}
    return Trainings(name=name, curves=tuple(curves), finals=finals, lost=tuple(lost))


def held(
    strategies: Sequence[Trainings],
    moved: Trainings,
    exact: Collection[str],
    rules: QualityRules,
    *,
    same_buffers: bool = True,
) -> tuple[Standing, ...]:
    """Compares each strategy with the first one; returns a Standing for the loss and a Standing for the metric.

    The n comparisons share the level of one test: each interval has 1 - 0.05 / n confidence (Bonferroni 1936). The
    strategies in ``exact`` average gradients as exactly as the first strategy. They are also compared with ``moved``,
    the first strategy trained again from weights that differ only by rounding. Their metric is compared with ``moved``
    only if all ranks have equal buffers (``same_buffers``), because only DDP gives all ranks the buffers of rank 0.
    """
    first, *others = strategies
    rows = [(other, quantity) for other in others for quantity in dict.fromkeys((LOSS, rules.metric))]
    rules = replace(rules, confidence=1 - (1 - rules.confidence) / len(rows))
    return tuple(
        _kept(
            first, other, moved if other.name in exact and (quantity == LOSS or same_buffers) else None, quantity, rules
        )
        for other, quantity in rows
    )


def _kept(first: Trainings, other: Trainings, moved: Trainings | None, quantity: str, rules: QualityRules) -> Standing:
    if other.lost:
        unknown = FinalValue(value=math.nan, interval=None, samples=())
        return Standing(
            name=other.name, quantity=quantity, worse=unknown, apart=math.nan, allowed=None, tolerance=rules.tolerance
        )
    base = first.finals[quantity]
    largest = max(abs(value) for curve in first.curves for value in curve.values[quantity])
    size = max(abs(base.value), SMALLEST * largest) or 1.0
    sign = -1 if quantity != LOSS and rules.better == "higher" else 1
    differences = _differences(other, first, quantity)
    allowed = None
    if moved is not None:
        floor = SAME_LOSS if quantity == LOSS else rules.tolerance
        allowed = max(floor * size, MOVED * max(map(abs, _differences(moved, first, quantity))))
    return Standing(
        name=other.name,
        quantity=quantity,
        worse=_final(
            [sign * difference / size for difference in differences],
            rules.confidence,
            least=_resolution(first, other, quantity) / size,
        ),
        apart=max(map(abs, differences)),
        allowed=allowed,
        tolerance=rules.tolerance,
    )


def _differences(one: Trainings, other: Trainings, quantity: str) -> list[float]:
    samples = one.finals[quantity].samples, other.finals[quantity].samples
    return [mine - theirs for mine, theirs in zip(*samples, strict=True)]


def _resolution(one: Trainings, other: Trainings, quantity: str) -> float:
    """Returns the smallest difference between values of a quantity, such as 1/64 for an accuracy over 64 samples."""
    values = sorted({value for each in (one, other) for curve in each.curves for value in curve.values[quantity]})
    return min((above - below for below, above in pairwise(values)), default=0.0)


def _final(samples: Sequence[float], confidence: float = CONFIDENCE, least: float = 0.0) -> FinalValue:
    if not all(map(math.isfinite, samples)):
        return FinalValue(value=math.nan, interval=None, samples=tuple(samples))
    value, interval = center(samples, "difference", confidence=confidence)
    if interval is not None:  # equal launches give one without width
        interval = replace(interval, low=min(interval.low, value - least), high=max(interval.high, value + least))
    return FinalValue(value=value, interval=interval, samples=tuple(samples))


def lost(found: Convergence) -> list[str]:
    """Returns a line of text for each strategy that trains worse than the first strategy; empty if none does."""
    first = found.strategies[0]
    launches, steps = format_count(len(first.curves), "launch"), first.curves[0].steps[-1]
    of_all = f"in {launches} of {format_count(steps, 'step')}"
    of_lost = [one for one in found.strategies if one.lost]
    lines = [f"{one.name}: {'; '.join(one.lost)}; with {first.name} all values stay finite" for one in of_lost]
    for kept in (row for row in found.kept if math.isfinite(row.worse.value)):
        before, after = (significant(found.final(name, kept.quantity).value) for name in (first.name, kept.name))
        ends = f"{kept.name} ends with {kept.quantity} {after}, {first.name} with {before}"
        if kept.agreement == "worse":
            low = "" if kept.worse.interval is None else f" [{_interval(kept.worse.interval)}]"
            lines.append(
                f"{ends}: worse by {format_percent(kept.worse.value)}{low} {of_all}, tolerance "
                f"{format_percent(kept.tolerance)}"
            )
        elif kept.agreement == "differs":
            lines.append(
                f"{ends}: the largest difference is {significant(kept.apart)} {of_all}, and rounding explains "
                f"{significant(kept.allowed or 0.0)}; {kept.name} declares that it averages gradients exactly "
                "(if this strategy is lossy, give Parallel(..., lossy=True))"
            )
    return lines


def _interval(found: Interval) -> str:
    ends = f"{signed_percent(found.low)} .. {signed_percent(found.high)}"
    return f"{100 * found.confidence:.4g} % CI {ends}"
