"""Benchmarks that are measured side by side with themselves: what their verdicts are worth on this machine."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import combinations

from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verdict import GREEN, Verdict
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.rates import Rate

ROOM = 1.5  # times by how much two runs of the same code were apart at most


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrated:
    """One benchmark, judged against itself several times."""

    test: str
    results: tuple[Result, ...]  # of each run

    @property
    def measurement(self) -> Measurement:
        """That of the last run."""
        return self.results[-1].measurement

    @property
    def alarms(self) -> Rate:
        """Returns how many runs were red, though nothing had changed."""
        return self._rate({Verdict.REGRESSED})

    @property
    def green(self) -> Rate:
        """Returns how many runs were green."""
        return self._rate(GREEN)

    def _rate(self, verdicts: set[Verdict] | frozenset[Verdict]) -> Rate:
        number = len(self.results)
        return Rate(sum(result.verdict in verdicts for result in self.results), number, number)

    @property
    def bound(self) -> float | None:
        """The slowdown of the step time that a run rules out: the median over runs."""
        bounds = [bound for result in self.results if (bound := result[STEP_TIME].bound) is not None]
        return statistics.median(bounds) if bounds else None

    @property
    def mde(self) -> float | None:
        """The smallest slowdown of the step time that a run finds in 95 of 100 cases: the median over runs."""
        smallest = [mde for result in self.results if (mde := result[STEP_TIME].mde) is not None]
        return statistics.median(smallest) if smallest else None

    @property
    def gross(self) -> float:
        """A value of ``ddpperf_gross`` that suits: well beyond what separate runs of the same code were apart."""
        times = [result[STEP_TIME].series.value for result in self.results]
        apart = max((max(pair) / min(pair) - 1 for pair in combinations(times, 2)), default=0.0)
        return max(Settings.gross, round(ROOM * apart, 1))
