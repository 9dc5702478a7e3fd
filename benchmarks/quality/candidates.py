"""What a launch's steps could be reduced to, and how far launches differ by each: the evidence for ``typical``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from benchmarks.quality.conditions import CONDITIONS, FIRST
from benchmarks.quality.launches import Cell, Recorded
from benchmarks.quality.resampling import of_cell, partners
from pytest_ddpperf.records.measurement import Spread
from pytest_ddpperf.stats.intervals import center
from pytest_ddpperf.stats.spreads import pooled
from pytest_ddpperf.stats.summaries import quantile, typical

SHOWN = "+10%"
Figure: TypeAlias = Callable[[Recorded], float]


@dataclass(frozen=True)
class Scatter:
    """How far launches of one condition differ by a statistic of their steps.

    Attributes:
        alone: of single launches; standard deviation on the scale of logarithms, as ``turns``.
        turns: of the differences of two launches that took turns.
        shown: by how much steps that are 10 % slower are slower by it; None where there are none.
    """

    alone: Spread
    turns: Spread
    shown: float | None


def _faster(share: float, step_times: Sequence[float]) -> float:
    return statistics.fmean(sorted(step_times)[: max(1, round(share * len(step_times)))])


TYPICAL, CPU_TIME = "typical step", "CPU time"
CANDIDATES: Mapping[str, Callable[[Sequence[float]], float]] = {
    TYPICAL: typical,
    "minimum": min,
    "lower tenth": partial(quantile, q=0.1),
    "lower quartile": partial(quantile, q=0.25),
    "median": statistics.median,
    "mean of the faster half": partial(_faster, 0.5),
    "mean of the faster 90%": partial(_faster, 0.9),
    "mean": statistics.fmean,
    "harmonic mean": statistics.harmonic_mean,
}


def scatters(launches: Sequence[Recorded], cell: Cell) -> dict[str, Scatter]:
    """By candidate, and of the busiest rank's CPU time where it is known; those of a cell's launches."""
    alone = [of_cell(launches, cell, name) for name in CONDITIONS]
    turns = [partners(launches, cell, name) for name in CONDITIONS if name != FIRST]
    slower = partners(launches, cell, SHOWN)
    figures: dict[str, Figure] = {name: partial(_of_steps, figure) for name, figure in CANDIDATES.items()}
    if all(None not in one.cpu for one in launches if one.cell == cell):
        figures[CPU_TIME] = _cpu_time
    return {
        name: Scatter(
            alone=pooled([[figure(one) for one in of_one] for of_one in alone]),
            turns=pooled([ratios(pairs, figure) for pairs in turns]),
            shown=center(ratios(slower, figure), "ratio")[0] - 1 if slower else None,
        )
        for name, figure in figures.items()
    }


def ratios(pairs: Sequence[tuple[Recorded, Recorded]], figure: Figure | None = None) -> list[float]:
    """What the second of two launches that took turns has, over what the first one has (default: the typical step)."""
    of = figure or partial(_of_steps, typical)
    return [of(new) / of(base) for base, new in pairs]


def _of_steps(figure: Callable[[Sequence[float]], float], one: Recorded) -> float:
    return figure(one.step_times)


def _cpu_time(one: Recorded) -> float:
    return max(seconds for seconds in one.cpu if seconds is not None)
