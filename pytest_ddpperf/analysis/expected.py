"""What the collectives of a measured step take on a network that was measured, beside what they took."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pytest_ddpperf.analysis.evidence import sends_after_backward
from pytest_ddpperf.analysis.network import CollectiveFit
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.metrics.communication import communication_overhead, still_sent, synchronised_step
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Measurement

_SAME = 0.001
TOO_FAST = 0.5
"""The share of the predicted time below which a measured one is told: a fit of the fastest calls is no bound, and gloo
runs two collectives at once."""


def expected_seconds(counts: Counts, fits: Sequence[CollectiveFit]) -> float | None:
    """Seconds of a step's collectives one after another, each of the mean size of its kind.

    None where a kind or a size was not measured, or ranks send in smaller groups.
    """
    if not _of_all_ranks(counts, fits):
        return None
    by_name = {fit.collective: fit for fit in fits}
    calls, nbytes = (counts.details.get(metric, {}) for metric in ("collective_calls", "collective_bytes"))
    seconds = 0.0
    for name, number in calls.items():
        if name not in by_name:
            return None
        fit = by_name[name]
        try:
            seconds += number * fit.seconds(max(fit.min_bytes, nbytes.get(name, 0.0) / number))
        except SettingError:
            return None
    return seconds


def _of_all_ranks(counts: Counts, fits: Sequence[CollectiveFit]) -> bool:
    """Whether all ranks take part in each collective: what a rank sends of the bytes tells it."""
    nbytes, sent = counts.details.get("collective_bytes", {}), counts.totals.get("collective_send_bytes")
    if sent is None or not fits:
        return True
    ranks = fits[0].world_size
    whole = sum(size * (ranks - 1) * (2 if name == "all_reduce" else 1) / ranks for name, size in nbytes.items())
    return abs(sent - whole) <= _SAME * whole


def network_finding(measurement: Measurement, fits: Sequence[CollectiveFit]) -> Finding | None:
    """What the network would have the collectives of a step take, and what they were measured to take.

    None where nothing is sent, timed or known, or was measured to be held against it. A measurement far below it has a
    code of its own.
    """
    if measurement.counts is None or not measurement.launches:
        return None
    predicted = expected_seconds(measurement.counts, fits)
    measured, how, exposed = _measured(measurement)
    if not predicted or (measured is None and exposed is None):
        return None
    sent = measurement.counts.details.get("collective_calls", {})
    error = max(fit.error for fit in fits if fit.collective in sent)
    if measured is not None and measured < TOO_FAST * predicted:
        return Finding(
            "faster_than_network", {"predicted": predicted, "error": error, "measured": measured, "how": how}
        )
    return Finding(
        "on_network", {"predicted": predicted, "error": error, "measured": measured, "how": how, "exposed": exposed}
    )


def _measured(measurement: Measurement) -> tuple[float | None, str, float | None]:
    """Seconds of all collectives as they were measured, and by what; None where only what is exposed of them was."""
    profile = measurement.profile
    if profile is not None and profile.transfer is not None:
        return profile.transfer, "the profiler saw", None
    overheads, step = communication_overhead(measurement), synchronised_step(measurement)
    if overheads is None or step is None:
        return None, "", None
    exposed = max(0.0, median(overheads)) * step
    if sends_after_backward(measurement):
        return exposed, "steps with and without synchronisation tell", None
    return None, "", None if still_sent(measurement) else exposed
