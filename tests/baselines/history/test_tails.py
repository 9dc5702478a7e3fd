from __future__ import annotations

import pytest

from pytest_ddpperf.baselines.history.tails import t_reach, t_tail
from pytest_ddpperf.stats.intervals import t_quantile


def test_the_tail_of_the_tables() -> None:
    """Two-sided 5 % points of Student's t."""
    for df, t in ((5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)):
        assert t_tail(t, df) == pytest.approx(0.05, rel=0.02)
    assert t_tail(0.0, 10) == 1.0
    assert t_tail(float("inf"), 10) == 0.0


@pytest.mark.parametrize("df", [5, 8, 20, 200])
@pytest.mark.parametrize("p", [1e-3, 1e-5, 1e-7])
def test_the_far_tail_is_that_of_scipy(df: int, p: float) -> None:
    """For few degrees of freedom it is too long: on the safe side."""
    assert 0.99 <= t_tail(t_quantile(1 - p / 2, df), df) / p <= 1 + 5 / df


@pytest.mark.parametrize("df", [4, 10, 200])
def test_an_interval_reaches_as_far_as_scipys(df: int) -> None:
    assert t_reach(0.95, df) == pytest.approx(t_quantile(0.975, df), rel=0.01)
    assert t_tail(t_reach(0.95, df), df) == pytest.approx(0.05)
