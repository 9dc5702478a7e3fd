"""Figures of single launches, each computed once: the judge looks at the same launches again and again."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.stats.summaries import typical

Figure = TypeVar("Figure")


def once(figure: Callable[[Launch], Figure]) -> Callable[[Launch], Figure]:
    """The same figure of a launch, computed once and then kept with the launch.

    A run is judged after each of its launches, always by all of them. Launches never change, so what is kept stays
    true.
    """
    name = f"{figure.__module__}.{figure.__qualname__}"

    @wraps(figure)
    def kept(launch: Launch) -> Figure:
        if name not in launch.figures:
            launch.figures[name] = figure(launch)
        found: Figure = launch.figures[name]
        return found

    return kept


def of_all(figure: Callable[[Launch], Figure | None], measurement: Measurement) -> tuple[Figure, ...] | None:
    """The figure of each launch; None as soon as one does not have it."""
    known = []
    for launch in measurement.launches:
        found = figure(launch)
        if found is None:
            return None
        known.append(found)
    return tuple(known)


@once
def typical_step(launch: Launch) -> float:
    """Seconds of a typical step of the group; see ``typical``."""
    return typical(launch.step_times)
