from __future__ import annotations

import pytest

from pytest_ddpperf.baselines.history.shifts import t_reach
from pytest_ddpperf.baselines.history.trend import ALPHA
from pytest_ddpperf.stats.intervals import t_quantile


@pytest.mark.parametrize("n", [8, 20, 200, 1000])
def test_the_far_tail_of_students_t_agrees_with_scipy(n: int) -> None:
    """A penalty asks for it. For few points it reaches too far, which only makes false alarms rarer."""
    confidence = 1 - ALPHA / (2 * n)
    exact = t_quantile(0.5 + confidence / 2, n - 2)
    assert 0.999 <= t_reach(confidence, n - 2) / exact <= 1 + 0.5 / n
