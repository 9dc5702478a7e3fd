"""The nouns of noise: how far separate runs of a benchmark lie apart, as calibrations and comparisons know it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_ddpperf.records.measurement import Spread

LEAST_BEYOND = 0.1  # of the variance of runs: what their launches never explain


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpread:
    """How far the centers of separate runs lie apart, and how much of that the scatter of their launches explains."""

    centers: Spread
    sampling: float = 0.0  # variance: the centers' mean squared standard error

    @property
    def beyond(self) -> Spread:
        """What runs deviate by beyond what their launches explain.

        A tenth of the variance at least. A difference of two variances is known less well than the first of them: it
        has the degrees of freedom that leave its error the same (Satterthwaite 1946).
        """
        of_centers = self.centers.sd**2
        left = max(of_centers - self.sampling, LEAST_BEYOND * of_centers)
        share = left / of_centers if of_centers else 1.0
        return Spread(sd=math.sqrt(left), df=self.centers.df * share**2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """What separate runs of a benchmark differ by while nothing changes, as a comparison takes it into account."""

    between_runs: RunSpread  # how far a run's times deviate as a whole, by runs that may all be of one day
    over_days: RunSpread | None = None  # the same by runs of several days
    quotients: RunSpread | None = None  # the same of quotients by a control step


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """One benchmark measured several times on one machine while nothing changed: how far its step times lie apart."""

    name: str  # of the variant within its test
    date: str  # ISO 8601, day
    commit: str | None
    runs: int
    launches: int  # of the run that had the fewest
    steps: int  # of a launch
    seconds: float  # from the start of the first run to that of the last
    within: Spread  # of the steps of a launch
    between_launches: Spread  # of the typical steps of a run's launches
    between_runs: Spread  # of runs, beyond what their launches explain
    floor: float  # the relative change by which one run in 20 is slower than another of the same code
    strategy: str = ""  # in words; empty in files from before it was kept
    recipe: Mapping[str, str] = field(default_factory=dict)  # as in BenchmarkId
