"""What a metric may differ by while the code stays as it is: tolerance, noise floor, and the spread between runs."""

from __future__ import annotations

import math
from dataclasses import replace

from pytest_ddpperf.records.measurement import Environment, Series, Spread
from pytest_ddpperf.records.results import Noise
from pytest_ddpperf.stats.intervals import DRIFT
from pytest_ddpperf.stats.spreads import wider

TIMED_SPREAD = 0.01
"""Standard deviation by which a run's times deviate as a whole, as a fraction, where nothing was learned."""

OVERSUBSCRIBED_SPREAD = 0.02
"""The same where ranks share cores or GPUs and the scheduler decides who waits."""

NO_SPREAD = Spread(sd=0.0, df=math.inf)


def tolerance_of(series: Series, baseline: float, tolerance: float, step: float | None = None) -> float:
    """The tolerance of one metric: the test's, but at least the metric's slack.

    Where values are subtracted it is an amount, and grows with a baseline above 1 as numpy.allclose lets it: 3 % of a
    loss of 10, but 0.03 for one of 0.001. Bytes are far above 1: there the slack stays the amount that it is. The time
    that a step has a core for may differ by as many seconds as the ``step`` itself: where ranks mostly wait, some per
    cent of their work are nothing.
    """
    if series.scale == "difference" and series.unit == "B":
        return max(series.min_tolerance, tolerance * abs(baseline))
    accepted = max(tolerance, series.min_tolerance)
    if series.rules.stands_in and step is not None and baseline > 0:
        return accepted * max(1.0, step / baseline)
    if series.rules.negligible and min(baseline, series.value) > 0:  # as much less as more
        return max(accepted, series.rules.negligible / min(baseline, series.value))
    return accepted * max(1.0, abs(baseline)) if series.scale == "difference" else accepted


def floor_of(series: Series, noise: Noise | None) -> float:
    """The smallest tolerance that has a meaning: the noise floor learned for times, and nothing for all else."""
    return noise.floor if noise is not None and series.scale == "ratio" and _learned(series) else 0.0


def _learned(series: Series) -> bool:
    """Whether what is learned of the noise of times holds for this metric: partners of one run share its deviation."""
    return _deviates(series) and series.family == "absolute"


def _deviates(series: Series) -> bool:
    """Whether a run deviates in it as a whole: its times do, its bytes and its seeded losses do not."""
    return series.rules.deviation > 0


def drift_of(series: Series) -> float:
    """The share of the launches' scatter that a run deviates by at least: of times, whatever a calibration has told."""
    return DRIFT if _learned(series) else 0.0


def spread_between_runs(
    series: Series, environment: Environment, step: float | None = None, noise: Noise | None = None
) -> Spread:
    """By how much a run deviates as a whole: its times do, its bytes and its seeded losses do not.

    As a fraction; as an amount where times are compared by subtraction. Exposed communication is what is left of two
    step times, and has their deviation, however little it is itself.
    """
    if not _deviates(series):
        return NO_SPREAD
    default = OVERSUBSCRIBED_SPREAD if environment.oversubscribed else TIMED_SPREAD
    default *= series.rules.deviation
    learned = noise.between_runs if noise is not None and _learned(series) else NO_SPREAD
    spread = wider(learned, default)
    seconds = step if series.rules.deviates_with_step_time and step is not None else abs(series.value)
    return replace(spread, sd=spread.sd * seconds) if (series.unit, series.scale) == ("s", "difference") else spread
