"""Times beside those of the control step, which ran in turns with them: what the machine did meanwhile falls out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpperf.metrics.launch_figures import Moved, complete, moved_by_blocks, once
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Control, Measurement, Series
from pytest_ddpperf.stats.blocks import even_sizes, paired_blocks
from pytest_ddpperf.stats.centers import center_of, center_of_runs
from pytest_ddpperf.stats.summaries import typical


def control_of(measurement: Measurement) -> Control | None:
    """What the control step took in each launch; None where a launch has none."""
    seconds = complete(map(_typical_control, measurement.launches))
    return Control(seconds=seconds, within=tuple(map(_moved_control, measurement.launches))) if seconds else None


def controlled(series: Series) -> Series:
    """A series over the control step: a time is divided by that of its launch, a rate is multiplied.

    Its samples and what is known of their scatter are those of the quotients; value and interval stay. A series without
    control stays as it is.
    """
    if series.control is None:
        return series
    faster = 1 if series.better == "higher" else -1
    within = tuple(tuple(-faster * moved for moved in launch) for launch in series.control.within)
    samples = zip(series.samples, series.control.seconds, strict=True)
    return replace(
        series,
        samples=tuple(sample * seconds**faster for sample, seconds in samples),
        within=paired_blocks(series.within, within),
        control=None,
    )


def pace(series: Series, base: Series, runs: Sequence[int] = ()) -> float:
    """The logarithm of what the control step takes beside one series, over what it took beside the other.

    ``runs``: the launches of each run of the base; it has the mean of its runs, as their times have.
    """
    new, old = (list(map(math.log, side.control.seconds)) for side in (series, base) if side.control is not None)
    return center_of(new, "high").mean - center_of_runs(old, runs, "high").mean


@once
def _typical_control(launch: Launch) -> float | None:
    return typical(launch.control_times) if launch.control_times else None


@once
def _moved_control(launch: Launch) -> Moved:
    """How far each block of a launch's control steps moves the logarithm of the typical one."""
    return moved_by_blocks(launch.control_times, even_sizes(len(launch.control_times)), typical)
