"""What the steps of one launch amount to."""

from __future__ import annotations

import math
from collections.abc import Sequence

USUAL = 0.75  # the share of a launch's steps that a typical one is made of
LONGEST = 2.0  # times the typical step


def quantile(values: Sequence[float], q: float) -> float:
    """The ``q`` quantile of ``values``, interpolated linearly between its neighbours.

    Definition 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages" (1996): numpy's and R's default.

    Args:
        values: at least one number, in any order.
        q: between 0 (the minimum) and 1 (the maximum).

    Raises:
        ValueError: there are no values, or ``q`` lies outside 0 to 1.
    """
    if not values:
        raise ValueError("a quantile needs at least one value")
    if not 0 <= q <= 1:
        raise ValueError(f"a quantile lies between 0 and 1, not at {q}")
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def typical(step_times: Sequence[float]) -> float:
    """The step time in seconds that stands for a whole launch: the mean of its usual steps.

    A mean of many steps scatters less from launch to launch than one quantile of them, above all where steps last one
    or two ticks of the scheduler (``benchmarks/verdict_quality.py`` prints by how much). It is blind to a slowdown of
    a quarter of the steps or fewer.

    Raises:
        ValueError: there are no steps.
    """
    if not step_times:
        raise ValueError("a typical step needs at least one step")
    usual = usual_steps(step_times)
    return math.fsum(step_times[i] for i in usual) / len(usual)


def tail(step_times: Sequence[float]) -> float:
    """The mean step over the typical one: what the typical step is blind to, such as a pause in every tenth step.

    No step counts as longer than twice the typical one: a single long pause of the machine says nothing about the code.

    Raises:
        ValueError: there are no steps.
    """
    usual = typical(step_times)
    return math.fsum(min(step / usual, LONGEST) for step in step_times) / len(step_times) if usual > 0 else 1.0


def usual_steps(step_times: Sequence[float]) -> list[int]:
    """The numbers of the faster three quarters of steps, rounded: other load only ever makes steps longer."""
    fastest_first = sorted(range(len(step_times)), key=step_times.__getitem__)
    return fastest_first[: max(1, math.ceil(USUAL * len(step_times) - 0.5))]


def step_summary(step_times: Sequence[float]) -> dict[str, float]:
    """The shape of a launch's step times, in seconds: ``min``, ``p25``, ``p50``, ``p75``, ``p90``, ``max``, ``mean``.

    Raises:
        ValueError: there are no steps.
    """
    summary = {
        name: quantile(step_times, q)
        for name, q in (("min", 0), ("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p90", 0.9), ("max", 1))
    }
    return {**summary, "mean": math.fsum(step_times) / len(step_times)}
