"""Conclusions from the benchmarks that one call measured side by side: the best variants, and how training scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_ddpperf.analysis.scaling import ScalingPoint, fit_law, status, stops_paying
from pytest_ddpperf.metrics.scaling import EFFICIENCY, SPEEDUP
from pytest_ddpperf.records.finding import Bottleneck, Diagnosis, Finding
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
    """Yields a finding that names the fastest and the smallest variant, or several if their intervals overlap."""
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
    """Yields the finding on how many seconds the largest group loses by each cause; none if it loses little."""
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

    The largest cause comes first; seconds are negative for a gain. ``efficiency`` is the ideal step time divided by the
    measured step time. Ideally, all causes take the same fraction of their time at ``base``: all of it with weak
    scaling, a half with strong scaling and twice the ranks. Computing loses time if a smaller batch uses cores worse,
    or if ranks share the memory's bandwidth.
    """
    ideal = efficiency * point.step
    share = ideal / base.step
    kinds: dict[str, float] = {}
    for bottleneck, kind in _KINDS.items():
        here, there = (0.0 if (cause := one.cause(bottleneck)) is None else cause.seconds for one in (point, base))
        kinds[kind] = kinds.get(kind, 0.0) + here - share * there
    return point.step - ideal, dict(sorted(kinds.items(), key=lambda item: -item[1]))
