"""Where a value lies, and where the change between two runs lies: t intervals over launches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from pytest_ddpperf.records.measurement import Interval, Scale
from pytest_ddpperf.stats.blocks import Expected
from pytest_ddpperf.stats.centers import Center, Outliers, center_of, center_of_runs, moderated

CONFIDENCE = 0.95
LARGEST_LOG = 700.0  # exp() of it is still a finite float: JSON knows no infinity

DRIFT = 0.35
"""Of the standard deviation of a launch, what a separate run deviates by as a whole, at least.

A machine whose launches lie apart is not the same in the next quarter of an hour either. In the recorded campaigns
stretches of four launches deviated by half as much in the median, from nothing to twice as much
(benchmarks/intervals.py): a larger share would hide what takes half as long again.
"""


class _OfRuns(NamedTuple):
    """What the spread between runs adds to the squared standard error, and its degrees of freedom."""

    variance: float
    df: float


class _Errors(NamedTuple):
    """The squared standard errors of both means."""

    new: float
    base: float
    freedom: tuple[float, float]  # degrees of freedom of either
    assumed: float = 0.0  # how many of the new side's come from what is expected of launches


NO_RUNS = _OfRuns(0.0, math.inf)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """The change from a baseline to a new run, and how well it is known.

    Ratios are analysed as differences of logarithms, where a doubling and a halving are equally far. ``shift``,
    ``standard_error`` and the variances are on that scale of analysis; ``estimate`` and ``interval`` are not.

    Attributes:
        estimate: relative change for ratios (0.132 is +13.2 %), absolute change for differences.
        interval: where ``estimate`` lies; None where no scatter could be measured.
        logarithmic: whether the scale of analysis is logarithmic.
        shift: new minus base on the scale of analysis.
        standard_error: of ``shift``; None where no side has two launches, so that the scatter is unknown.
        df: degrees of freedom of ``standard_error``; infinite where none of it is estimated.
        launches: how many launches the new side has.
        sampling_variance: the part of the squared standard error that more launches of the new side would shrink.
        fixed_variance: the part that they would not: the baseline's own error and the spread between runs.
        paired_rounds: whether both sides were measured in the same rounds.
        freedom: degrees of freedom of the new side's error and of the base's.
        assumed: how many of the new side's come from what is expected of launches.
        of_runs: the variance that comes from the spread between runs, and its degrees of freedom.
    """

    estimate: float
    interval: Interval | None = None
    logarithmic: bool
    shift: float
    standard_error: float | None = None
    df: float = 0.0
    launches: int
    sampling_variance: float = 0.0
    fixed_variance: float = 0.0
    paired_rounds: bool = False
    freedom: tuple[float, float] = (math.inf, math.inf)
    assumed: float = 0.0
    of_runs: _OfRuns = NO_RUNS


def center(
    samples: Sequence[float],
    scale: Scale,
    outliers: Outliers | None = None,
    expected: Expected | None = None,
    *,
    confidence: float = CONFIDENCE,
) -> tuple[float, Interval | None]:
    """The typical value over launches and the t interval around it, in the samples' unit.

    Geometric (mean and interval of the logarithms) for ratios of positive samples, arithmetic otherwise.

    Args:
        samples: one number for each launch.
        scale: how the metric is compared.
        outliers: at which end samples are expected that something disturbed; see ``center_of``.
        expected: what launches are expected to scatter by; None to go by the samples alone.
        confidence: of the interval.

    Returns:
        The value, and its interval: None for a single sample of which nothing is expected.

    Raises:
        ValueError: there are no samples.
    """
    logarithmic = scale == "ratio" and min(samples, default=1) > 0
    side = center_of([math.log(sample) for sample in samples] if logarithmic else samples, outliers)
    side = moderated(side, expected if logarithmic or scale != "ratio" else None)
    back = _exp if logarithmic else float
    # Samples without any scatter come back as they are, not as exp(log(sample)), which may differ in the last digit.
    value = samples[0] if min(samples) == max(samples) else back(side.mean)
    if side.variance is None:
        return value, None
    if side.variance == 0:
        return value, Interval(low=value, high=value, confidence=confidence)
    half = t_quantile(0.5 + confidence / 2, side.df) * math.sqrt(side.variance)
    return value, Interval(low=back(side.mean - half), high=back(side.mean + half), confidence=confidence)


def change(
    new: Sequence[float],
    base: Sequence[float],
    *,
    scale: Scale,
    between_runs: float = 0.0,
    between_df: float = math.inf,
    drift: float = 0.0,
    outliers: Outliers | None = None,
    expected: Expected | None = None,
    base_runs: Sequence[int] = (),
    independent: float = 1.0,
) -> Change | None:
    """The change from ``base`` to ``new``, two independent runs: a t interval over launches.

    Two runs on one machine differ by more than the launches within either of them say: each has a deviation of its
    own. That adds ``(1 + 1 / independent) * between_runs**2`` to the squared standard error. The launches' part has the
    freedom of the smaller side (Hsu 1938): Welch's approximation gives more than a few launches bear out, when the
    scatter is looked at after each of them. Both parts together have the freedom that Satterthwaite (1946) gives for
    their sum. A side with a single launch borrows the other side's scatter.
    Ratios with samples that are not positive have no logarithm: they are compared by the difference of means, relative
    to the base's, with the base's error carried over to first order.

    Args:
        new: one number for each new launch.
        base: one number for each launch of the baseline.
        scale: ``ratio`` or ``difference``.
        between_runs: standard deviation of a run's own deviation: relative for ratios, in the unit for differences.
        between_df: degrees of freedom of ``between_runs``; infinite where it is assumed, not estimated.
        drift: of the launches' own standard deviation, the share that a run deviates by at least.
        outliers: as of ``center``, of either side.
        expected: as of ``center``, of either side.
        base_runs: where the baseline is of several runs, how many of its launches belong to each, in their order.
        independent: how many runs with deviations of their own the baseline's mean is as good as.

    Returns:
        The change, or None where there is none to speak of: a ratio to zero, or samples that are not finite.

    Raises:
        ValueError: a side has no samples.
    """
    if not all(map(math.isfinite, (*new, *base))):
        return None
    logarithmic = scale == "ratio" and min((*new, *base), default=1) > 0
    new_side, base_side = (
        center_of_runs([math.log(sample) for sample in side] if logarithmic else side, sizes, outliers)
        for side, sizes in ((new, ()), (base, base_runs))
    )
    if scale == "ratio" and not logarithmic:
        if base_side.mean == 0 and (any(new) or any(base)):
            return None
        new_side, base_side = _relative_to(new_side, base_side)
    else:
        new_side, base_side = (moderated(side, expected) for side in (new_side, base_side))
    errors, of_runs = _errors(new_side, base_side), _OfRuns((1 + 1 / independent) * between_runs**2, between_df)
    if errors is not None:
        # The drift is known as well as the launches' scatter is, so it belongs to the launches' part.
        drifting = drift**2 * (errors.new * new_side.n + errors.base * base_side.n / independent)
        if of_runs.variance < drifting:
            errors, of_runs = errors._replace(base=errors.base + drifting), NO_RUNS
    return _assemble(new_side.mean - base_side.mean, errors, of_runs, new_side.n, logarithmic=logarithmic)


def paired(
    new: Sequence[float],
    base: Sequence[float],
    *,
    scale: Scale,
    outliers: Outliers | None = None,
    expected: Expected | None = None,
) -> Change | None:
    """The change from ``base`` to ``new``, measured in the same rounds: Student's interval over their differences.

    What disturbs a whole round disturbs both sides of it and cancels out (Student 1908). Both belong to one run, so
    there is no spread between runs, and more rounds shrink all of the error. Ratios as of ``change``; one without a
    logarithm is a difference relative to the base's mean.

    Args:
        new: one number for each round.
        base: the other side's, of the same rounds in the same order.
        scale: ``ratio`` or ``difference``.
        outliers: as of ``center``, of the differences.
        expected: what the differences are expected to scatter by; None to go by the rounds alone.

    Returns:
        The change, or None as of ``change``.

    Raises:
        ValueError: a side has no samples, or not as many as the other one.
    """
    if not all(map(math.isfinite, (*new, *base))):
        return None
    logarithmic = scale == "ratio" and min((*new, *base), default=1) > 0
    size = 1.0
    if scale == "ratio" and not logarithmic:
        size = abs(center_of(base, None).mean)
        if size == 0 and (any(new) or any(base)):
            return None
    pairs = zip(new, base, strict=True)
    differences = [math.log(one / other) if logarithmic else (one - other) / (size or 1.0) for one, other in pairs]
    side = moderated(center_of(differences, outliers), expected if logarithmic or scale != "ratio" else None)
    errors = None if side.variance is None else _Errors(side.variance, 0.0, (side.df, math.inf), side.assumed)
    return _assemble(side.mean, errors, NO_RUNS, side.n, logarithmic=logarithmic, paired_rounds=True)


def with_launches(change: Change, launches: int) -> Change:
    """What would be known of a change, had the new side so many launches, and they the same scatter.

    The evidence of the launches on their scatter grows with their number, and the expectation does not. The estimate
    and its interval stay what they are.
    """
    if change.standard_error is None:
        return change
    sampling = change.sampling_variance * change.launches / launches
    new, base = change.freedom
    least = 0.0 if change.assumed else 1.0
    freedom = change.assumed + max(least, (new - change.assumed + 1) * launches / change.launches - 1)
    total = sampling + change.fixed_variance
    return replace(
        change,
        launches=launches,
        sampling_variance=sampling,
        standard_error=math.sqrt(total),
        freedom=(freedom, base),
        df=_freedom((freedom, base), total - change.of_runs.variance, change.of_runs),
    )


def half_width(change: Change, alpha: float) -> float | None:
    """How far the two-sided ``1 - alpha`` interval reaches to either side of ``shift``; None where that is unknown."""
    if change.standard_error is None:
        return None
    if change.standard_error == 0:
        return 0.0
    return t_quantile(1 - alpha / 2, change.df) * change.standard_error


def interval_at(change: Change, alpha: float) -> Interval | None:
    """Where a change lies, missed with probability ``alpha`` by a single look; None where the scatter is unknown."""
    half = half_width(change, alpha)
    if half is None:
        return None
    low, high = change.shift - half, change.shift + half
    if change.logarithmic:
        low, high = from_log(low), from_log(high)
    return Interval(low=low, high=high, confidence=CONFIDENCE)


@lru_cache(maxsize=1024)
def t_quantile(p: float, df: float) -> float:
    """The ``p`` quantile of Student's t distribution; of the normal distribution for infinite ``df``."""
    # scipy.stats has the same, but takes most of a second to import.
    from scipy.special import ndtri, stdtrit

    return float(ndtri(p)) if math.isinf(df) else float(stdtrit(df, p))


def from_log(shift: float) -> float:
    """The relative change that a difference of logarithms stands for; always finite."""
    return math.expm1(min(shift, LARGEST_LOG))


def _assemble(
    shift: float,
    errors: _Errors | None,
    of_runs: _OfRuns,
    launches: int,
    *,
    logarithmic: bool,
    paired_rounds: bool = False,
) -> Change | None:
    """A change from its shift and the parts of its error: of the launches, and of the runs."""
    estimated = 0.0 if errors is None else errors.new + errors.base
    if not math.isfinite(shift) or not math.isfinite(estimated + of_runs.variance):
        return None
    back = from_log if logarithmic else float
    unknown = Change(
        estimate=back(shift),
        logarithmic=logarithmic,
        shift=shift,
        launches=launches,
        fixed_variance=of_runs.variance,
        paired_rounds=paired_rounds,
    )
    if errors is None:
        return unknown
    standard_error = math.sqrt(estimated + of_runs.variance)
    df = _freedom(errors.freedom, estimated, of_runs)
    known = replace(
        unknown,
        standard_error=standard_error,
        df=df,
        sampling_variance=errors.new,
        fixed_variance=errors.base + of_runs.variance,
        freedom=errors.freedom,
        assumed=errors.assumed,
        of_runs=of_runs,
    )
    return replace(known, interval=interval_at(known, 1 - CONFIDENCE))


def _freedom(sides: tuple[float, float], estimated: float, of_runs: _OfRuns) -> float:
    """The freedom of the sum of two variances (Satterthwaite 1946); the launches' part has its worse side's."""
    parts = estimated**2 / min(sides) + of_runs.variance**2 / of_runs.df
    return (estimated + of_runs.variance) ** 2 / parts if parts > 0 else math.inf


def _errors(new: Center, base: Center) -> _Errors | None:
    """The errors of both means; a single launch borrows the other side's scatter, two single ones know of none."""
    if new.variance is not None and base.variance is not None:
        return _Errors(new.variance, base.variance, (new.df, base.df), new.assumed)
    if base.variance is not None:
        return _Errors(base.variance * base.n, base.variance, (base.df, base.df))
    if new.variance is not None:
        return _Errors(new.variance, new.variance * new.n, (new.df, new.df))
    return None


def _relative_to(new: Center, base: Center) -> tuple[Center, Center]:
    """Both sides as fractions of the base's mean, whose own error counts by how much it moves the quotient."""
    size = abs(base.mean) or 1.0  # 0 only where both sides are nothing but zeros
    leverage = abs(new.mean) / size
    return (
        replace(new, mean=new.mean / size, variance=None if new.variance is None else new.variance / size / size),
        replace(
            base,
            mean=base.mean / size,
            variance=None if base.variance is None else base.variance / size / size * leverage * leverage,
        ),
    )


def _exp(value: float) -> float:
    return math.exp(min(value, LARGEST_LOG))
