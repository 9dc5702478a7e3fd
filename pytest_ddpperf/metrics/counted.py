"""Counts as series: each is one exact number and needs no statistics."""

from __future__ import annotations

from pytest_ddpperf.records.counts import UNITS, Counts
from pytest_ddpperf.records.measurement import Series

DERIVED = frozenset({"flops_forward", "flops_backward"})
"""Counts that add up to another: shown, and not judged twice."""

BY_KERNEL = frozenset({"kernel_launches", "device_copies", "operators"})
"""Counts that depend on which kernels torch picks, on GPUs by their model and the version of CUDA."""


def counted_series(counts: Counts) -> tuple[Series, ...]:
    """A series for each metric that was counted, in the order of ``UNITS``.

    Whether an unstable count is gated depends on the baseline, so the comparison decides that.
    """
    return tuple(
        Series(
            metric=metric,
            unit=unit,
            better="lower",
            family="counted",
            scale="exact",
            gated=metric not in DERIVED,
            slack=0.0,
            samples=(counts.totals[metric],),
            value=counts.totals[metric],
            interval=None,
        )
        for metric, unit in UNITS.items()
        if metric in counts.totals
    )
