"""Speedup and efficiency over the number of ranks, in strong and in weak scaling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_ddpperf.metrics.blocks import Within, moved_step
from pytest_ddpperf.metrics.launches import typical_step
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Measurement, MetricRules, Mode, Series
from pytest_ddpperf.stats.blocks import OWN_APART, OWN_IN_TURNS, expected, paired_blocks
from pytest_ddpperf.stats.intervals import center

EFFICIENCY = "scaling_efficiency"
SPEEDUP = "speedup"


def speedup(base_time: float, time: float, mode: Mode, *, world_size: int, base_size: int = 1) -> float:
    """How many times the base's work per second the larger group does.

    With T the step time of n ranks and T0 that of m ranks: strong scaling keeps the global batch, so speedup is T0 / T
    (Amdahl 1967). Weak scaling keeps the batch of a rank, so the group does n / m times the work in a step, and speedup
    is the scaled one, n T0 / (m T) (Gustafson 1988).
    """
    quotient = base_time / time
    return quotient if mode == "strong" else quotient * world_size / base_size


def efficiency(base_time: float, time: float, mode: Mode, *, world_size: int, base_size: int = 1) -> float:
    """The share of the ideal speedup, n / m, that was reached; 1 is perfect.

    With the letters of ``speedup``: m T0 / (n T) in strong scaling, T0 / T in weak scaling.
    """
    return speedup(base_time, time, mode, world_size=world_size, base_size=base_size) * base_size / world_size


def scaling_series(base: Measurement, point: Measurement, mode: Mode) -> tuple[Series, ...]:
    """``scaling_efficiency`` and ``speedup`` of ``point`` over ``base``, a sample for each round that measured both.

    The efficiency of an oversubscribed group is not gated, because its ranks share cores, as on no real machine.
    Speedup is never gated, because it is the same number on another scale. Without a common round there is no series.
    """
    partners = _partners(base, point)
    if not partners:
        return ()
    pairs = [(typical_step(one), typical_step(other)) for one, other in partners]
    within = _within(partners, turns=base.turns)
    sizes = {"world_size": point.world_size, "base_size": base.world_size}
    efficiencies = tuple(efficiency(base_time, time, mode, **sizes) for base_time, time in pairs)
    speedups = tuple(speedup(base_time, time, mode, **sizes) for base_time, time in pairs)
    return (
        _relative(EFFICIENCY, efficiencies, within, gated=not point.environment.oversubscribed),
        _relative(SPEEDUP, speedups, within, gated=False),
    )


def speedup_series(base: Measurement, other: Measurement) -> tuple[Series, ...]:
    """``speedup`` of one way to train over another: the base's step time over its own, a sample for each common round.

    Both have as many ranks and the same work in a step. It is not gated: it would also fall where the base became
    faster.
    """
    partners = _partners(base, other)
    samples = tuple(typical_step(one) / typical_step(another) for one, another in partners)
    within = _within(partners, turns=base.turns)
    return (_relative(SPEEDUP, samples, within, gated=False),) if samples else ()


def negative_scaling(scaling: Iterable[Series], base_size: int, world_size: int) -> tuple[Finding, ...]:
    """The larger group does less work per second than the smaller one, beyond chance, by ``scaling_series``."""
    return tuple(
        Finding("negative_scaling", {"world_size": world_size, "base_size": base_size, "speedup": series.value})
        for series in scaling
        if series.metric == SPEEDUP and (series.value if series.interval is None else series.interval.high) < 1
    )


def _partners(base: Measurement, other: Measurement) -> list[tuple[Launch, Launch]]:
    """The pairs of launches that belong to one round."""
    rounds = {launch.round: launch for launch in base.launches}
    return [(rounds[launch.round], launch) for launch in other.launches if launch.round in rounds]


def _within(partners: Sequence[tuple[Launch, Launch]], *, turns: bool) -> Within:
    """What the pairs of blocks of partners know of the scatter of their quotient."""
    moved = paired_blocks([moved_step(one) for one, _ in partners], [moved_step(other) for _, other in partners])
    return Within(moved, OWN_IN_TURNS if turns else OWN_APART)


def _relative(name: str, samples: tuple[float, ...], within: Within, *, gated: bool) -> Series:
    """A series of quotients of partners, in whose center neither side's outliers count."""
    value, interval = center(  # either partner may have been disturbed
        samples, "ratio", outliers="both", expected=expected(within.moved, within.own)
    )
    return Series(
        metric=name,
        unit="1",
        better="higher",
        family="relative",
        scale="ratio",
        gated=gated,
        min_tolerance=0.0,
        samples=samples,
        value=value,
        interval=interval,
        within=within.moved,
        own=within.own,
        rules=MetricRules(partnered=True, outliers="both"),
    )
