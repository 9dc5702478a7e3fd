"""pytest-ddpperf: the speed, memory and scaling of distributed PyTorch training as tests that pass or fail."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ddpperf.fixture import Ddpperf
    from pytest_ddpperf.launch.context import RankContext
    from pytest_ddpperf.metrics.table import Metric
    from pytest_ddpperf.records.finding import Finding
    from pytest_ddpperf.records.measurement import Measurement, MetricRules
    from pytest_ddpperf.records.results import Result
    from pytest_ddpperf.records.verbs import BatchSize, Convergence, ScalingCurve, SideBySide
    from pytest_ddpperf.reports.findings import finding_text
    from pytest_ddpperf.run.session.rank_group import RankGroup, RankResults
    from pytest_ddpperf.strategies.parallel import Parallel
    from pytest_ddpperf.strategies.strategy import Strategy
    from pytest_ddpperf.training.group import RankError
    from pytest_ddpperf.training.script import Script
    from pytest_ddpperf.training.workload import Workload

__all__ = [
    "BatchSize",
    "Convergence",
    "Ddpperf",
    "Finding",
    "Measurement",
    "Metric",
    "MetricRules",
    "Parallel",
    "RankContext",
    "RankError",
    "RankGroup",
    "RankResults",
    "Result",
    "ScalingCurve",
    "Script",
    "SideBySide",
    "Strategy",
    "Workload",
    "finding_text",
]

_HOMES = {
    "BatchSize": "records.verbs",
    "Convergence": "records.verbs",
    "Ddpperf": "fixture",
    "Finding": "records.finding",
    "Measurement": "records.measurement",
    "Metric": "metrics.table",
    "MetricRules": "records.measurement",
    "Parallel": "strategies.parallel",
    "RankContext": "launch.context",
    "RankError": "training.group",
    "RankGroup": "run.session.rank_group",
    "RankResults": "run.session.rank_group",
    "Result": "records.results",
    "ScalingCurve": "records.verbs",
    "Script": "training.script",
    "SideBySide": "records.verbs",
    "Strategy": "strategies.strategy",
    "Workload": "training.workload",
    "finding_text": "reports.findings",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: pytest loads this package in every run."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
