"""Counts of steps in tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_ddpperf.instruments.counting.counting import SEEN_STEPS, Countable, count_warm_step
from pytest_ddpperf.instruments.torch_internals import warmed_up
from pytest_ddpperf.records.counts import Counts


def count_step(run: Callable[[], Any], subject: Countable, *, warmup: int = 2, steps: int = SEEN_STEPS) -> Counts:
    """What one call of ``run`` does on this rank after ``warmup`` steps, of ``steps`` that are looked at."""
    return count_warm_step(run, subject, warmed_up(run, warmup), steps=steps)
