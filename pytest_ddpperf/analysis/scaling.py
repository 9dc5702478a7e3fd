"""Amdahl's and Gustafson's laws: the serial fraction of a scaling curve, and how many ranks are worth their cost."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_ddpperf.errors import SettingError, require_number, require_one_of
from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.stats.intervals import CONFIDENCE, t_quantile

Law = Literal["amdahl", "gustafson"]
WORDS = ((0.85, "excellent"), (0.7, "good"), (0.5, "fair"), (0.0, "poor"))
"""The word for a scaling efficiency of at least this value; a speedup below 1 is ``negative scaling`` instead."""
PAYS = 0.5  # the least share of a rank's work that one more rank has to add
_MOST_RANKS = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingPoint:
    """A point of a scaling curve: its ranks and speedups, relative to the point with the fewest ranks (the base)."""

    ranks: float  # number of ranks / the base's number of ranks
    speedups: tuple[float, ...]  # one for each round of launches
    oversubscribed: bool = False  # whether its ranks share cores or GPUs: then it says nothing about scaling


@dataclass(frozen=True, kw_only=True, slots=True)
class LawFit:
    """A fitted law of scaling. Speedups are relative to the point with the fewest ranks (the base).

    Attributes:
        law: ``amdahl`` (fixed global batch) or ``gustafson`` (fixed batch of a rank).
        serial: the fraction of the base's step time that does not profit from more ranks; below 0 if speedups are
            larger than the growth of the number of ranks.
        interval: the 95 % interval of ``serial``, by Student's t; None for a single sample.
        error: the root of the mean squared relative error of the fitted speedups.
        ranks: for each fitted point, its number of ranks divided by the base's number of ranks.
    """

    law: Law
    serial: float
    interval: Interval | None
    error: float
    ranks: tuple[float, ...]

    def speedup(self, ranks: float) -> float:
        """Returns the speedup that the law predicts if the base's number of ranks is multiplied by ``ranks``."""
        return LAW[self.law](max(0.0, self.serial), ranks)


def serial_fraction(speedup: float, ranks: float) -> float:
    """Returns Karp's and Flatt's serial fraction (1990), (1/S - 1/n) / (1 - 1/n): it is 1/3 for speedup 2 with 4 ranks.

    Raises:
        SettingError: the speedup is not above 0, or there is only one rank.
    """
    gained, n = require_number("speedup", speedup, positive=True), _more_than_one(ranks)
    return (1 / gained - 1 / n) / (1 - 1 / n)


def amdahl(serial: float, ranks: float) -> float:
    """Returns the speedup of a problem of fixed size: 1 / (s + (1 - s) / n) (Amdahl 1967)."""
    return 1 / (serial + (1 - serial) / ranks)


def gustafson(serial: float, ranks: float) -> float:
    """Returns the speedup of a problem whose size grows with the ranks: n - s (n - 1) (Gustafson 1988)."""
    return ranks - serial * (ranks - 1)


LAW = {"amdahl": amdahl, "gustafson": gustafson}


def fit_law(points: Sequence[ScalingPoint], law: Law) -> LawFit:
    """Fits the serial fraction of a scaling law by least squares; omits points whose ranks share cores or GPUs.

    Both laws are lines through the origin: Amdahl's is 1/S - 1/n = s (1 - 1/n), Gustafson's 1 - S/n = s (1 - 1/n), for
    a speedup S with n times the ranks. All samples have the same weight.

    Raises:
        SettingError: no point remains, or a point has no more ranks than the base.
    """
    require_one_of("law", law, LAW)
    used = [point for point in points if not point.oversubscribed]
    samples = [(_more_than_one(point.ranks), value) for point in used for value in point.speedups]
    if not samples:
        raise SettingError(
            "points: no law can be fitted, because ranks share cores or GPUs in every point; measure fewer ranks"
        )
    pairs = [(1 - 1 / n, 1 / gained - 1 / n if law == "amdahl" else 1 - gained / n) for n, gained in samples]
    squares = math.fsum(x * x for x, _ in pairs)
    serial = math.fsum(x * y for x, y in pairs) / squares
    expected = [LAW[law](max(0.0, serial), n) for n, _ in samples]
    errors = [(one - gained) / gained for one, (_, gained) in zip(expected, samples, strict=True)]
    interval = None
    if len(pairs) > 1:
        left = math.fsum((y - serial * x) ** 2 for x, y in pairs) / (len(pairs) - 1)
        half = t_quantile((1 + CONFIDENCE) / 2, len(pairs) - 1) * math.sqrt(left / squares)
        interval = Interval(low=serial - half, high=serial + half, confidence=CONFIDENCE)
    return LawFit(
        law=law,
        serial=serial,
        interval=interval,
        error=math.sqrt(math.fsum(error**2 for error in errors) / len(errors)),
        ranks=tuple(point.ranks for point in used),
    )


def stops_paying(fit: LawFit, base_ranks: int = 1, *, least: float = PAYS) -> int | None:
    """Returns the number of ranks up to which each further rank pays; None if there is no limit.

    A rank pays if it adds at least the fraction ``least`` of the throughput of a rank at the base (``base_ranks``
    ranks). By Amdahl's law, with a serial fraction of 5 %, the tenth rank adds less than half: 9 is the limit.
    """
    wanted = require_number("least", least, positive=True)

    def gain(ranks: int) -> float:
        return base_ranks * (fit.speedup((ranks + 1) / base_ranks) - fit.speedup(ranks / base_ranks))

    if gain(_MOST_RANKS) >= wanted:
        return None
    # The gain never grows with the ranks.
    return bisect_right(range(_MOST_RANKS), -wanted, lo=base_ranks, key=lambda ranks: -gain(ranks))


def status(efficiency: float, speedup: float) -> str:
    """Returns the word for an efficiency, such as ``excellent``; ``negative scaling`` for a speedup below 1."""
    if require_number("speedup", speedup) < 1:
        return "negative scaling"
    share = require_number("efficiency", efficiency)
    return next(word for least, word in WORDS if share >= least)


def _more_than_one(ranks: float) -> float:
    if require_number("ranks", ranks) <= 1:
        raise SettingError(f"ranks={ranks!r}: expected a factor above 1: the ranks divided by the base's ranks")
    return float(ranks)
