"""How far runs, launches and steps of one benchmark lie apart while nothing changes: components of variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddpperf.records import Spread
from pytest_ddpperf.stats.intervals import from_log, t_quantile

LEAST = 1e-9  # s: no clock tells less, and 0 has no logarithm
CONFIDENCE = 0.95
DEFAULT_DF = 4
"""Degrees of freedom that a default counts for beside what was learned: as many as five runs have."""


@dataclass(frozen=True)
class Components:
    """What a launch's number deviates by, in two parts: with the run that it belongs to, and on its own."""

    between_launches: Spread
    between_runs: Spread


def components(runs: Sequence[Sequence[float]]) -> Components:
    """The spread between runs and that between the launches of a run, on the scale of logarithms.

    One-way analysis of variance with random effects (Searle, Casella and McCulloch, "Variance Components", 1992,
    chapter 3): the mean square within runs is the launches' variance, and what the mean square between runs exceeds it
    by is ``n`` times the runs'. Where it does not exceed it, the runs' is 0: variances are not negative. Runs may have
    different numbers of launches; with one launch each, all of it is between runs.

    Args:
        runs: for each run a number above 0 of each launch; two runs or more.

    Returns:
        Both, with the degrees of freedom of the mean squares that they come from.

    Raises:
        ValueError: there are fewer than two runs, or one has no launch.
    """
    logs = _logs(runs)
    sizes = [len(run) for run in logs]
    total, groups = sum(sizes), len(sizes)
    means = [math.fsum(run) / len(run) for run in logs]
    grand = math.fsum(value for run in logs for value in run) / total
    df_runs, df_launches = groups - 1, total - groups
    between = math.fsum(n * (mean - grand) ** 2 for n, mean in zip(sizes, means, strict=True)) / df_runs
    inside = math.fsum((value - mean) ** 2 for run, mean in zip(logs, means, strict=True) for value in run)
    launches = inside / df_launches if df_launches else 0.0
    typical_size = (total - sum(n * n for n in sizes) / total) / df_runs  # n, where all runs have as many
    of_runs = max(0.0, (between - launches) / typical_size)
    return Components(Spread(math.sqrt(launches), df_launches), Spread(math.sqrt(of_runs), df_runs))


def noise_floor(runs: Sequence[Sequence[float]], confidence: float = CONFIDENCE) -> float:
    """By how much a run may seem slower than an earlier one of the same code, as a relative change.

    The one-sided prediction bound for the difference of two further runs: ``t * sqrt(2) * s``, ``s`` being the standard
    deviation of the runs' means on the scale of logarithms, and ``t`` Student's with as many degrees of freedom as runs
    less one (Hahn and Meeker, "Statistical Intervals", 1991). One comparison in 20 of the same code lies above it.

    Args:
        runs: as of ``components``.
        confidence: one-sided.

    Raises:
        ValueError: as of ``components``.
    """
    return bound_of_difference(_deviation([math.fsum(run) / len(run) for run in _logs(runs)]), confidence)


def bound_of_difference(runs: Spread, confidence: float = CONFIDENCE) -> float:
    """The bound of ``noise_floor`` for runs whose means deviate by this much."""
    return from_log(t_quantile(confidence, runs.df) * math.sqrt(2) * runs.sd) if runs.sd else 0.0


def pooled(groups: Sequence[Sequence[float]]) -> Spread:
    """The standard deviation within groups of numbers above 0, on the scale of logarithms, all groups together."""
    spreads = [_deviation([math.log(max(value, LEAST)) for value in group]) for group in groups if len(group) > 1]
    df = sum(spread.df for spread in spreads)
    squares = math.fsum(spread.df * spread.sd**2 for spread in spreads)
    return Spread(math.sqrt(squares / df) if df else 0.0, df)


def moderated(learned: Spread, default: float) -> float:
    """The standard deviation to go by where one was learned beside a default one.

    A learned one that is larger counts as it is. A smaller one is joined with the default, each by its degrees of
    freedom, as variances are moderated by what is known beforehand (Smyth 2004, equation for the posterior variance):
    a few runs that happened to agree do not prove that none deviates.
    """
    joined = (DEFAULT_DF * default**2 + learned.df * learned.sd**2) / (DEFAULT_DF + learned.df)
    return max(learned.sd, math.sqrt(joined))


def _logs(runs: Sequence[Sequence[float]]) -> list[list[float]]:
    if len(runs) < 2 or not all(runs):  # noqa: PLR2004 - of one run nothing tells how it deviates
        raise ValueError("a spread between runs needs two runs or more, each with a launch")
    return [[math.log(max(value, LEAST)) for value in run] for run in runs]


def _deviation(values: Sequence[float]) -> Spread:
    """From the first value, so that equal ones have exactly none."""
    moved = [value - values[0] for value in values]
    mean = math.fsum(moved) / len(moved)
    df = len(values) - 1
    return Spread(math.sqrt(math.fsum((value - mean) ** 2 for value in moved) / df), df)
