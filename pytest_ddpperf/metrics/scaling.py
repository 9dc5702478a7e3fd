"""Compares measurements of one run with each other: speedup, scaling efficiency and memory ratio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any, TypeAlias

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.metrics.launch_figures import Samples, Within, complete, mean_step, moved_step, series_from
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Measurement, MetricRules, Mode, Series
from pytest_ddpperf.stats.launches import OWN_APART, OWN_IN_TURNS, paired_influences

EFFICIENCY = "scaling_efficiency"
SPEEDUP = "speedup"
MEMORY = "memory_ratio"
_PEAKS = ("peak_allocated", "peak_resident")  # the memory that a strategy needs: on GPUs, on the CPU

DeriveSeries: TypeAlias = "Callable[[tuple[Measurement, ...]], tuple[Measurement, ...]]"


def alone(measured: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
    """Returns ``measured`` unchanged. Calls such as ``check`` use this function because they compute no speedups."""
    return measured


def with_efficiency(
    points: Sequence[Measurement], mode: Mode, base_size: int = 0, *, grows: bool = False
) -> tuple[Measurement, ...]:
    """Adds speedup and scaling efficiency, relative to the first point, to the points of a scaling curve.

    Efficiency can fail a test only if the first point has ``base_size`` ranks, or if ``base_size`` is 0. A larger first
    point means that smaller groups did not fit into memory. Times cannot fail a test if the ranks share cores or GPUs.
    If the model grows with the number of ranks (``grows``), weak speedup is multiplied by the growth of a rank's FLOPs.
    """
    base = points[0]
    scaled = [_over_base(base, before, point, mode, grows=grows) for before, point in pairwise(points)]
    if base_size in {0, base.world_size}:
        return (base, *scaled)
    return (base, *(_gated_if(point, lambda each: each.gated and each.metric != EFFICIENCY) for point in scaled))


def with_speedup(measured: Sequence[Measurement], over: str, *, gated: bool = False) -> tuple[Measurement, ...]:
    """Adds speedup and memory ratio, relative to the measurement named ``over``, from the rounds that measured both.

    If ``over`` does not fit into memory, the first measurement is the base. A smaller speedup can fail a test only if
    ``gated`` is true. ``gated`` must be false if the call compares strategies or Workloads, because the speedup also
    falls if the base becomes faster. Speedups of ranks that share cores or GPUs never fail a test.
    """
    base = next((point for point in measured if point.name == over), measured[0])
    # A replaced base makes the gain another one than before.
    gated = gated and base.name == over and not base.environment.oversubscribed

    def compared(point: Measurement) -> Measurement:
        speedup = speedup_series(base, point, gated=gated and not point.environment.oversubscribed)
        return replace(point, over=base.name, series=(*point.series, *speedup, *memory_series(base, point)))

    return tuple(point if point is base else compared(point) for point in measured)


def gated_if_paired(derive: DeriveSeries) -> DeriveSeries:
    """Returns ``derive``, which adds metrics, extended so that CPU time can fail a test in paired comparisons."""
    return lambda measured: derive(
        tuple(_gated_if(point, lambda each: each.gated or each.rules.stands_in) for point in measured)
    )


def work_of_rank(point: Measurement) -> float:
    """Returns the mean FLOPs of a rank in one step, as counted; raises WorkloadError if none were counted."""
    flops = 0.0 if point.counts is None else point.counts.totals.get("flops", 0.0)
    if not flops or point.counts is None:
        raise WorkloadError(
            f"{point.name}: no FLOPs were counted, but the efficiency of a model that grows with the ranks is computed "
            "from them; the model needs matrix products or convolutions of torch"
        )
    return fmean(point.counts.by_rank.get("flops", (flops,)))


def scaling_series(base: Measurement, point: Measurement, mode: Mode, work: float = 1.0) -> tuple[Series, ...]:
    """Returns scaling efficiency and speedup of ``point`` over ``base``; each round of launches with both is a sample.

    Let a step take T on n ranks in ``point``, and T0 on m ranks in ``base``. Strong scaling fixes the global batch, so
    the speedup is T0 / T (Amdahl 1967). Weak scaling fixes each rank's batch, so the speedup is (n T0) / (m T)
    (Gustafson 1988). Weak speedup is also multiplied by ``work``, a rank's work in ``point`` / in ``base``. Efficiency
    is the speedup divided by n / m; 1 is perfect.

    Speedup never fails a test, because efficiency judges the same times. Efficiency fails no test if ranks share cores,
    which they do not in real training. The result is empty if no round has both.
    """
    partners, sizes = _partners(base, point), (point.world_size, base.world_size)
    if not partners:
        return ()
    quotients = [mean_step(old) / mean_step(new) for old, new in partners]
    speedups = tuple(quotient if mode == "strong" else quotient * work * sizes[0] / sizes[1] for quotient in quotients)
    efficiencies = tuple(value * sizes[1] / sizes[0] for value in speedups)
    within = _within(partners, turns=base.turns)
    return (
        _relative(EFFICIENCY, efficiencies, within, gated=not point.environment.oversubscribed),
        _relative(SPEEDUP, speedups, within, gated=False),
    )


def speedup_series(base: Measurement, other: Measurement, *, gated: bool = False) -> tuple[Series, ...]:
    """Returns the ``speedup`` of ``other`` over ``base``, with a sample for each round that launched both benchmarks.

    Speedup compares samples per second, or steps per second if a rank's samples are unknown. It can fail a test only if
    ``gated`` is true, because it also falls if the base becomes faster.
    """
    partners = _partners(base, other)
    sizes = base.effective_batch_size, other.effective_batch_size
    work = sizes[1] / sizes[0] if sizes[0] and sizes[1] else 1.0
    samples = tuple(work * mean_step(old) / mean_step(new) for old, new in partners)
    within = _within(partners, turns=base.turns)
    return (_relative(SPEEDUP, samples, within, gated=gated),) if samples else ()


def memory_series(base: Measurement, other: Measurement) -> tuple[Series, ...]:
    """Returns ``memory_ratio``, the peak of ``other`` / peak of ``base``, for each round that launched both benchmarks.

    On GPUs, the peak is of allocated memory, on the CPU of resident memory. Empty without both peaks on one device.
    """
    if base.environment.device != other.environment.device:
        return ()
    peaks = [(_peak(old), _peak(new)) for old, new in _partners(base, other)]
    samples = complete(new / old if new and old else None for old, new in peaks)
    if not samples:
        return ()
    series = _relative(MEMORY, samples, None, gated=False)
    return (replace(series, better="lower", rules=replace(series.rules, drifts=False)),)


def negative_scaling(scaling: Iterable[Series], base_size: int, world_size: int) -> tuple[Finding, ...]:
    """Returns a finding if ``world_size`` ranks do significantly less work per second than ``base_size`` ranks."""
    return tuple(
        Finding("negative_scaling", {"world_size": world_size, "base_size": base_size, "speedup": series.value})
        for series in scaling
        if series.metric == SPEEDUP and series.interval is not None and series.interval.high < 1
    )


def _over_base(base: Measurement, before: Measurement, point: Measurement, mode: Mode, *, grows: bool) -> Measurement:
    """Adds speedup and efficiency over ``base``; adds findings if ``base`` or the previous point is faster."""
    over_base, over_before = (work_of_rank(point) / work_of_rank(one) if grows else 1.0 for one in (base, before))
    series = scaling_series(base, point, mode, over_base)
    findings = dict.fromkeys(  # the smaller group may be the base itself
        (
            *negative_scaling(series, base.world_size, point.world_size),
            *negative_scaling(scaling_series(before, point, mode, over_before), before.world_size, point.world_size),
        )
    )
    grown = [Finding("grown_work", {"work": over_base, "base_size": base.world_size})] if grows else []
    if point.environment.oversubscribed:
        point = _gated_if(point, lambda each: each.gated and not each.rules.timed)
    return replace(point, series=(*point.series, *series), findings=(*point.findings, *findings, *grown))


def _gated_if(point: Measurement, condition: Callable[[Series], bool]) -> Measurement:
    return replace(point, series=tuple(replace(each, gated=condition(each)) for each in point.series))


def _partners(base: Measurement, other: Measurement) -> list[tuple[Launch, Launch]]:
    rounds = {launch.round: launch for launch in base.launches}
    return [(rounds[launch.round], launch) for launch in other.launches if launch.round in rounds]


def _peak(launch: Launch) -> float | None:
    known = ([rank.memory[kind] for rank in launch.ranks if kind in rank.memory] for kind in _PEAKS)
    return max(next(filter(None, known), ()), default=None)


def _within(partners: Sequence[tuple[Launch, Launch]], *, turns: bool) -> Within:
    """Returns the scatter of the quotient of two launches' step times, from the blocks of steps in the launches."""
    moved = tuple(paired_influences(moved_step(old), moved_step(new)) for old, new in partners)
    return Within(moved, OWN_IN_TURNS if turns else OWN_APART)


def _relative(name: str, samples: Samples, within: Within | None, *, gated: bool) -> Series:
    """Returns a metric ``name`` whose samples are quotients of two measurements, one for each round.

    An undecided quotient does not make a benchmark undecided (``alarm_only``), because step times are judged anyway.
    """
    kind: dict[str, Any] = {"unit": "1", "better": "higher", "family": "relative", "scale": "ratio", "gated": gated}
    rules = MetricRules(partnered=True, alarm_only=True)
    return series_from(samples, within, metric=name, min_tolerance=0.0, rules=rules, **kind)
