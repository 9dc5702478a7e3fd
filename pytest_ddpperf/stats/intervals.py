"""Where a value lies, and where the change between two runs lies: t intervals over launches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddpperf.records import Interval, Scale

CONFIDENCE = 0.95
LARGEST_LOG = 700.0  # exp() of it is still a finite float: JSON knows no infinity


@dataclass(frozen=True)
class Change:
    """The change from a baseline to a new run, and how well it is known.

    Ratios are analysed as differences of logarithms, where a doubling and a halving are equally far. ``shift``,
    ``standard_error`` and the two variances are on that scale of analysis; ``estimate`` and ``interval`` are not.

    Attributes:
        estimate: relative change for ratios (0.132 is +13.2 %), absolute change for differences.
        interval: where ``estimate`` lies; None where no scatter could be measured.
        scale: how the two sides are compared.
        logarithmic: whether the scale of analysis is logarithmic.
        shift: new minus base on the scale of analysis.
        standard_error: of ``shift``; None where no side has two launches, so that the scatter is unknown.
        df: degrees of freedom of ``standard_error``; infinite where all of it is taken as known.
        launches: how many launches the new side has.
        sampling_variance: the part of the squared standard error that more launches of the new side would shrink.
        fixed_variance: the part that they would not: the baseline's own error and the spread between runs.
    """

    estimate: float
    interval: Interval | None
    scale: Scale
    logarithmic: bool
    shift: float
    standard_error: float | None
    df: float
    launches: int
    sampling_variance: float
    fixed_variance: float


@dataclass(frozen=True)
class _Moments:
    """Sample size, mean and variance of one side; the variance is None for a single sample."""

    n: int
    mean: float
    variance: float | None


@dataclass(frozen=True)
class _Errors:
    """Squared standard errors of both means; ``estimates`` are those that were estimated, with their freedom."""

    new: float
    base: float
    estimates: tuple[tuple[float, int], ...]


def center(samples: Sequence[float], scale: Scale, confidence: float = CONFIDENCE) -> tuple[float, Interval | None]:
    """The typical value over launches and the t interval around it, in the samples' unit.

    Geometric (mean and interval of the logarithms) for ratios of positive samples, arithmetic otherwise.

    Args:
        samples: one number for each launch.
        scale: how the metric is compared.
        confidence: of the interval.

    Returns:
        The value, and its interval: None for a single sample.

    Raises:
        ValueError: there are no samples.
    """
    logarithmic = scale == "ratio" and min(samples, default=1) > 0
    moments = _moments([math.log(sample) for sample in samples] if logarithmic else samples)
    back = _exp if logarithmic else float
    # Samples without any scatter come back as they are, not as exp(log(sample)), which may differ in the last digit.
    value = samples[0] if min(samples) == max(samples) else back(moments.mean)
    if moments.variance is None:
        return value, None
    if moments.variance == 0:
        return value, Interval(value, value, confidence)
    half = t_quantile(0.5 + confidence / 2, moments.n - 1) * math.sqrt(moments.variance / moments.n)
    return value, Interval(back(moments.mean - half), back(moments.mean + half), confidence)


def change(
    new: Sequence[float],
    base: Sequence[float],
    *,
    scale: Scale,
    confidence: float = CONFIDENCE,
    between_runs: float = 0.0,
) -> Change | None:
    """The change from ``base`` to ``new``, two independent runs: Welch's interval over launches.

    Two runs on one machine differ by more than the launches within either of them say: each has a deviation of its
    own. That adds ``2 * between_runs**2`` to the squared standard error; it is taken as known, so it adds nothing to
    the denominator of Satterthwaite's degrees of freedom (Welch 1947; Satterthwaite 1946). A side with a single launch
    borrows the other side's scatter. Ratios with samples that are not positive have no logarithm: they are compared by
    the difference of means, relative to the base's, with the base's error carried over to first order.

    Args:
        new: one number for each new launch.
        base: one number for each launch of the baseline.
        scale: ``ratio`` or ``difference``.
        confidence: of the interval.
        between_runs: standard deviation of a run's own deviation: relative for ratios, in the unit for differences.

    Returns:
        The change, or None where there is none to speak of: a ratio to zero, or samples that are not finite.

    Raises:
        ValueError: a side has no samples.
    """
    if not all(map(math.isfinite, (*new, *base))):
        return None
    logarithmic = scale == "ratio" and min((*new, *base), default=1) > 0
    new_side = _moments([math.log(sample) for sample in new] if logarithmic else new)
    base_side = _moments([math.log(sample) for sample in base] if logarithmic else base)
    if scale == "ratio" and not logarithmic:
        if base_side.mean == 0 and (any(new) or any(base)):
            return None
        new_side, base_side = _relative_to(new_side, base_side)
    return _assemble(
        new_side.mean - base_side.mean,
        _errors(new_side, base_side),
        known=2 * between_runs**2,
        scale=scale,
        logarithmic=logarithmic,
        launches=new_side.n,
        confidence=confidence,
    )


def paired(
    new: Sequence[float], base: Sequence[float], *, scale: Scale, confidence: float = CONFIDENCE
) -> Change | None:
    """The change from ``base`` to ``new``, measured in the same rounds: Student's interval over their differences.

    What disturbs a whole round disturbs both sides of it and cancels out (Student 1908). Both belong to one run, so
    there is no spread between runs, and more rounds shrink all of the error. Ratios as of ``change``; one without a
    logarithm is a difference relative to the base's mean.

    Args:
        new: one number for each round.
        base: the other side's, of the same rounds in the same order.
        scale: ``ratio`` or ``difference``.
        confidence: of the interval.

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
        size = abs(_moments(base).mean)
        if size == 0 and (any(new) or any(base)):
            return None
    pairs = zip(new, base, strict=True)
    side = _moments([math.log(one / other) if logarithmic else (one - other) / (size or 1.0) for one, other in pairs])
    errors = (
        None if side.variance is None else _Errors(side.variance / side.n, 0.0, ((side.variance / side.n, side.n - 1),))
    )
    return _assemble(
        side.mean, errors, known=0.0, scale=scale, logarithmic=logarithmic, launches=side.n, confidence=confidence
    )


def half_width(change: Change, alpha: float) -> float | None:
    """How far the two-sided ``1 - alpha`` interval reaches to either side of ``shift``; None where that is unknown."""
    if change.standard_error is None:
        return None
    if change.standard_error == 0:
        return 0.0
    return t_quantile(1 - alpha / 2, change.df) * change.standard_error


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
    *,
    known: float,
    scale: Scale,
    logarithmic: bool,
    launches: int,
    confidence: float,
) -> Change | None:
    """A change from its shift and its error's parts; ``known`` is the part that is not estimated from the samples."""
    back = from_log if logarithmic else float
    if not math.isfinite(shift):
        return None
    if errors is None:
        return Change(back(shift), None, scale, logarithmic, shift, None, 0.0, launches, 0.0, known)
    total = errors.new + errors.base + known
    if not math.isfinite(total):
        return None
    standard_error = math.sqrt(total)
    df = _satterthwaite(total, errors.estimates)
    half = t_quantile(0.5 + confidence / 2, df) * standard_error
    return Change(
        estimate=back(shift),
        interval=Interval(back(shift - half), back(shift + half), confidence),
        scale=scale,
        logarithmic=logarithmic,
        shift=shift,
        standard_error=standard_error,
        df=df,
        launches=launches,
        sampling_variance=errors.new,
        fixed_variance=errors.base + known,
    )


def _satterthwaite(total: float, estimates: tuple[tuple[float, int], ...]) -> float:
    """Degrees of freedom of a ``total`` squared standard error of which only ``estimates`` are not known exactly."""
    inverse = math.fsum((variance / total) * (variance / total) / df for variance, df in estimates) if total > 0 else 0
    return 1 / inverse if inverse > 0 else math.inf


def _errors(new: _Moments, base: _Moments) -> _Errors | None:
    """The errors of both means; a single launch borrows the other side's scatter, two single ones know of none."""
    if new.variance is not None and base.variance is not None:
        new_part, base_part = new.variance / new.n, base.variance / base.n
        return _Errors(new_part, base_part, ((new_part, new.n - 1), (base_part, base.n - 1)))
    variance = base.variance if new.variance is None else new.variance
    if variance is None:
        return None
    new_part, base_part = variance / new.n, variance / base.n
    return _Errors(new_part, base_part, ((new_part + base_part, max(new.n, base.n) - 1),))


def _relative_to(new: _Moments, base: _Moments) -> tuple[_Moments, _Moments]:
    """Both sides as fractions of the base's mean, whose own error counts by how much it moves the quotient."""
    size = abs(base.mean) or 1.0  # 0 only where both sides are nothing but zeros
    leverage = abs(new.mean) / size
    return (
        _Moments(new.n, new.mean / size, None if new.variance is None else new.variance / size / size),
        _Moments(
            base.n,
            base.mean / size,
            None if base.variance is None else base.variance / size / size * leverage * leverage,
        ),
    )


def _moments(samples: Sequence[float]) -> _Moments:
    """Mean and variance, computed from the first sample so that equal samples have exactly their value and 0."""
    if not samples:
        raise ValueError("an interval needs at least one launch")
    n, first = len(samples), samples[0]
    mean = first + math.fsum(sample - first for sample in samples) / n
    if n == 1:
        return _Moments(n, mean, None)
    return _Moments(n, mean, math.fsum((sample - mean) * (sample - mean) for sample in samples) / (n - 1))


def _exp(value: float) -> float:
    return math.exp(min(value, LARGEST_LOG))
