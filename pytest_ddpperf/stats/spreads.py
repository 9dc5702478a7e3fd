"""How far runs, launches and steps of one benchmark lie apart while nothing changes: components of variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

from pytest_ddpperf.records.measurement import Spread
from pytest_ddpperf.records.noise import RunSpread
from pytest_ddpperf.stats.centers import Outliers, log_center
from pytest_ddpperf.stats.intervals import from_log, t_quantile

LEAST = 1e-9  # s: no clock tells less, and 0 has no logarithm
CONFIDENCE = 0.95  # one-sided
OUTLIERS: Outliers = "high"  # as verdicts on times have it
SHOWN = 0.99  # one-sided: at which a spread is larger than what is assumed
HARD = 0.999  # one-sided: about the level of a red verdict, at which two spreads are held against each other
MIN_DF = 4  # five runs, or as many repetitions over several commits or benchmarks: by fewer nothing is widened
LEAST_SHARE = 1e-3  # of the median: no standard deviation is smaller where its logarithm counts


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
    spread = run_spread(runs)
    of_runs = max(0.0, spread.centers.sd**2 - spread.sampling)
    return Components(pooled(runs), Spread(sd=math.sqrt(of_runs), df=spread.centers.df))


def run_spread(runs: Sequence[Sequence[float]], days: Sequence[str] | None = None) -> RunSpread:
    """How far the centers of runs lie apart, or those of the days that they are of: the means of their runs.

    ``runs`` and errors are as of ``components``; of a single day, there are no degrees of freedom.
    """
    groups: dict[object, list[tuple[float, float]]] = {}
    for number, (middle, error) in enumerate(_centers(runs)):
        groups.setdefault(number if days is None else days[number], []).append((middle, error or 0.0))
    centers = [fmean(middle for middle, _ in group) for group in groups.values()]
    errors = [math.fsum(error for _, error in group) / len(group) ** 2 for group in groups.values()]
    if len(groups) == 1:
        return RunSpread(centers=Spread(sd=0.0, df=0))
    return RunSpread(centers=_deviation(centers), sampling=fmean(errors))


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


def spread_of_bound(bound: float, df: float) -> Spread:
    """The deviation of runs with so many degrees of freedom whose ``bound_of_difference`` this is."""
    return Spread(sd=math.log1p(bound) / (t_quantile(CONFIDENCE, df) * math.sqrt(2)), df=df)


def pooled(groups: Sequence[Sequence[float]]) -> Spread:
    """The standard deviation within groups of numbers above 0, on the scale of logarithms, all groups together."""
    return joined([_deviation([math.log(max(value, LEAST)) for value in group]) for group in groups if len(group) > 1])


def joined(spreads: Sequence[Spread]) -> Spread:
    """One standard deviation for several, by their degrees of freedom; with none of these where there is none."""
    df = sum(spread.df for spread in spreads)
    squares = math.fsum(spread.df * spread.sd**2 for spread in spreads)
    return Spread(sd=math.sqrt(squares / df) if df else 0.0, df=df)


def prior_of(spreads: Sequence[Spread]) -> Spread | None:
    """What the standard deviation of any benchmark is expected to be, and how surely, by those of several.

    The variances of benchmarks follow a scaled inverse chi-squared distribution: its scale and its degrees of freedom
    are those that give the logarithms of the estimates the mean and the variance that they have (Smyth 2004, "Linear
    models and empirical Bayes methods", section 6.2). Where the estimates lie no further apart than their own degrees
    of freedom explain, all benchmarks have one variance, known as well as all of them together know it.

    Returns:
        The prior; None where fewer than two have degrees of freedom.
    """
    telling = [spread for spread in spreads if spread.df > 0]
    if len(telling) < 2:  # noqa: PLR2004 - of one nothing tells how far others lie from it
        return None
    from scipy.special import polygamma, psi

    together = joined(telling)
    middle = median([spread.sd for spread in telling])
    if middle == 0:
        return together
    logs = [
        2 * math.log(max(spread.sd, LEAST_SHARE * middle)) - float(psi(spread.df / 2)) + math.log(spread.df / 2)
        for spread in telling
    ]
    explained = fmean(float(polygamma(1, spread.df / 2)) for spread in telling)
    df = 2 * _trigamma_inverse(variance(logs) - explained)
    if math.isinf(df):
        return together
    scale = math.exp(fmean(logs) + float(psi(df / 2)) - math.log(df / 2))
    return Spread(sd=math.sqrt(scale), df=min(df, together.df))


def moderated_spread(own: Spread, prior: Spread | None, most: float = math.inf) -> Spread:
    """The standard deviation of one benchmark, moderated by the prior of all; with ``most`` degrees of freedom at most.

    Its variance is the mean of both by their degrees of freedom, which add up (Smyth 2004).
    """
    both = joined([own, *([] if prior is None else [prior])])
    return Spread(sd=both.sd, df=min(both.df, most))


def _trigamma_inverse(value: float) -> float:
    """Where the trigamma function is ``value``; infinite where that is 0 or less, as it never is."""
    from scipy.special import polygamma

    if value <= 0:
        return math.inf
    found = 0.5 + 1 / value  # Newton's method on 1 / trigamma, which is nearly a line (Smyth 2004, appendix)
    for _ in range(50):
        here = float(polygamma(1, found))
        found += (step := here * (1 - here / value) / float(polygamma(2, found)))
        if abs(step) < 1e-9 * found:
            break
    return found


def wider(learned: RunSpread, known: Spread) -> Spread:
    """The spread between runs to go by where one was learned beside another: the larger one, where that is shown.

    Learned spreads scatter: half of those that are no larger look so. One counts that has ``MIN_DF`` degrees of freedom
    and lies above 99 % of those that the known one and the scatter of launches would give. The known one then counts as
    it is, and what the learned one adds to it as an estimate (Satterthwaite 1946).
    """
    df, found = learned.centers.df, learned.beyond.sd
    by_chance = (known.sd**2 + learned.sampling) * _chi_squared_quantile(SHOWN, df)
    if df < MIN_DF or learned.centers.sd**2 <= by_chance or found <= known.sd:
        return known
    doubt = known.sd**4 / known.df + (found**2 - known.sd**2) ** 2 / df
    return Spread(sd=found, df=found**4 / doubt if doubt else math.inf)


def _chi_squared_quantile(p: float, df: float) -> float:
    """The quantile of a chi-squared variable over its degrees of freedom."""
    from scipy.special import gammaincinv

    return 2 * float(gammaincinv(df / 2, p)) / df if 0 < df < math.inf else 1.0


def narrower(learned: RunSpread, default: float) -> Spread:
    """The spread between runs to go by where one was learned that may replace the default.

    It does where intervals become shorter by it, its degrees of freedom considered: it is never blinder than the
    default.
    """
    assumed = t_quantile(HARD, math.inf) * math.sqrt(default**2 + learned.sampling)
    if learned.centers.df > 0 and t_quantile(HARD, learned.centers.df) * learned.centers.sd < assumed:
        return learned.beyond
    return Spread(sd=default, df=math.inf)


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
