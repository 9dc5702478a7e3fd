"""The time of a step's collectives as the measured network predicts it, compared with the time in the step."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pytest_ddpperf.analysis.evidence import sends_after_backward
from pytest_ddpperf.metrics.communication import communication_overhead, still_sent, synchronised_step
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.network import COLLECTIVES, CollectiveFit

_SAME = 0.001
TOO_FAST = 0.5
"""The share of the predicted time below which a measured time is reported: fits of fast calls are no bound, and gloo
runs two collectives at once."""


def _seconds(counts: Counts, fits: Sequence[CollectiveFit]) -> float:
    """Returns a step's predicted seconds in collectives, if none overlap and all of a kind have the same size."""
    by_name = {fit.collective: fit for fit in fits}
    return sum(
        number * by_name[name].seconds(max(by_name[name].min_bytes, nbytes))
        for name, number, nbytes in _collectives(counts)
    )


def _collectives(counts: Counts) -> list[tuple[str, float, float]]:
    """Returns each kind of collective that moves bytes in a step: its name, its calls, and their mean bytes."""
    calls, nbytes = (counts.details.get(metric, {}) for metric in ("collective_calls", "collective_bytes"))
    return [(name, number, nbytes[name] / number) for name, number in calls.items() if number and nbytes.get(name)]


def _obstacle(counts: Counts, fits: Sequence[CollectiveFit]) -> tuple[str, str, float] | None:
    """Returns why the fits cannot predict a step's collectives, with a collective's name and bytes; else None.

    If several collectives are larger than those measured, the result names the largest, because a new measurement up to
    this size covers all of them.
    """
    largest = {fit.collective: fit.max_bytes for fit in fits}
    for name, _, nbytes in _collectives(counts):
        if name not in largest:
            return ("not_swept" if name in COLLECTIVES else "never_swept"), name, nbytes
    beyond = [(nbytes, name) for name, _, nbytes in _collectives(counts) if nbytes > largest[name]]
    if beyond:
        nbytes, name = max(beyond)
        return "too_large", name, nbytes
    return None if _of_all_ranks(counts, fits) else ("smaller_groups", "", 0.0)


def _of_all_ranks(counts: Counts, fits: Sequence[CollectiveFit]) -> bool:
    """Returns whether all ranks take part in each collective, so that the bytes sent by a rank are known."""
    nbytes, sent = counts.details.get("collective_bytes", {}), counts.totals.get("collective_send_bytes")
    if sent is None or not fits:
        return True
    ranks = fits[0].world_size
    whole = sum(size * (ranks - 1) * (2 if name == "all_reduce" else 1) / ranks for name, size in nbytes.items())
    return abs(sent - whole) <= _SAME * whole


def network_finding(measurement: Measurement, fits: Sequence[CollectiveFit]) -> Finding | None:
    """Returns a finding that compares the predicted time of a step's collectives on the network with the measured time.

    The result is None if nothing is sent or timed. A finding of another kind is returned if the measured time is far
    below the prediction, if no measured time exists, or if no prediction is possible; the last kind has the reason.
    """
    counts = measurement.counts
    if counts is None or not measurement.launches or not sum(counts.details.get("collective_bytes", {}).values()):
        return None
    profiled, obstacle = measurement.profile is not None, _obstacle(counts, fits)
    if obstacle is not None:
        reason, name, size = obstacle
        most = next((fit.max_bytes for fit in fits if fit.collective == name), None)
        ranks = measurement.world_size
        return Finding(
            "not_on_network",
            {"reason": reason, "collective": name, "nbytes": size, "most": most, "ranks": ranks, "profiled": profiled},
        )
    predicted = _seconds(counts, fits)
    measured, how, exposed = _measured(measurement)
    sent = counts.details.get("collective_calls", {})
    error = max(fit.error for fit in fits if fit.collective in sent)
    if measured is None and exposed is None:
        return Finding("only_on_network", {"predicted": predicted, "error": error, "profiled": profiled})
    if measured is not None and measured < TOO_FAST * predicted:
        return Finding(
            "faster_than_network", {"predicted": predicted, "error": error, "measured": measured, "how": how}
        )
    return Finding(
        "on_network", {"predicted": predicted, "error": error, "measured": measured, "how": how, "exposed": exposed}
    )


def _measured(measurement: Measurement) -> tuple[float | None, str, float | None]:
    """Returns (seconds of all collectives, their source in words, None); if unknown, (None, "", exposed seconds)."""
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
