"""Student's t distribution in closed form, for what must start fast: importing scipy takes longer than the answer."""

from __future__ import annotations

import math
from statistics import NormalDist


def t_tail(t: float, df: float) -> float:
    """The probability that Student's t lies further from 0 than ``t``, on either side.

    Wallace's transformation to the normal distribution, "Bounds on normal approximations to Student's and the
    chi-square distributions" (1959): the relative error is some per cent from four degrees of freedom on.
    """
    if math.isinf(t):
        return 0.0
    z = (8 * df + 1) / (8 * df + 3) * math.sqrt(df * math.log1p(t * t / df))
    return math.erfc(z / math.sqrt(2))


def t_reach(confidence: float, df: float) -> float:
    """How many standard errors a two-sided t interval reaches to either side; the inverse of ``t_tail``."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2) * (8 * df + 3) / (8 * df + 1)
    return math.sqrt(df * math.expm1(z * z / df))
