"""How far runs, launches and steps of one benchmark lie apart while nothing changes: components of variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddpperf.records.measurement import Spread
from pytest_ddpperf.stats.centers import Outliers, log_center
from pytest_ddpperf.stats.intervals import from_log, t_quantile

LEAST = 1e-9  # s: no clock tells less, and 0 has no logarithm
CONFIDENCE = 0.95  # one-sided
OUTLIERS: Outliers = "high"  # as verdicts on times have it


@dataclass(frozen=True)
class Components:
    """What a launch's number deviates by, in two parts: on its own, and with the run that it belongs to."""

    between_launches: Spread
    between_runs: Spread


def components(runs: Sequence[Sequence[float]]) -> Components:
    """The spread between runs and that between the launches of a run, on the scale of logarithms.

    By moments: the launches' variance is the mean square within runs. The runs' is that of their centers, less what the
    launches' scatter alone makes of it: the centers' mean squared standard error. Where nothing is left, it is 0. The
    centers are those that verdicts go by, which a disturbed launch hardly moves. Runs may have different numbers of
    launches; with one launch each, all of it is between runs.

    Args:
        runs: for each run a time above 0 of each launch; two runs or more.

    Returns:
        Both, with their degrees of freedom.

    Raises:
        ValueError: there are fewer than two runs, or one has no launch.
    """
    centers, errors = zip(*_centers(runs), strict=True)
    of_centers = _deviation(centers)
    of_runs = max(0.0, of_centers.sd**2 - math.fsum(error or 0.0 for error in errors) / len(errors))
    return Components(pooled(runs), Spread(sd=math.sqrt(of_runs), df=of_centers.df))


def noise_floor(runs: Sequence[Sequence[float]]) -> float:
    """By how much a run may seem slower than an earlier one of the same code, as a relative change.

    The one-sided prediction bound for the difference of two further runs: ``t * sqrt(2) * s``, ``s`` being the standard
    deviation of the runs' centers on the scale of logarithms, and ``t`` Student's with as many degrees of freedom as
    runs less one (Hahn and Meeker, "Statistical Intervals", 1991). One comparison in 20 of the same code lies above it.

    Args:
        runs: as of ``components``.

    Raises:
        ValueError: as of ``components``.
    """
    return bound_of_difference(_deviation([center for center, _ in _centers(runs)]))


def bound_of_difference(runs: Spread) -> float:
    """The bound of ``noise_floor`` for runs whose means deviate by this much."""
    return from_log(t_quantile(CONFIDENCE, runs.df) * math.sqrt(2) * runs.sd) if runs.sd else 0.0


def pooled(groups: Sequence[Sequence[float]]) -> Spread:
    """The standard deviation within groups of numbers above 0, on the scale of logarithms, all groups together."""
    return joined([_deviation([math.log(max(value, LEAST)) for value in group]) for group in groups if len(group) > 1])


def joined(spreads: Sequence[Spread]) -> Spread:
    """One standard deviation for several, by their degrees of freedom; with none of these where there is none."""
    df = sum(spread.df for spread in spreads)
    squares = math.fsum(spread.df * spread.sd**2 for spread in spreads)
    return Spread(sd=math.sqrt(squares / df) if df else 0.0, df=df)


def wider(learned: Spread, default: float) -> Spread:
    """The spread between runs to go by where one was learned beside a default one: the larger one.

    Runs that follow each other tell nothing of what changes over hours or days, so they may widen, never narrow.
    """
    return learned if learned.sd > default else Spread(sd=default, df=math.inf)


def _centers(runs: Sequence[Sequence[float]]) -> list[tuple[float, float | None]]:
    """Of each run the center of its launches' logarithms, and its squared standard error."""
    if len(runs) < 2 or not all(runs):  # noqa: PLR2004 - of one run nothing tells how it deviates
        raise ValueError("a spread between runs needs two runs or more, each with a launch")
    return [log_center([max(value, LEAST) for value in run], OUTLIERS) for run in runs]


def _deviation(values: Sequence[float]) -> Spread:
    """From the first value, so that equal ones have exactly none."""
    moved = [value - values[0] for value in values]
    mean = math.fsum(moved) / len(moved)
    df = len(values) - 1
    return Spread(sd=math.sqrt(math.fsum((value - mean) ** 2 for value in moved) / df), df=df)
