"""The tolerance of one metric: the test's own, but no less than the metric allows."""

from __future__ import annotations

from pytest_ddpperf.records.measurement import Series


def tolerance_of(series: Series, baseline: float, tolerance: float, step: float | None = None) -> float:
    """Returns the tolerance of one metric: the test's, but at least the metric's smallest one.

    If values are subtracted, it is an amount that grows with a baseline above 1, as in numpy.allclose: 3 % of a loss of
    10, but 0.03 for a loss of 0.001. Bytes are far above 1: their smallest tolerance stays a plain amount. CPU time may
    differ by as many seconds as the ``step`` itself: if ranks mostly wait, some per cent of their work mean nothing.
    The same holds for the parts of a step, whose times are subtracted.
    """
    if series.scale == "difference" and series.unit == "B":
        return max(series.min_tolerance, tolerance * abs(baseline))
    accepted = max(tolerance, series.min_tolerance)
    if series.scale == "difference" and series.unit == "s":
        return accepted * (abs(baseline) if step is None else step)
    if series.rules.stands_in and step is not None and baseline > 0:
        return accepted * max(1.0, step / baseline)
    if series.rules.negligible and min(baseline, series.value) > 0:  # the same for less and for more
        return max(accepted, series.rules.negligible / min(baseline, series.value))
    return accepted * max(1.0, abs(baseline)) if series.scale == "difference" else accepted
