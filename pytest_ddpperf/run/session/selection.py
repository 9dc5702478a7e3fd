"""The options of pytest-benchmark that run only benchmarks, or skip them: our tests are benchmarks, too."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

SKIP = "--benchmark-skip"
_NO_BENCHMARK = "Skipping non-benchmark (--benchmark-only active)."  # the words of pytest-benchmark 4 and 5


def selected(config: pytest.Config, measuring: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Returns the measuring tests that run; marks the others as skipped, as pytest-benchmark does with its own.

    ``--benchmark-only`` has marked our tests as no benchmarks: they lose that mark.
    """
    if config.getoption("benchmark_only"):  # the stronger one, if both are given
        for item in measuring:
            item.own_markers[:] = [mark for mark in item.own_markers if mark.kwargs.get("reason") != _NO_BENCHMARK]
        return [*measuring]
    for item in measuring:
        item.add_marker(pytest.mark.skip(reason=f"{SKIP} skips benchmarks, also those of the fixture ddpperf"))
    return []
