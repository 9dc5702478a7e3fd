"""Findings that follow from measured benchmarks: the best variants, how training scales, the time on the network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from pytest_ddpperf.analysis.evidence import sends_after_backward
from pytest_ddpperf.analysis.scaling import ScalingPoint, fit_law, status, stops_paying
from pytest_ddpperf.metrics.communication import communication_overhead, still_sent, synchronised_step
from pytest_ddpperf.metrics.scaling import EFFICIENCY, SPEEDUP
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Bottleneck, Diagnosis, Finding
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.network import COLLECTIVES, CollectiveFit
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verbs import SideBySide
from pytest_ddpperf.stats.intervals import possible

_LOSES = 0.05  # share of the ideal scaling: a smaller loss is not explained
_TOLD = 0.05  # share of the loss: a smaller part is not reported
_FEW = 2  # unbeaten variants that are named, at most
_KINDS: Mapping[Bottleneck, str] = {
    "communication": "communication",
    "straggler": "straggler",
    "data": "data",
    "compute": "computing",
    "memory_bandwidth": "computing",
    "overhead": "computing",
    "oversubscribed": "cores",
    "disturbed": "cores",
    "unclear": "unclear",
}
"""The cause of lost time in a scaling curve, by the cause in a diagnosis."""


def concluded(results: Sequence[Result]) -> tuple[Result, ...]:
    """Returns the results of one call; the last result also has the findings on all results together."""
    *others, last = results
    if last.measurement.mode is not None:
        fitting = (point for point in results if not point.measurement.unfit)
        points = sorted(fitting, key=lambda point: point.measurement.world_size)
        if not points:
            return tuple(results)
        found = [*_scaling(points), *_loss(points)]
    else:
        found = list(_best(results))
    return (*others, replace(last, findings=(*last.findings, *found)))


def _best(results: Sequence[Result]) -> Iterator[Finding]:
    """Yields a finding that names the fastest variants and the variants with the least memory, unless all are equal."""
    over = next((one.measurement.over for one in results if one.measurement.over is not None), None)
    if over is None:
        return
    names, measured = tuple(one.name for one in results), tuple(one.measurement for one in results)
    compared = SideBySide(over=over, names=names, measurements=measured)
    known = len(compared.compared)
    bests = [best if len(best) < known else () for best in (compared.fastest, compared.leanest)]
    unbeaten = compared.unbeaten if all(bests) and len(compared.unbeaten) <= _FEW < known else ()
    if any(bests):
        yield Finding("best_variants", {"fastest": bests[0], "leanest": bests[1], "unbeaten": unbeaten})


def _scaling(points: Sequence[Result]) -> Iterator[Finding]:
    """Yields the finding on a scaling curve, if a point after the first has a core or a GPU for each of its ranks."""
    base, *others = (point.measurement for point in points)
    scaled = [point for point in others if {SPEEDUP, EFFICIENCY} <= {one.metric for one in point.series}]
    own = [point for point in scaled if not point.environment.oversubscribed]
    if not own:
        return
    ranks = base.world_size
    fit = fit_law(
        [ScalingPoint(ranks=point.world_size / ranks, speedups=point[SPEEDUP].samples) for point in own],
        "amdahl" if base.mode == "strong" else "gustafson",
    )
    yield Finding(
        "scaling_law",
        {
            "points": [(status(max(0.0, p[EFFICIENCY].value), p[SPEEDUP].value), p.world_size) for p in own],
            "law": fit.law,
            "serial": fit.serial,
            "interval": possible(fit.interval, 0.0, 1.0),
            "pays": stops_paying(fit, ranks),
            "sharing": [point.world_size for point in others if point.environment.oversubscribed],
        },
    )


def _loss(points: Sequence[Result]) -> Iterator[Finding]:
    """Yields a finding with lost seconds by cause, if a step on the largest number of ranks loses much time."""
    first, *others = points
    scaled = [
        (point, one.series.value) for point in others for one in point.comparisons if one.series.metric == EFFICIENCY
    ]
    for last, efficiency in scaled[-1:]:
        before, now = first.step.diagnosis, last.step.diagnosis
        if efficiency > 1 - _LOSES or before is None or now is None:
            return
        lost, kinds = scaling_loss(before, now, efficiency)
        kinds = {kind: seconds for kind, seconds in kinds.items() if seconds > _TOLD * lost}
        ranks = last.measurement.world_size
        yield Finding("scaling_loss", {"ranks": ranks, "lost": lost, "step": now.step, "kinds": kinds})


def scaling_loss(base: Diagnosis, point: Diagnosis, efficiency: float) -> tuple[float, dict[str, float]]:
    """Returns the seconds that a step of ``point`` loses compared with ideal scaling: in total, and by cause.

    The largest loss comes first; a gain is negative. ``efficiency`` is the ideal step time divided by the measured step
    time. With ideal scaling, the times of all causes change by the same factor.
    """
    ideal = efficiency * point.step
    share = ideal / base.step
    kinds: dict[str, float] = {}
    for bottleneck, kind in _KINDS.items():
        here, there = (0.0 if (cause := one.cause(bottleneck)) is None else cause.seconds for one in (point, base))
        kinds[kind] = kinds.get(kind, 0.0) + here - share * there
    return point.step - ideal, dict(sorted(kinds.items(), key=lambda item: -item[1]))


_SAME_BYTES = 0.001
TOO_FAST = 0.5
"""The share of the predicted time below which a measured time is reported as too short. Times may be a little shorter
than predicted, because gloo runs two collectives at once."""


def _collectives(counts: Counts) -> list[tuple[str, float, float]]:
    """Returns each kind of collective that moves bytes in a step: its name, its calls, and their mean bytes."""
    calls, nbytes = (counts.details.get(metric, {}) for metric in ("collective_calls", "collective_bytes"))
    return [(name, number, nbytes[name] / number) for name, number in calls.items() if number and nbytes.get(name)]


def _network_obstacle(counts: Counts, fits: Sequence[CollectiveFit]) -> tuple[str, str, float] | None:
    """Returns (reason, collective, its bytes) if the fits cannot predict the time of a step's collectives; else None.

    If several collectives are larger than those measured, the result names the largest, up to which to measure.
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
    """Returns whether all ranks take part in each collective, judged by the number of bytes that a rank sends."""
    nbytes, sent = counts.details.get("collective_bytes", {}), counts.totals.get("collective_send_bytes")
    if sent is None or not fits:
        return True
    ranks = fits[0].world_size
    whole = sum(size * (ranks - 1) * (2 if name == "all_reduce" else 1) / ranks for name, size in nbytes.items())
    return abs(sent - whole) <= _SAME_BYTES * whole


def network_finding(measurement: Measurement, fits: Sequence[CollectiveFit]) -> Finding | None:
    """Compares the measured time of a step's collectives with the time that the network's ``fits`` predict.

    If steps have a time but their collectives do not, the finding has only the prediction. If no prediction is
    possible, the finding has the reason. Returns None if no collective moves bytes, or if no step has a time.
    """
    counts = measurement.counts
    if counts is None or not measurement.launches or not sum(counts.details.get("collective_bytes", {}).values()):
        return None
    profiled, obstacle = measurement.profile is not None, _network_obstacle(counts, fits)
    if obstacle is not None:
        reason, name, size = obstacle
        most = next((fit.max_bytes for fit in fits if fit.collective == name), None)
        ranks = measurement.world_size
        return Finding(
            "not_on_network",
            {"reason": reason, "collective": name, "nbytes": size, "most": most, "ranks": ranks, "profiled": profiled},
        )
    by_name = {fit.collective: fit for fit in fits}
    predicted = sum(  # if no collectives overlap, and all of a kind have the same size
        number * by_name[name].seconds(max(by_name[name].min_bytes, nbytes))
        for name, number, nbytes in _collectives(counts)
    )
    measured, how, exposed = _measured_seconds(measurement)
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


def _measured_seconds(measurement: Measurement) -> tuple[float | None, str, float | None]:
    """Returns (seconds of a step's collectives, source of this time as text, exposed seconds).

    The exposed seconds are the part of the time that computing does not hide. They are None if the whole time is known,
    or if they are unknown, too. If the whole time is unknown, the first two elements are None and empty.
    """
    profile = measurement.profile
    if profile is not None and profile.transfer is not None:
        return profile.transfer, "the profiler saw", None
    overheads, step = communication_overhead(measurement), synchronised_step(measurement)
    if overheads is None or step is None:
        return None, "", None
    exposed = max(0.0, median(overheads)) * step
    if sends_after_backward(measurement):
        return exposed, "steps with and without synchronisation differ by", None
    return None, "", None if still_sent(measurement) else exposed
