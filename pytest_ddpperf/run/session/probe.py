"""The instructions for a pytest run that measures one commit of a bisection, and the report of that run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pytest_ddpperf.against.interpreter import Interpreter
from pytest_ddpperf.against.worktree import Revision
from pytest_ddpperf.metrics.scaling import DeriveSeries
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.results import Result

BenchmarkKey = tuple[str, int]  # name and number of ranks


@dataclass(frozen=True)
class Probe:
    """The instructions of a bisection for one pytest run (a probe), which measures a single commit."""

    measured: str  # full hash of the commit that is measured in place of this checkout
    settings: Mapping[str, object] = field(default_factory=dict)  # raw values by knob; they override those of tests
    metric: str | None = None  # the only metric that counts for the verdict; None for all that usually count
    benchmark: BenchmarkKey | None = None  # the only benchmark in which the metric counts; None for all
    test: str | None = None  # node id of the only test to run; None for all
    python: Interpreter | None = None  # interpreter that runs this checkout, in place of the commit ``measured``

    def revision(self, reference: Revision) -> Revision:
        """Returns ``reference`` with the probe's Python if the probe has one, else with the probe's commit."""
        if self.python is not None:
            return replace(reference, python=self.python)
        return Revision(self.measured, self.measured, reference.root, python=reference.python)


@dataclass(frozen=True)
class Outcome:
    """The results of a pytest run that a bisection has started (a probe)."""

    results: tuple[Result, ...]
    failures: Mapping[str, str]  # why each test or file failed or was skipped, in one line, by node id


def focused(derive: DeriveSeries, probe: Probe) -> DeriveSeries:
    """Changes ``derive``, which adds metrics to measurements, so that only the probe's metric can fail a test."""

    def gated(one: Measurement) -> Measurement:
        counts = probe.benchmark in {None, one.key}
        return replace(
            one, series=tuple(replace(each, gated=counts and each.metric == probe.metric) for each in one.series)
        )

    return derive if probe.metric is None else lambda measured: tuple(map(gated, derive(measured)))
