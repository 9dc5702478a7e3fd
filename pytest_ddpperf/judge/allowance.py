"""What a metric may differ by while the code stays as it is: tolerance, runs, and other processes."""

from __future__ import annotations

import math
from dataclasses import replace

from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Environment, Measurement, Series, Spread
from pytest_ddpperf.records.noise import Noise
from pytest_ddpperf.stats.intervals import DRIFT
from pytest_ddpperf.stats.spreads import narrower, wider

# Standard deviation by which a run's times deviate as a whole, as a fraction, where nothing was learned.
TIMED_SPREAD = 0.01
OVERSUBSCRIBED_SPREAD = 0.02  # where ranks share cores or GPUs, and the scheduler decides who waits
SHARED_SPREAD = 0.05  # where others may run on the cores of the machine
QUOTIENT_SPREAD = 0.03  # of times over those of a control step; 4.6 to 7 % were seen under load that comes and goes
NO_SPREAD = Spread(sd=0.0, df=math.inf)

ELASTICITY_SPREAD = 0.1
"""Standard deviation of the power to which a benchmark's times follow those of the control step, which is about 1.

A benchmark that waits for memory or for other ranks more often than the control step follows another machine's mood by
more (benchmarks/control.py).
"""

ALWAYS = 0.03  # share of the cores' time that the system itself uses, in quiet too
MOST = 0.9  # of the cores: what is lost beyond explains anything
EXCUSE_POWER = 2
"""How fast the excuse grows: of ``1 / (1 - lost)``, what lost cores alone would make of a step.

Ranks wait for each other, so a core that one of them loses for a moment holds up all. Two ranks on two cores of which
others took 54 to 70 % took 1.9 to 3.3 times as long for a step (benchmarks/against.py --load 2): that is up to the
power 1.1. The rest is for steps that wait for each other more often.
"""

CONTROLLED_POWER = 1
"""The same of quotients by a control step, which others may slow by another factor than the steps.

On one machine steps followed it with powers of 0.95 to 1.11 (benchmarks/control.py). On another one, whose two cores a
busy process shared, it took 3.0 times as long, where steps took 1.7 times: their quotient fell by 43 %, with 45 % of
the cores taken (benchmarks/against.py --load 1).
"""


def tolerance_of(series: Series, baseline: float, tolerance: float, step: float | None = None) -> float:
    """The tolerance of one metric: the test's, but at least the metric's own smallest one.

    Where values are subtracted it is an amount, and grows with a baseline above 1 as numpy.allclose lets it: 3 % of a
    loss of 10, but 0.03 for one of 0.001. Bytes are far above 1: their smallest tolerance stays the amount that it is.
    CPU time may differ by as many seconds as the ``step`` itself: where ranks mostly wait, some per cent of their work
    are nothing. So may the parts of a step, whose times are subtracted.
    """
    if series.scale == "difference" and series.unit == "B":
        return max(series.min_tolerance, tolerance * abs(baseline))
    accepted = max(tolerance, series.min_tolerance)
    if series.scale == "difference" and series.unit == "s":
        return accepted * (abs(baseline) if step is None else step)
    if series.rules.stands_in and step is not None and baseline > 0:
        return accepted * max(1.0, step / baseline)
    if series.rules.negligible and min(baseline, series.value) > 0:  # as much less as more
        return max(accepted, series.rules.negligible / min(baseline, series.value))
    return accepted * max(1.0, abs(baseline)) if series.scale == "difference" else accepted


def drift_of(series: Series) -> float:
    """The share of the launches' scatter that a run's times deviate by at least, whatever a calibration found."""
    return DRIFT if _learned(series) else 0.0


def default_spread(environment: Environment, *, quotient: bool = False) -> float:
    """By how much a run's times deviate as a whole where nothing was learned; ``quotient``: over a control step's."""
    if quotient:
        return QUOTIENT_SPREAD
    of_own = OVERSUBSCRIBED_SPREAD if environment.oversubscribed else TIMED_SPREAD
    return SHARED_SPREAD if environment.shared else of_own


def spread_between_runs(
    series: Series,
    environment: Environment,
    step: float | None = None,
    noise: Noise | None = None,
    *,
    quotient: bool = False,
) -> Spread:
    """By how much a run deviates as a whole: its times do, its bytes and its seeded losses do not.

    As a fraction; as an amount where times are compared by subtraction. Exposed communication is the difference of two
    step times, and has their deviation, however little it is itself.

    Runs that follow each other tell nothing of what changes over hours or days: they may widen what is assumed. Runs of
    several days may narrow it too. So may runs whose times are quotients by a control step, which takes the drift out.
    """
    if series.rules.deviation <= 0:
        return NO_SPREAD
    default = default_spread(environment, quotient=quotient) * series.rules.deviation
    spread = Spread(sd=default, df=math.inf)
    if noise is not None and _learned(series):
        lasting, passing = (noise.quotients, None) if quotient else (noise.over_days, noise.between_runs)
        if lasting is not None:
            spread = wider(lasting, narrower(lasting, default))
        if passing is not None:
            spread = wider(passing, spread)
    seconds = step if series.rules.deviates_with_step_time and step is not None else abs(series.value)
    return replace(spread, sd=spread.sd * seconds) if (series.unit, series.scale) == ("s", "difference") else spread


def corrected(spread: Spread, pace: float, independent: float = 1.0, disturbance: float = 0.0) -> Spread:
    """The spread between runs whose times were corrected for the pace of the machine, a logarithm.

    A correction is only as good as it is small: a benchmark does not follow the control step exactly. Others may move
    the quotients of one run either way, by two standard deviations of ``disturbance``.
    """
    doubt = (ELASTICITY_SPREAD * pace) ** 2 + (disturbance / 2) ** 2
    sd = math.sqrt(spread.sd**2 + doubt / (1 + 1 / independent))  # all of it is in a change, however many runs
    return Spread(sd=sd, df=spread.df * (sd / spread.sd) ** 4 if spread.sd else math.inf)


def excused_by(
    measurement: Measurement, lost_then: float, worsening: float, *, controlled: bool = False
) -> Finding | None:
    """Why a slowdown beside a stored baseline says nothing: the cores that others took may explain all of it.

    Only what others took beyond what they took from the baseline counts, or less than that where times are quotients: a
    machine that always loses some of its cores still has a gate. A worsening that is larger than that may explain has
    no excuse.

    Args:
        measurement: with the health of its launches; on GPUs nothing is excused, for nothing tells what others took.
        lost_then: the share of the usable cores' time that others took when the baseline was made.
        worsening: of a time, relative: 0.5 for half as long again.
        controlled: whether it is that of quotients by the control step.

    Returns:
        A finding with the figures; None where there is no excuse.
    """
    explained = disturbance(measurement, lost_then, controlled=controlled)
    if explained == 0 or math.log1p(worsening) > explained:
        return None
    return Finding("disturbed", {"lost": measurement.lost, "before": lost_then if lost_then > ALWAYS else None})


def disturbance(measurement: Measurement, lost_then: float, *, controlled: bool) -> float:
    """By how much the cores that others took may have changed a time, as a logarithm; the rest as of ``excused_by``.

    Others lengthen a time. They move a quotient either way: fewer of them now than when the baseline was made, too.
    """
    busier = _busier(measurement, lost_then)
    return CONTROLLED_POWER * abs(busier) if controlled else EXCUSE_POWER * max(0.0, busier)


def hidden_by(measurement: Measurement, lost_then: float, tolerance: float, *, controlled: bool) -> Finding | None:
    """Why a time beside a stored baseline cannot be good: the cores that others took may hide a slowdown.

    Those that they took when the baseline was made lengthened its times. Quotients they move either way, then and now.
    The arguments are those of ``excused_by``. None where they can hide no slowdown beyond the ``tolerance``.
    """
    busier = _busier(measurement, lost_then)
    hidden = CONTROLLED_POWER * abs(busier) if controlled else max(0.0, -busier)
    if hidden == 0 or math.log1p(tolerance) > hidden:
        return None
    return Finding("may_hide", {"lost": measurement.lost, "before": lost_then if lost_then > ALWAYS else None})


def _busier(measurement: Measurement, lost_then: float) -> float:
    """What the cores that others take now make of a step beside what they made of the baseline's, as a logarithm."""
    lost, usual = (min(max(share, ALWAYS), MOST) for share in (measurement.lost, lost_then))
    return math.log((1 - usual) / (1 - lost))


def _learned(series: Series) -> bool:
    """Whether the learned noise of times holds for this metric: partners of one run share a run's deviation."""
    return series.rules.deviation > 0 and series.family == "absolute"
