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
        a dict of functions by name, ``parallelise(module, ctx, **options) -> Parallel``. Ranks import a function from
        its module. If a conftest defines the function, the plugin sends it to the ranks.
    """


@pytest.hookspec
def pytest_ddpperf_metrics() -> Sequence[Metric]:  # type: ignore[empty-body]
    """Adds metrics. The plugin measures, stores and gates them like its own metrics.

    Returns:
        Metrics. ``metric.samples(measurement)`` must return one number for each launch of the measurement, or None if
        the measurement does not have the metric.
    """


@pytest.hookspec
def pytest_ddpperf_environment() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Adds facts of the environment: ``{"driver": "570.86"}``.

    Returns:
        Facts by name. Baselines and results record the facts. These facts do not affect which baseline is chosen. A
        fact ``host`` replaces the host's name.
    """


@pytest.hookspec
def pytest_ddpperf_report(results: Sequence[Result]) -> tuple[str, str] | None:
    """Adds a part to the summary on the terminal, at the end of a session that judged benchmarks.

    Args:
        results: all benchmarks, in the order in which they were measured.

    Returns:
        The title and the text of the part, or None. pytest calls the hook even if the terminal shows no summary.
    """


@pytest.hookspec
def pytest_ddpperf_measured(test: str, measurement: Measurement, attempt: int) -> None:
    """Receives the measurement of each benchmark, even if its test fails later.

    Args:
        test: pytest node id.
        measurement: the measurement of the candidate.
        attempt: 1 for the first run of the test, 2 if pytest-rerunfailures ran the test again, and so on.
    """


@pytest.hookspec
def pytest_ddpperf_verdict(result: Result) -> None:
    """Receives the result of each benchmark, even if the benchmark could not be measured or its test fails.

    If a test runs again, only its last attempt counts for the session.

    Args:
        result: the benchmark with its verdict; ``result.attempt`` is 1 for the first run of the test.
    """
