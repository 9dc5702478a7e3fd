"""t intervals over launches: around a value, and around the change between two runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from pytest_ddpperf.records.measurement import Interval, Scale
from pytest_ddpperf.stats.blocks import Expected
from pytest_ddpperf.stats.centers import Center, center_of, moderated

CONFIDENCE = 0.95
LARGEST_LOG = 700.0  # exp(700) is still a finite float: JSON has no infinity

ANY = (-math.inf, math.inf)  # the bounds of a value that may be any number
FEW = 3  # launches that an interval needs if no scatter is expected
WIDEST = 3.0  # a value has no interval if its ends differ by more than this factor


class _Errors(NamedTuple):
    """The squared standard errors of both means."""

    new: float
    base: float
    freedom: tuple[float, float]  # degrees of freedom of ``new`` and of ``base``
    assumed: float = 0.0  # how many degrees of ``new`` come from the expected scatter


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """The change from a baseline to a new run, and how well it is known.

    Ratios are analysed as differences of logarithms, so that a doubling and a halving are equally large. ``shift``,
    ``standard_error`` and the variances are on this scale of analysis; ``estimate`` and ``interval`` are not.

    Attributes:
        estimate: relative change for ratios (0.132 is +13.2 %), absolute change for differences.
        interval: confidence interval of ``estimate``; None if no scatter could be measured.
        logarithmic: whether the scale of analysis is logarithmic.
        shift: new minus base on the scale of analysis.
        standard_error: of ``shift``; None if both sides have a single launch, so that the scatter is unknown.
        df: degrees of freedom of ``standard_error``; infinite if the error is 0.
        launches: how many launches the new side has.
        sampling_variance: the part of the squared standard error that more launches of the new side would shrink.
        fixed_variance: the rest of the squared standard error: the baseline's own error.
        paired_rounds: whether both sides were measured in the same rounds.
        freedom: degrees of freedom of the new side's error and of the base's.
        assumed: how many degrees of freedom of the new side come from the expected scatter of launches.
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


def center(
    samples: Sequence[float],
    scale: Scale,
    expected: Expected | None = None,
    *,
    robust: bool = False,
    confidence: float = CONFIDENCE,
) -> tuple[float, Interval | None]:
    """Returns the value over launches and the t interval around it, in the samples' unit.

    Both are geometric (computed from logarithms) for ratios of positive samples, and arithmetic otherwise.

    Args:
        samples: one number for each launch.
        scale: how the metric is compared.
        expected: the expected scatter of launches; None to use the samples' scatter alone.
        robust: whether outliers hardly move the value; see ``center_of``.
        confidence: of the interval.

    Returns:
        The value and its interval. The interval is None for a single sample or two that differ, if no scatter is
        expected, and if its ends differ by more than a factor of three.

    Raises:
        ValueError: there are no samples.
    """
    logarithmic = scale == "ratio" and min(samples, default=1) > 0
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
    """Returns the change from ``base`` to ``new``, whose launches share no rounds, with a t interval over launches.

    The interval has the degrees of freedom of the smaller side (Hsu 1938): Welch's approximation claims more than a few
    launches support, if their scatter is examined after each of them. A side with a single launch borrows the other
    side's scatter. Ratios with samples that are not positive have no logarithm: their change is the difference of means
    as a fraction of the base's mean, and the base's error is propagated to first order.

    Args:
        new: one number for each new launch.
        base: one number for each launch of the baseline.
        scale: ``ratio`` or ``difference``.
        expected: the expected scatter of launches of either side, as in ``center``.

    Returns:
        The change; None for a ratio to zero, and for samples that are not finite.

    Raises:
        ValueError: a side has no samples.
    """
    if not all(map(math.isfinite, (*new, *base))):
        return None
    logarithmic = scale == "ratio" and min((*new, *base), default=1) > 0
    new_side, base_side = (
        center_of([math.log(sample) for sample in side] if logarithmic else side) for side in (new, base)
    )
    if scale == "ratio" and not logarithmic:
        if base_side.mean == 0 and (any(new) or any(base)):
            return None
        new_side, base_side = _relative_to(new_side, base_side)
    else:
        new_side, base_side = (moderated(side, expected) for side in (new_side, base_side))
    errors = _errors(new_side, base_side)
    return _assemble(new_side.mean - base_side.mean, errors, new_side.n, logarithmic=logarithmic)


def paired(
    new: Sequence[float], base: Sequence[float], *, scale: Scale, expected: Expected | None = None, robust: bool = False
) -> Change | None:
    """Returns the change from ``base`` to ``new`` in the same rounds, with Student's interval over the differences.

    A disturbance of a whole round affects both sides and cancels out (Student 1908). More rounds shrink the whole
    error. Ratios are as in ``change``; a ratio without a logarithm is a difference relative to the base's mean.

    Args:
        new: one number for each round.
        base: one number of the other side for each round, in the same order.
        scale: ``ratio`` or ``difference``.
        expected: the expected scatter of the differences; None to use the rounds' scatter alone.
        robust: as in ``center``, for the differences.

    Returns:
        The change, or None as in ``change``.

    Raises:
        ValueError: a side has no samples, or the sides have different numbers of samples.
    """
    if not all(map(math.isfinite, (*new, *base))):
        return None
    logarithmic = scale == "ratio" and min((*new, *base), default=1) > 0
    size = 1.0
    if scale == "ratio" and not logarithmic:
        size = abs(center_of(base).mean)
        if size == 0 and (any(new) or any(base)):
            return None
    pairs = zip(new, base, strict=True)
    differences = [math.log(one / other) if logarithmic else (one - other) / (size or 1.0) for one, other in pairs]
    side = moderated(center_of(differences, robust=robust), expected if logarithmic or scale != "ratio" else None)
    errors = None if side.variance is None else _Errors(side.variance, 0.0, (side.df, math.inf), side.assumed)
    return _assemble(side.mean, errors, side.n, logarithmic=logarithmic, paired_rounds=True)


def with_launches(change: Change, launches: int) -> Change:
    """Returns the change as certain as it would be if the new side had ``launches`` launches with the same scatter.

    More launches add degrees of freedom to the measured scatter, but not to the expected scatter. The estimate and its
    interval stay the same.
    """
    if change.standard_error is None:
        return change
    sampling = change.sampling_variance * change.launches / launches
    new, base = change.freedom
    least = 0.0 if change.assumed else 1.0
    freedom = change.assumed + max(least, (new - change.assumed + 1) * launches / change.launches - 1)
    return replace(
        change,
        launches=launches,
        sampling_variance=sampling,
        standard_error=math.sqrt(sampling + change.fixed_variance),
        freedom=(freedom, base),
        df=min(freedom, base),
    )


def possible(interval: Interval | None, least: float, most: float) -> Interval | None:
    """Clips an interval to the possible values from ``least`` to ``most``; None if it then says no more than these."""
    if interval is None:
        return None
    low, high = max(interval.low, least), min(interval.high, most)
    return None if low > high or (low, high) == (least, most) else replace(interval, low=low, high=high)


def half_width(change: Change, alpha: float) -> float | None:
    """Returns half the width of the two-sided ``1 - alpha`` interval around ``shift``; None if it is unknown."""
    if change.standard_error is None:
        return None
    if change.standard_error == 0:
        return 0.0
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


def _assemble(
    shift: float, errors: _Errors | None, launches: int, *, logarithmic: bool, paired_rounds: bool = False
) -> Change | None:
    """Builds a change from its shift and the errors of both means; None if a number is not finite."""
    variance = 0.0 if errors is None else errors.new + errors.base
    if not math.isfinite(shift) or not math.isfinite(variance):
        return None
    back = from_log if logarithmic else float
    unknown = Change(
        estimate=back(shift), logarithmic=logarithmic, shift=shift, launches=launches, paired_rounds=paired_rounds
    )
    if errors is None:
        return unknown
    known = replace(
        unknown,
        standard_error=math.sqrt(variance),
        df=min(errors.freedom) if variance else math.inf,
        sampling_variance=errors.new,
        fixed_variance=errors.base,
        freedom=errors.freedom,
        assumed=errors.assumed,
    )
    return replace(known, interval=interval_at(known, 1 - CONFIDENCE))


def _errors(new: Center, base: Center) -> _Errors | None:
    """Returns the errors of both means; a single launch borrows the other side's scatter, None if both are single."""
    if new.variance is not None and base.variance is not None:
        return _Errors(new.variance, base.variance, (new.df, base.df), new.assumed)
    if base.variance is not None:
        return _Errors(base.variance * base.n, base.variance, (base.df, base.df))
    if new.variance is not None:
        return _Errors(new.variance, new.variance * new.n, (new.df, new.df))
    return None


def _relative_to(new: Center, base: Center) -> tuple[Center, Center]:
    """Divides both sides by the base's mean, whose own error counts as far as it moves the quotient."""
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
