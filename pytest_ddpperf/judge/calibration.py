"""The reliability of verdicts on this machine, from benchmarks whose candidate and reference have the same code."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verdict import GREEN, Verdict
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.intervals import Rate

ROOM = 1.5  # ``gross``, as a multiple of the largest difference between two runs of the same code


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrated:
    """One benchmark of a calibration, in which several runs compare the same code with itself."""

    test: str
    results: tuple[Result, ...]  # of each run

    @property
    def measurement(self) -> Measurement:
        """The measurement of the last run."""
        return self.results[-1].measurement

    @property
    def alarms(self) -> Rate:
        """The rate of runs with the verdict ``regressed``: false alarms, because nothing had changed."""
        return self._rate({Verdict.REGRESSED})

    @property
    def green(self) -> Rate:
        """The rate of runs with a verdict that passes, such as ``unchanged``."""
        return self._rate(GREEN)

    def _rate(self, verdicts: set[Verdict] | frozenset[Verdict]) -> Rate:
        return Rate(sum(result.verdict in verdicts for result in self.results), len(self.results))

    @staticmethod
    def _median(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    @property
    def bound(self) -> float | None:
        """The upper bound of the step time's slowdown, a fraction (median over runs); None if no run has a bound."""
        return self._median(result[STEP_TIME].bound for result in self.results)

    @property
    def mde(self) -> float | None:
        """The step time's minimal detectable effect, a fraction (median over runs); None if no run has an estimate."""
        return self._median(result[STEP_TIME].mde for result in self.results)

    @property
    def gross(self) -> float:
        """A suitable value of ``ddpperf_gross``: well above all differences between runs of unchanged code."""
        times = [result[STEP_TIME].series.value for result in self.results]
        apart = max((max(pair) / min(pair) - 1 for pair in combinations(times, 2)), default=0.0)
        return max(Settings.gross, round(ROOM * apart, 1))
