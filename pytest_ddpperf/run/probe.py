"""What the pytest run that measures one commit of a bisection is told, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_ddpperf.records.measurement import Measurement, Series
from pytest_ddpperf.records.results import Result

BenchmarkKey = tuple[str, int]  # name and number of ranks


@dataclass(frozen=True)
class Probe:
    """How the pytest run of a probe differs from the run that the user would start.

    Attributes:
        measured: full hash of the commit that is measured in place of this checkout.
        settings: raw values by knob, which override those of every test.
        metric: the only metric that counts for the verdict; None for all that usually count.
        benchmark: the only benchmark in which the metric counts; None for all.
        test: node id of the only test to run; None for all.
    """

    measured: str
    settings: Mapping[str, object] = field(default_factory=dict)
    metric: str | None = None
    benchmark: BenchmarkKey | None = None
    test: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What the pytest run of a probe reports.

    Attributes:
        results: of all benchmarks.
        failures: the first line of the reason, by node id of each test or file that failed or was skipped.
        root: pytest's root folder, which node ids start from.
    """

    results: tuple[Result, ...]
    failures: Mapping[str, str]
    root: Path


def focused(measurements: tuple[Measurement, ...], probe: Probe) -> tuple[Measurement, ...]:
    """The measurements, in which only the metric of the probe counts for the verdict."""
    if probe.metric is None:
        return measurements

    def gated(measurement: Measurement, series: Series) -> Series:
        of_benchmark = probe.benchmark in {None, (measurement.name, measurement.world_size)}
        return replace(series, gated=of_benchmark and series.metric == probe.metric)

    return tuple(
        replace(measurement, series=tuple(gated(measurement, series) for series in measurement.series))
        for measurement in measurements
    )
