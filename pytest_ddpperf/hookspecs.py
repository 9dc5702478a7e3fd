"""The hooks of this plugin, with which a ``conftest.py`` or another plugin adds features or receives results.

Hooks receive frozen records. The documented attributes of these records do not change within a major version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_ddpperf.metrics.table import Metric
    from pytest_ddpperf.records.measurement import Measurement
    from pytest_ddpperf.records.results import Result


@pytest.hookspec
def pytest_ddpperf_strategies() -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
    """Adds strategies by name: ``ddpperf.check(workload, strategy="gossip[rounds=2]")`` then finds ``gossip``.

    Returns:
        a dict of functions by name, ``parallelise(module, ctx, **options) -> Parallel``. Ranks import the modules of
        these functions. Functions of a conftest are sent to the ranks instead.
    """


@pytest.hookspec
def pytest_ddpperf_metrics() -> Sequence[Metric]:  # type: ignore[empty-body]
    """Adds metrics. The plugin measures, stores and gates them like its own metrics.

    Returns:
        Metrics. The function ``samples`` of each takes a ``Measurement`` and returns one number
        for each of its launches, or None if the measurement does not have the metric.
    """


@pytest.hookspec
def pytest_ddpperf_environment() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Adds facts of the environment: ``{"driver": "570.86"}``.

    Returns:
        Facts by name. Baselines and results record the facts. The facts do not influence which baseline a run is
        compared with. A fact ``host`` replaces the host's name.
    """


@pytest.hookspec
def pytest_ddpperf_report(results: Sequence[Result]) -> tuple[str, str] | None:
    """Adds a part to the summary on the terminal, at the end of a session that judged benchmarks.

    Args:
        results: all benchmarks, in the order in which they were measured.

    Returns:
        The title and the text of the part, or None. The hook may also write files: pytest calls it even if the terminal
        shows no summary.
    """


@pytest.hookspec
def pytest_ddpperf_measured(test: str, measurement: Measurement, attempt: int) -> None:
    """Receives the measurement of each benchmark, before the test can fail.

    Args:
        test: pytest node id.
        measurement: the measurement of the candidate.
        attempt: 1 for the first run of the test, 2 if pytest-rerunfailures ran the test again, and so on.
    """


@pytest.hookspec
def pytest_ddpperf_verdict(result: Result) -> None:
    """Receives the result of each benchmark, also of one that could not be measured, before the test can fail.

    If a test runs again, only its last attempt counts for the session.

    Args:
        result: the benchmark with its verdict; ``result.attempt`` is 1 for the first run of the test.
    """
