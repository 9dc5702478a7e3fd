"""How much of a step is communication that nothing hides: from steps with and without it."""

from __future__ import annotations

from statistics import fmean

from pytest_ddpperf.metrics.launches import once
from pytest_ddpperf.records import Launch, Measurement
from pytest_ddpperf.stats.summaries import typical
from pytest_ddpperf.units import format_count, format_values

EXPOSED = "exposed_communication"
OVERHEAD = "communication_overhead"

Samples = tuple[float, ...]


def exposed_communication(measurement: Measurement) -> Samples | None:
    """Seconds by which a typical step is longer for averaging its gradients: synchronised less unsynchronised.

    Both sides are of blocks of one launch that alternated, so what slows the machine down for a while slows both. A
    step lasts as long as its slowest rank on either side. Where nothing is sent the difference is the blocks' noise,
    on both sides of 0.
    """
    pairs = _pairs(measurement)
    return None if pairs is None else tuple(synchronised - alone for synchronised, alone in pairs)


def communication_overhead(measurement: Measurement) -> Samples | None:
    """Exposed communication as a share of the synchronised steps of the same blocks."""
    pairs = _pairs(measurement)
    return None if pairs is None else tuple(1 - alone / synchronised for synchronised, alone in pairs)


def synchronised_step(measurement: Measurement) -> float | None:
    """Seconds of a whole step in those blocks, averaged over launches; None where there are none."""
    pairs = _pairs(measurement)
    return None if pairs is None else fmean(synchronised for synchronised, _ in pairs)


def still_sent(measurement: Measurement) -> str:
    """What the unsynchronised steps sent all the same, in words; empty for nothing."""
    found = (rank.communication for launch in measurement.launches[:1] for rank in launch.ranks[:1])
    return next((blocks.still_sent for blocks in found if blocks is not None), "")


def no_room(measurement: Measurement) -> str | None:
    """A sentence where it was not measured for want of memory; else None."""
    found = [launch.ranks[0].no_room for launch in measurement.launches]
    rooms = [room for room in found if room is not None]
    if not rooms:
        return None
    needed, free = format_values((rooms[0].needed, rooms[0].free), "B")
    return (
        f"exposed communication was not measured in {format_count(len(rooms), 'launch')}: copies of what a machine's "
        f"ranks train, to put it back, take {needed} of its memory, and {free} are free for them"
    )


def _pairs(measurement: Measurement) -> list[tuple[float, float]] | None:
    """Of each diagnosed launch the typical synchronised and the typical unsynchronised step; None without any."""
    return [pair for pair in map(_pair, measurement.launches) if pair is not None] or None


@once
def _pair(launch: Launch) -> tuple[float, float] | None:
    known = [rank.communication for rank in launch.ranks if rank.communication is not None]
    if len(known) < len(launch.ranks):
        return None
    return _typical([rank.synchronised for rank in known]), _typical([rank.unsynchronised for rank in known])


def _typical(ranks: list[tuple[float, ...]]) -> float:
    return typical(tuple(map(max, zip(*ranks, strict=True))))
