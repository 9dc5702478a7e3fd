"""Rates of an event among comparisons that share their launches."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ddpperf.records.measurement import Interval

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Rate:
    """The share of comparisons in which something happened."""

    found: int  # comparisons in which it happened
    of: int  # comparisons
    independent: int  # how many comparisons without a common launch the data allow

    @property
    def value(self) -> float:
        """The share, from 0 to 1."""
        return self.found / self.of

    @property
    def interval(self) -> Interval:
        """The interval of the true rate; only independent comparisons count, because resampled ones share launches."""
        return clopper_pearson(self.value * self.effective, self.effective)

    @property
    def effective(self) -> int:
        """The number of comparisons that the interval rests on."""
        return max(1, min(self.of, self.independent))


def clopper_pearson(found: float, of: float) -> Interval:
    """Returns the exact binomial interval (Clopper and Pearson 1934), by the quantiles of the beta distribution.

    Args:
        found: successes; may be a fraction, if a rate is applied to an effective sample size.
        of: trials.
    """
    from scipy.special import betaincinv

    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if found <= 0 else float(betaincinv(found, of - found + 1, tail))
    high = 1.0 if found >= of else float(betaincinv(found + 1, of - found, 1 - tail))
    return Interval(low=low, high=high, confidence=CONFIDENCE)
