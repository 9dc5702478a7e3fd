"""A benchmark that was measured side by side with itself, in the results document."""

from __future__ import annotations

from pytest_ddpperf.reports.document import Document, IntervalData, Natural, NotNegative, Positive, about
from pytest_ddpperf.reports.documents.parts import BenchmarkData


class RateData(Document):
    """A share of runs."""

    found: Natural = about("Runs in which it happened.")
    of: Positive = about("Runs.")
    value: NotNegative | None = about("The share.")
    interval: IntervalData | None = about("Clopper and Pearson's.")


class CalibratedData(BenchmarkData, inside="measurement"):
    """A benchmark that was measured side by side with itself."""

    false_alarms: RateData = about("Runs in which unchanged code was called slower.", "alarms")
    green: RateData = about("Runs that were unchanged or ok.")
    bound: float | None = about("The slowdown of the step time that a run rules out; the median.")
    mde: NotNegative | None = about("The smallest slowdown that a run finds in 95 of 100 cases; the median.")
    gross: NotNegative = about("A value of ddpperf_gross that suits.")
