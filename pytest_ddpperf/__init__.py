"""pytest-ddpperf: the speed, memory and scaling of distributed PyTorch training as tests that pass or fail."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ddpperf.fixture import Ddpperf as Ddpperf
    from pytest_ddpperf.launch.context import RankContext as RankContext
    from pytest_ddpperf.metrics.table import Metric as Metric
    from pytest_ddpperf.records.finding import Finding as Finding
    from pytest_ddpperf.records.measurement import Measurement as Measurement
    from pytest_ddpperf.records.measurement import MetricRules as MetricRules
    from pytest_ddpperf.records.results import Result as Result
    from pytest_ddpperf.records.verbs import BatchSize as BatchSize
    from pytest_ddpperf.records.verbs import Convergence as Convergence
    from pytest_ddpperf.records.verbs import ScalingCurve as ScalingCurve
    from pytest_ddpperf.records.verbs import SideBySide as SideBySide
    from pytest_ddpperf.reports.findings import finding_text as finding_text
    from pytest_ddpperf.run.session.rank_group import RankGroup as RankGroup
    from pytest_ddpperf.run.session.rank_group import RankResults as RankResults
    from pytest_ddpperf.strategies.strategy import Parallel as Parallel
    from pytest_ddpperf.strategies.strategy import Strategy as Strategy
    from pytest_ddpperf.training.group import RankError as RankError
    from pytest_ddpperf.training.subject import Script as Script
    from pytest_ddpperf.training.subject import Workload as Workload

_HOMES = {
    "BatchSize": "records.verbs",
    "Convergence": "records.verbs",
    "Ddpperf": "fixture",
    "Finding": "records.finding",
    "Measurement": "records.measurement",
    "Metric": "metrics.table",
    "MetricRules": "records.measurement",
    "Parallel": "strategies.strategy",
    "RankContext": "launch.context",
    "RankError": "training.group",
    "RankGroup": "run.session.rank_group",
    "RankResults": "run.session.rank_group",
    "Result": "records.results",
    "ScalingCurve": "records.verbs",
    "Script": "training.subject",
    "SideBySide": "records.verbs",
    "Strategy": "strategies.strategy",
    "Workload": "training.subject",
    "finding_text": "reports.findings",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used, so that a pytest run does not import the whole package."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
