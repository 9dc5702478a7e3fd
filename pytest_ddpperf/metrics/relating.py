"""Series that relate the measurements of one run to each other: speedup and efficiency, and which series are gated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

from pytest_ddpperf.metrics.scaling import negative_scaling, scaling_series, speedup_series
from pytest_ddpperf.records.measurement import Measurement, Mode

DeriveSeries: TypeAlias = "Callable[[tuple[Measurement, ...]], tuple[Measurement, ...]]"


def alone(measured: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
    """Measurements that have nothing to do with each other."""
    return measured


def with_efficiency(points: Sequence[Measurement], mode: Mode) -> tuple[Measurement, ...]:
    """The points of a curve with speedup and scaling efficiency, each held against the first.

    Times of an oversubscribed point are not gated: its ranks share cores or GPUs, which tells nothing about scaling.
    """
    base, *others = points
    return (base, *(_held_against(base, before, point, mode) for before, point in pairwise((base, *others))))


def with_speedup(measured: Sequence[Measurement], over: str) -> tuple[Measurement, ...]:
    """The measurements with their speedup over the one named ``over``, from the rounds that measured both."""
    base = next(one for one in measured if one.name == over)
    return tuple(
        one if one is base else replace(one, over=over, series=(*one.series, *speedup_series(base, one)))
        for one in measured
    )


def gated_if_paired(derive: DeriveSeries) -> DeriveSeries:
    """The same for a run that is held against another revision, where more metrics are gated.

    They are gated before ``derive``, which may find a reason against it.
    """

    def derived(measured: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
        """Gate, then relate."""
        return derive(
            tuple(
                replace(one, series=tuple(replace(s, gated=s.gated or s.rules.paired_only) for s in one.series))
                for one in measured
            )
        )

    return derived


def _held_against(base: Measurement, before: Measurement, point: Measurement, mode: Mode) -> Measurement:
    """A point of a curve with its scaling over the base; a loss from the point before it is a finding."""
    series = scaling_series(base, point, mode)
    findings = dict.fromkeys(  # the smaller group may be the base itself
        (
            *negative_scaling(series, base.world_size, point.world_size),
            *negative_scaling(scaling_series(before, point, mode), before.world_size, point.world_size),
        )
    )
    own = point.series
    if point.environment.oversubscribed:
        own = tuple(replace(one, gated=one.gated and not one.rules.timed) for one in own)
    return replace(point, series=(*own, *series), findings=(*point.findings, *findings))
