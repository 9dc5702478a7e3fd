"""What a pytest run is told that is one probe of a search over commits, and what it tells in the end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.results import Result

Key = tuple[str, int]


@dataclass(frozen=True)
class Probe:
    """How a run against a revision is to differ from what the user would start.

    Attributes:
        measured: full hash of the commit that is measured instead of this checkout.
        settings: raw values by knob, stronger than any that a test gives.
        metric: the only one that counts for the verdict; None for those that always do.
        benchmark: name and number of ranks of the only benchmark in which it counts; None for all.
    """

    measured: str
    settings: Mapping[str, object] = field(default_factory=dict)
    metric: str | None = None
    benchmark: Key | None = None

    def dumps(self) -> str:
        """As text, for the command line of a process; ``loads`` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Probe:
        """What was dumped."""
        told = json.loads(text)
        return cls(**{**told, "benchmark": None if told["benchmark"] is None else tuple(told["benchmark"])})


@dataclass(frozen=True)
class Outcome:
    """What came of a probe.

    Attributes:
        results: of all benchmarks.
        failures: the first line of why, for each test or file that failed or was skipped, by node id.
        root: pytest's, which node ids start from.
    """

    results: tuple[Result, ...]
    failures: Mapping[str, str]
    root: Path


def focused(measured: tuple[Measurement, ...], probe: Probe) -> tuple[Measurement, ...]:
    """Measurements in which only what the probe looks for counts for the verdict."""
    if probe.metric is None:
        return measured
    return tuple(_focused(one, probe.metric, probe.benchmark) for one in measured)


def _focused(measured: Measurement, metric: str, benchmark: Key | None) -> Measurement:
    counts = benchmark is None or benchmark == (measured.name, measured.world_size)
    series = tuple(replace(one, gated=counts and one.metric == metric) for one in measured.series)
    return replace(measured, series=series)
