"""A benchmark that was held against itself, in the results document."""

from __future__ import annotations

from pytest_ddpperf.reports.document import Document, IntervalData, Natural, NotNegative, Positive, about
from pytest_ddpperf.reports.documents.parts import BenchmarkData
from pytest_ddpperf.reports.findings import finding_text


class SpreadData(Document):
    """A standard deviation on the scale of logarithms: 0.01 is 1 %."""

    sd: NotNegative | None = about("The standard deviation.")
    df: Natural = about("Degrees of freedom of the estimate.")


class RateData(Document):
    """A share of comparisons."""

    found: Natural = about("Comparisons in which it happened.")
    of: Positive = about("Comparisons.")
    independent: Positive = about("How many of them have no run in common: what the interval rests on.", "effective")
    value: NotNegative | None = about("The share.")
    interval: IntervalData | None = about("Clopper and Pearson's.")


class RecommendedData(Document):
    """Settings that the benchmark wants, given its noise."""

    launches: Positive = about("Launches before the first verdict.")
    steps: Positive = about("Timed steps of a launch.")
    max_time: NotNegative | None = about("Seconds of measuring; null where the present setting is enough.")


class CalibratedData(BenchmarkData, inside="calibration"):
    """A benchmark that was held against itself."""

    step_time: list[list[float | None]] = about("Seconds of a typical step, by run and launch.", "runs")
    steps: Positive = about("Timed steps of each launch.")
    seconds: NotNegative | None = about("From the start of the first run to that of the last.")
    within: SpreadData = about("How far the steps of a launch lie apart.")
    between_launches: SpreadData = about("How far the typical steps of a run's launches lie apart.")
    between_runs: SpreadData = about("How far runs deviate beyond what their launches explain.")
    noise_floor: NotNegative | None = about(
        "The relative change by which one run in 20 is slower than another of the same code.", "calibration.floor"
    )
    mde: NotNegative | None = about(
        "Minimal detectable effect of the step time in a comparison of two runs; the median."
    )
    false_alarms: RateData = about("Runs that were called slower than another run of the same code.", "alarms")
    inconclusive: RateData = about("Runs of which it could not be told.")
    recommended: RecommendedData = about("Settings that the benchmark wants, given this noise.")
    findings: list[str] = about(
        "Remarks that a reader of the numbers needs, a sentence each.",
        lambda calibrated: map(finding_text, calibrated.findings),
    )
