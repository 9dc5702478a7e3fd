"""What single launches amount to: each figure is computed once, for looks come back to the same launches again."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from pytest_ddpperf.records.measurement import Launch, Measurement
from pytest_ddpperf.stats.summaries import typical

Figure = TypeVar("Figure")


def once(figure: Callable[[Launch], Figure]) -> Callable[[Launch], Figure]:
    """The same figure of a launch, computed once and then kept with it.

    A run is judged after each of its launches, always by all of them. Launches never change, so what is kept stays
    true; it is no field of theirs, and so neither compared nor carried over to a changed copy.
    """
    name = f"{figure.__module__}.{figure.__qualname__}"

    @wraps(figure)
    def kept(launch: Launch) -> Figure:
        figures = vars(launch)  # where functools.cached_property keeps its values as well
        if name not in figures:
            figures[name] = figure(launch)
        one: Figure = figures[name]
        return one

    return kept


def of_all(figure: Callable[[Launch], Figure | None], measurement: Measurement) -> tuple[Figure, ...] | None:
    """The figure of each launch; None as soon as one does not have it."""
    known = []
    for launch in measurement.launches:
        one = figure(launch)
        if one is None:
            return None
        known.append(one)
    return tuple(known)


@once
def typical_step(launch: Launch) -> float:
    """Seconds of a typical step of the group; see ``typical``."""
    return typical(launch.step_times)
