"""Counts as series: each is one exact number and needs no statistics."""

from __future__ import annotations

from pytest_ddpperf.records.counts import COUNTS, Counts
from pytest_ddpperf.records.measurement import Series


def counted_series(counts: Counts) -> tuple[Series, ...]:
    """A series for each metric that was counted, in the order of ``COUNTS``.

    Whether an unstable count is gated depends on the baseline, so the comparison decides that.
    """
    return tuple(
        Series(
            metric=metric,
            unit=row.unit,
            better="lower",
            family="counted",
            scale="exact",
            gated=row.gated,
            min_tolerance=0.0,
            samples=(counts.totals[metric],),
            value=counts.totals[metric],
            interval=None,
        )
        for metric, row in COUNTS.items()
        if metric in counts.totals
    )
