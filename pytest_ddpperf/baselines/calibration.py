"""A calibrated benchmark: its spreads, its verdicts against itself, and the settings that it wants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddpperf.metrics.launch_figures import typical_step
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.noise import Calibration
from pytest_ddpperf.records.results import Provenance
from pytest_ddpperf.stats.rates import Rate
from pytest_ddpperf.stats.spreads import components, noise_floor, pooled

MAX_LAUNCHES = 32  # recommended ones: beyond them a launch more says next to nothing new
TIME_STEP = 5.0  # s; what a recommended time is rounded up to


@dataclass(frozen=True, slots=True)
class Recommended:
    """Settings that a benchmark wants, given its noise; ``max_time`` is None where the present one is enough."""

    launches: int
    steps: int
    max_time: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrated:
    """A benchmark that was held against itself."""

    test: str  # pytest node id
    measurement: Measurement  # with the launches of all runs
    calibration: Calibration
    runs: tuple[tuple[float, ...], ...]  # the typical steps of each run's launches, in seconds
    alarms: Rate  # how often one run was called slower than another
    inconclusive: Rate
    mde: float | None  # the median of the smallest slowdowns that comparisons could have seen; None where none could
    recommended: Recommended
    findings: tuple[Finding, ...]  # on the measurement


def typical_steps(runs: Sequence[Measurement]) -> tuple[tuple[float, ...], ...]:
    """The typical steps of each run's launches, in seconds."""
    return tuple(tuple(map(typical_step, run.launches)) for run in runs)


def calibration(runs: Sequence[Measurement], *, seconds: float, provenance: Provenance) -> Calibration:
    """How far the step times of one benchmark lie apart."""
    times = typical_steps(runs)
    parts = components(times)
    return Calibration(
        name=runs[0].name,
        date=provenance.date,
        commit=provenance.commit,
        runs=len(runs),
        launches=min(map(len, times)),
        steps=runs[0].plan.steps,
        seconds=seconds,
        within=pooled([launch.step_times for run in runs for launch in run.launches]),
        between_launches=parts.between_launches,
        between_runs=parts.between_runs,
        floor=noise_floor(times),
        strategy=runs[0].strategy,
        recipe=runs[0].recipe,
    )


def recommended(
    found: Calibration, *, spread: float, launches: int, round_seconds: float, max_time: float
) -> Recommended:
    """The settings that a benchmark wants.

    Launches until what they add to the error of a run is no more than what the run adds itself, for more of them would
    not help: ``between_launches**2 / n <= spread**2``; no fewer than the test's ``launches``. Half of ``max_time`` has
    to hold a first look and its pilot.
    """
    wanted = max(launches, min(MAX_LAUNCHES, math.ceil((found.between_launches.sd / spread) ** 2)))
    needed = 2 * (wanted + 1) * round_seconds
    return Recommended(
        launches=wanted,
        steps=found.steps,
        max_time=None if needed <= max_time else math.ceil(needed / TIME_STEP) * TIME_STEP,
    )
