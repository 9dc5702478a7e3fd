"""What the pytest run that measures one commit of a bisection is told, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_ddpperf.records.results import Result

BenchmarkKey = tuple[str, int]  # name and number of ranks


@dataclass(frozen=True)
class Probe:
    """How the pytest run of a probe differs from the run that the user would start."""

    measured: str  # full hash of the commit that is measured in place of this checkout
    settings: Mapping[str, object] = field(default_factory=dict)  # raw values by knob; they override those of tests
    metric: str | None = None  # the only metric that counts for the verdict; None for all that usually count
    benchmark: BenchmarkKey | None = None  # the only benchmark in which the metric counts; None for all
    test: str | None = None  # node id of the only test to run; None for all


@dataclass(frozen=True)
class Outcome:
    """What the pytest run of a probe reports."""

    results: tuple[Result, ...]
    failures: Mapping[str, str]  # why each test or file failed or was skipped, in a line, by node id
    root: Path  # pytest's root folder, which node ids start from
