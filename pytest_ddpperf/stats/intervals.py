"""Confidence intervals of a value over launches, of a rate, and of the change between two samples or in a suite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pytest_ddpperf.records.measurement import Interval, Scale
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.stats.launches import Center, Expected, center_of, moderated

CONFIDENCE = 0.95
LARGEST_LOG = 700.0  # exp(700) is still a finite float: JSON has no infinity

ANY = (-math.inf, math.inf)  # the bounds of a value that may be any number
FEW = 3  # launches that an interval needs if no scatter is expected
WIDEST = 3.0  # a value has no interval if its ends differ by more than this factor


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """The change from a baseline to a new run, with its uncertainty.

    For ratios, ``shift``, ``standard_error`` and the variances are on a logarithmic scale, so that a doubling and a
    halving are equally large. ``estimate`` is never on a logarithmic scale.
    """

    shift: float  # new minus base on the scale of analysis
    launches: int  # how many launches the new side has
    logarithmic: bool = False  # whether the scale of analysis is logarithmic
    # The part of the squared standard error that more launches of the new side would shrink; None if both sides have a
    # single launch, so that the scatter is unknown.
    sampling_variance: float | None = None
    fixed_variance: float = 0.0  # the rest of the squared standard error: the baseline's own error
    freedom: tuple[float, float] = (math.inf, math.inf)  # degrees of freedom of the new side's error and of the base's
    assumed: float = 0.0  # how many degrees of freedom of the new side come from the expected scatter of launches
    paired_rounds: bool = False  # whether both sides were measured in the same rounds

    @property
    def estimate(self) -> float:
        """The estimated change: a fraction for ratios (0.132 is +13.2 %), else a difference of the samples."""
        return from_log(self.shift) if self.logarithmic else self.shift

    @property
    def standard_error(self) -> float | None:
        """The standard error of ``shift``; None if the scatter is unknown."""
        return None if self.sampling_variance is None else math.sqrt(self.sampling_variance + self.fixed_variance)

    @property
    def df(self) -> float:
        """The degrees of freedom of the standard error; infinite if the error is 0, and 0 if it is unknown."""
        error = self.standard_error
        return min(self.freedom) if error else 0.0 if error is None else math.inf


def center(
    samples: Sequence[float],
    scale: Scale,
    expected: Expected | None = None,
    *,
    robust: bool = False,
    confidence: float = CONFIDENCE,
) -> tuple[float, Interval | None]:
    """Returns the mean of samples, one from each launch, and the t interval of the mean or None.

    For ratios of positive samples, mean and interval are geometric. ``expected``, the expected scatter of launches, is
    combined with the samples' scatter. ``robust`` caps outliers. Too few samples or too much scatter give no interval.
    """
    logarithmic = scale == "ratio" and min(samples) > 0
    side = center_of([math.log(sample) for sample in samples] if logarithmic else samples, robust=robust)
    side = moderated(side, expected if logarithmic or scale != "ratio" else None)
    back = (lambda value: math.exp(min(value, LARGEST_LOG))) if logarithmic else float
    # Samples without any scatter come back as they are, not as exp(log(sample)), which may differ in the last digit.
    value = samples[0] if min(samples) == max(samples) else back(side.mean)
    if side.variance is None:
        return value, None
    if side.variance == 0:
        return value, Interval(low=value, high=value, confidence=confidence)
    if side.n < FEW and not side.assumed:
        return value, None
    half = t_quantile(0.5 + confidence / 2, side.df) * math.sqrt(side.variance)
    if logarithmic and 2 * half > math.log(WIDEST):
        return value, None
    return value, Interval(low=back(side.mean - half), high=back(side.mean + half), confidence=confidence)


def change(
    new: Sequence[float], base: Sequence[float], *, scale: Scale, expected: Expected | None = None
) -> Change | None:
    """Returns the change from ``base`` to ``new``, samples of launches that are not paired; None if it is undefined.

    The smaller sample gives the degrees of freedom (Hsu 1938), because Welch's approximation is too optimistic if
    launches are few and the scatter is examined after each launch. A single launch is assigned the scatter of the other
    sample. Ratios of samples that are not all positive are analysed without logarithms.
    """
    if not (new and base) or not all(map(math.isfinite, (*new, *base))):
        return None
    logarithmic = scale == "ratio" and min((*new, *base)) > 0
    new_side, base_side = (
        center_of([math.log(sample) for sample in side] if logarithmic else side) for side in (new, base)
    )
    if scale == "ratio" and not logarithmic:
        if base_side.mean == 0 and (any(new) or any(base)):
            return None
        new_side, base_side = _relative_to(new_side, base_side)
    else:
        new_side, base_side = (moderated(side, expected) for side in (new_side, base_side))
    shift, launches = new_side.mean - base_side.mean, new_side.n
    known = _scatter(new_side, base_side)
    return _if_finite(Change(shift=shift, launches=launches, logarithmic=logarithmic, **known))


def paired(
    new: Sequence[float], base: Sequence[float], *, scale: Scale, expected: Expected | None = None, robust: bool = False
) -> Change | None:
    """Returns the change from ``base`` to ``new``, samples of paired launches; None if the change is undefined.

    A pair of launches ran in one round. A disturbance of the whole round cancels out in the difference of the pair
    (Student 1908). ``expected`` is the expected scatter of these differences. ``robust`` caps outliers. Ratios of
    samples that are not all positive are analysed without logarithms.
    """
    if not all(map(math.isfinite, (*new, *base))):
        return None
    logarithmic = scale == "ratio" and min((*new, *base)) > 0
    size = 1.0
    if scale == "ratio" and not logarithmic:
        size = abs(center_of(base).mean)
        if size == 0 and (any(new) or any(base)):
            return None
    pairs = zip(new, base, strict=True)
    differences = [math.log(one / other) if logarithmic else (one - other) / (size or 1.0) for one, other in pairs]
    side = moderated(center_of(differences, robust=robust), expected if logarithmic or scale != "ratio" else None)
    return _if_finite(
        Change(
            shift=side.mean,
            launches=side.n,
            logarithmic=logarithmic,
            sampling_variance=side.variance,
            freedom=(side.df, math.inf),
            assumed=side.assumed,
            paired_rounds=True,
        )
    )


def with_launches(change: Change, launches: int) -> Change:
    """Returns the change with the uncertainty that ``launches`` launches of the new run would give."""
    if change.sampling_variance is None:
        return change
    new, base = change.freedom
    least = 0.0 if change.assumed else 1.0
    freedom = change.assumed + max(least, (new - change.assumed + 1) * launches / change.launches - 1)
    sampling = change.sampling_variance * change.launches / launches
    return replace(change, launches=launches, sampling_variance=sampling, freedom=(freedom, base))


def possible(interval: Interval | None, least: float, most: float) -> Interval | None:
    """Clips an interval to ``least`` and ``most``; returns None if nothing or the whole range is left."""
    if interval is None:
        return None
    low, high = max(interval.low, least), min(interval.high, most)
    return None if low > high or (low, high) == (least, most) else replace(interval, low=low, high=high)


def half_width(change: Change, alpha: float) -> float | None:
    """Returns half the width of the two-sided ``1 - alpha`` interval around ``change.shift``; None if unknown."""
    if change.standard_error is None:
        return None
    return t_quantile(1 - alpha / 2, change.df) * change.standard_error


def interval_at(change: Change, alpha: float) -> Interval | None:
    """Returns the interval that misses the true change with probability ``alpha``; None if the scatter is unknown."""
    half = half_width(change, alpha)
    if half is None:
        return None
    low, high = change.shift - half, change.shift + half
    if change.logarithmic:
        low, high = from_log(low), from_log(high)
    return Interval(low=low, high=high, confidence=CONFIDENCE)


@lru_cache(maxsize=1024)
def t_quantile(p: float, df: float) -> float:
    """Returns the ``p`` quantile of Student's t distribution; of the normal distribution for infinite ``df``."""
    # scipy.stats offers this, too, but takes most of a second to import.
    from scipy.special import ndtri, stdtrit

    return float(ndtri(p)) if math.isinf(df) else float(stdtrit(df, p))


def from_log(shift: float) -> float:
    """Converts a difference of logarithms to a relative change, which is always finite."""
    return math.expm1(min(shift, LARGEST_LOG))


def _if_finite(change: Change) -> Change | None:
    return change if math.isfinite(change.shift) and math.isfinite(change.standard_error or 0.0) else None


def _scatter(new: Center, base: Center) -> dict[str, Any]:
    """Returns the fields of a ``Change`` that describe the uncertainty; empty if both samples' scatter is unknown."""
    if new.variance is not None and base.variance is not None:
        freedom = (new.df, base.df)
        return {
            "sampling_variance": new.variance,
            "fixed_variance": base.variance,
            "freedom": freedom,
            "assumed": new.assumed,
        }
    known = new if base.variance is None else base
    if known.variance is None:
        return {}
    of_launch, freedom = known.variance * known.n, (known.df, known.df)
    return {"sampling_variance": of_launch / new.n, "fixed_variance": of_launch / base.n, "freedom": freedom}


def _relative_to(new: Center, base: Center) -> tuple[Center, Center]:
    """Divides both means by the base's mean. The base then has the variance that this mean causes in new / base."""
    size = abs(base.mean) or 1.0  # 0 only if both sides are nothing but zeros
    leverage = abs(new.mean) / size
    return (
        replace(new, mean=new.mean / size, variance=None if new.variance is None else new.variance / size / size),
        replace(
            base,
            mean=base.mean / size,
            variance=None if base.variance is None else base.variance / size / size * leverage * leverage,
        ),
    )


@dataclass(frozen=True, slots=True)
class Rate:
    """The fraction of runs in which an event happened."""

    found: int  # runs in which it happened
    of: int  # runs

    @property
    def value(self) -> float:
        """The fraction of runs with the event, from 0 to 1."""
        return self.found / self.of

    @property
    def interval(self) -> Interval:
        """The interval of the true rate."""
        return clopper_pearson(self.found, self.of)


def clopper_pearson(found: int, of: int) -> Interval:
    """Returns the exact binomial interval of ``found`` in ``of`` trials (Clopper and Pearson 1934)."""
    from scipy.special import betaincinv

    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if found <= 0 else float(betaincinv(found, of - found + 1, tail))
    high = 1.0 if found >= of else float(betaincinv(found + 1, of - found, 1 - tail))
    return Interval(low=low, high=high, confidence=CONFIDENCE)


MIN_TESTS = 3  # fewer tests hardly show their scatter
NOTABLE = 0.01
"""A suite is called slower only if the whole interval of its change lies above this bound.

Tests of one suite share the machine and the folders of both checkouts. If a folder slows down one checkout in all
tests, the scatter does not show this. In 24 runs of 14 or 15 tests against the same commit, the common change was
between -4.6 % and +0.7 %; none of these runs is called slower.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonChange:
    """The relative change that the step times of all tests of a run have in common."""

    tests: int  # number of tests
    change: float  # relative: 0.031 is +3.1 %
    interval: Interval  # confidence interval of ``change``
    slower: bool  # whether the whole interval lies above ``NOTABLE``


def change_of_suite(results: Iterable[Result]) -> CommonChange | None:
    """Returns the change that the step times of all tests of a run have in common; None if this change is unknown."""
    paired: dict[str, list[float]] = {}
    for result in results:
        for one in result.comparisons:
            if one.series.metric == "step_time" and one.change is not None and one.paired:
                paired.setdefault(result.test, []).append(one.change)
    return common_change([*paired.values()])


def common_change(tests: Sequence[Sequence[float]]) -> CommonChange | None:
    """Returns the relative change that all tests have in common: Huber's estimate of the mean of logarithms.

    Each test counts once, with the mean change of its variants, because variants are measured together. Returns None
    for fewer than ``MIN_TESTS`` tests, or if the scatter is unknown.
    """
    if len(tests) < MIN_TESTS:
        return None
    quotients = [math.exp(math.fsum(map(math.log1p, variants)) / len(variants)) for variants in tests]
    middle, interval = center(quotients, "ratio", robust=True)
    if interval is None:
        return None
    around = replace(interval, low=interval.low - 1, high=interval.high - 1)
    return CommonChange(tests=len(tests), change=middle - 1, interval=around, slower=around.low > NOTABLE)
