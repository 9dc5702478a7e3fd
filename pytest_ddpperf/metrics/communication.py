"""The exposed communication of a step, from steps with and without synchronisation of gradients."""

from __future__ import annotations

from statistics import fmean

from pytest_ddpperf.metrics.launch_figures import Samples, Within, complete, once
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.stats.launches import MIN_BLOCKS, OWN_IN_TURNS, influences

EXPOSED = "exposed_communication"
OVERHEAD = "communication_overhead"


def exposed_communication(measurement: Measurement) -> Samples | None:
    """Returns, by launch, the seconds by which averaging gradients makes a step longer: with minus without averaging.

    Blocks of synchronised and of unsynchronised steps alternate in one launch, so a slow moment slows both. A step
    lasts as long as on its slowest rank. If nothing is sent, the difference is noise around 0.
    """
    pairs = _pairs(measurement)
    return None if pairs is None else tuple(synchronised - alone for synchronised, alone in pairs)


def communication_overhead(measurement: Measurement) -> Samples | None:
    """Returns exposed communication as a share of a synchronised step, by launch; None if no launch was diagnosed."""
    pairs = _pairs(measurement)
    return None if pairs is None else tuple(1 - alone / synchronised for synchronised, alone in pairs)


def of_exposed(measurement: Measurement) -> Within:
    """Returns the scatter of exposed communication within launches, from pairs of blocks, in seconds."""
    moved = [[step - alone for step, alone in pairs] for pairs in _without_each(measurement)]
    step = synchronised_step(measurement) or 0.0
    return Within(tuple(map(influences, moved)), OWN_IN_TURNS * step)


def of_overhead(measurement: Measurement) -> Within:
    """Returns the scatter of ``communication_overhead`` within launches, from pairs of blocks, as a share of a step."""
    moved = [[1 - alone / step for step, alone in pairs] for pairs in _without_each(measurement)]
    return Within(tuple(map(influences, moved)), OWN_IN_TURNS)


def _without_each(measurement: Measurement) -> list[list[tuple[float, float]]]:
    """Returns, by launch, the entries of ``_steps`` that omit a pair of blocks; skips launches with a single pair."""
    return [without for _, *without in filter(None, map(_steps, measurement.every)) if without]


def synchronised_step(measurement: Measurement) -> float | None:
    """Returns the seconds of a synchronised step, averaged over launches; None if no launch was diagnosed."""
    pairs = _pairs(measurement)
    return None if pairs is None else fmean(synchronised for synchronised, _ in pairs)


def still_sent(measurement: Measurement) -> str:
    """Returns a text on the communication that remained in unsynchronised steps; empty if there was none."""
    found = (rank.communication for launch in measurement.every for rank in launch.ranks[:1])
    return next((blocks.still_sent for blocks in found if blocks is not None), "")


def no_memory_headroom(measurement: Measurement) -> Finding | None:
    """Reports that exposed communication was not measured, as copies of the training state did not fit in memory."""
    lacking = [lack for launch in measurement.every if (lack := launch.ranks[0].no_headroom) is not None]
    if not lacking:
        return None
    needed, free = lacking[0].needed, lacking[0].free
    return Finding("no_memory_headroom", {"launches": len(lacking), "needed": needed, "free": free})


def synchronisation_kept(measurement: Measurement) -> Finding | None:
    """Reports that exposed communication was not measured, because the user's own step skipped no synchronisation."""
    reason = next((launch.ranks[0].kept for launch in measurement.every if launch.ranks[0].kept), None)
    return None if reason is None else Finding("synchronisation_kept", {"reason": reason})


def _pairs(measurement: Measurement) -> list[tuple[float, float]] | None:
    """Returns seconds of the mean synchronised and unsynchronised step by diagnosed launch; None without launches."""
    return [steps[0] for steps in map(_steps, measurement.every) if steps] or None


@once
def _steps(launch: Launch) -> list[tuple[float, float]]:
    """Returns mean (synchronised, unsynchronised) step times in s: of all blocks, then omitting one pair at a time.

    Empty if a rank did not run such steps. With a single pair of blocks, the list has only the means of all blocks.
    """
    known = complete(rank.communication for rank in launch.ranks)
    if known is None:
        return []
    number = min(rank.pairs for rank in known)

    def kept(times: tuple[float, ...], pair: int) -> tuple[float, ...]:
        size = len(times) // max(1, number)
        return times if pair < 0 else (*times[: pair * size], *times[(pair + 1) * size :])

    return [
        (
            _mean_of([kept(rank.synchronised, pair) for rank in known]),
            _mean_of([kept(rank.unsynchronised, pair) for rank in known]),
        )
        for pair in range(-1, number if number >= MIN_BLOCKS else 0)
    ]


def _mean_of(ranks: list[tuple[float, ...]]) -> float:
    """Returns the mean step time of a group of ranks; the time of a step is that on its slowest rank."""
    return fmean(map(max, zip(*ranks, strict=True)))
