"""The options by which pytest-benchmark runs benchmarks alone, or leaves them out: ours are benchmarks, too."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

ONLY, SKIP = "--benchmark-only", "--benchmark-skip"


def selected(config: pytest.Config, measuring: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests that are left of those that measure; the others get a mark that skips them, as pytest-benchmark's do.

    ``--benchmark-only`` has marked ours as tests that are no benchmarks: they lose that mark.
    """
    if config.getoption("benchmark_only"):  # the stronger one, where both are given
        for item in measuring:
            item.own_markers[:] = [mark for mark in item.own_markers if ONLY not in str(mark.kwargs.get("reason", ""))]
        return [*measuring]
    for item in measuring:
        item.add_marker(pytest.mark.skip(reason=f"{SKIP} skips benchmarks, those of the fixture ddpperf, too"))
    return []
