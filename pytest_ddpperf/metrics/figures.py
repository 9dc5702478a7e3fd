"""Figures of launches that gate nothing: what else their steps tell."""

from __future__ import annotations

from statistics import fmean, stdev

from pytest_ddpperf.metrics.launch_figures import of_launches
from pytest_ddpperf.records.launch import Launch


@of_launches
def step_time_min(launch: Launch) -> float:
    """Seconds of a launch's shortest step."""
    return min(launch.step_times)


@of_launches
def step_time_max(launch: Launch) -> float:
    """Seconds of a launch's longest step."""
    return max(launch.step_times)


@of_launches
def step_time_scatter(launch: Launch) -> float | None:
    """Standard deviation of a launch's steps as a share of their mean; None for a single step."""
    times = launch.step_times
    return stdev(times) / fmean(times) if len(times) > 1 else None
