"""What a measurement amounts to: named series, a sample per launch that tells them."""

from pytest_ddpperf.metrics.findings import findings_of
from pytest_ddpperf.metrics.scaling import negative_scaling, scaling_series
from pytest_ddpperf.metrics.table import BESIDE, METRICS, REPEATED, STEP_TIME, TIMED, Metric, series_of

__all__ = [
    "BESIDE",
    "METRICS",
    "REPEATED",
    "STEP_TIME",
    "TIMED",
    "Metric",
    "findings_of",
    "negative_scaling",
    "scaling_series",
    "series_of",
]
