"""Counts of steps in tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pytest_ddpperf.instruments.counting.counting import SEEN_STEPS, Countable, count_warm_step
from pytest_ddpperf.instruments.torch_internals import warmed_up
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.training.jobs import LaunchJob, PrepareJob
from pytest_ddpperf.training.preparing import prepare_launch


def count_step(run: Callable[[], Any], subject: Countable, *, warmup: int = 2, steps: int = SEEN_STEPS) -> Counts:
    """What one call of ``run`` does on this rank after ``warmup`` steps, of ``steps`` that are looked at."""
    return count_warm_step(run, subject, warmed_up(run, warmup), steps=steps)


def count_launch(ctx: RankContext, job: LaunchJob, *, steps: int = 0) -> Counts:
    """What one step of the job does on this rank after the warm-up and so many ``steps`` more."""
    training = replace(job, plan=replace(job.plan, steps=steps))
    counts = prepare_launch(ctx, PrepareJob(training, counted=True)).counts
    assert counts is not None
    return counts
