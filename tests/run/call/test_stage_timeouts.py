"""A benchmark whose stage takes longer than its deadline."""

from __future__ import annotations

import pytest

STUCK = """
import time
import torch
import torch.distributed as dist

def test_build(ddpperf):
    def build(ctx):
        if ctx.rank == 1:
            time.sleep(600)
        return lambda: dist.all_reduce(torch.ones(4))
    ddpperf.measure(build, stage_timeouts={"build": 2, "warm_up": "1h"})

def test_warm_up(ddpperf):
    made = iter(range(100))
    def build(ctx):
        def step():
            if next(made) == 3 and ctx.rank == 0:
                time.sleep(600)
            dist.all_reduce(torch.ones(4))
        return step
    ddpperf.measure(build, stage_timeouts="start=1h,warm_up=2")

def test_in_time(ddpperf):
    ddpperf.measure(lambda ctx: lambda: dist.all_reduce(torch.ones(4)), stage_timeouts="start=1h,measure=1h", steps=3)
"""


@pytest.mark.slow  # test_progress.py ends a launch by the deadline of a stage
def test_the_failure_names_the_stage_its_deadline_and_the_rank(inner: pytest.Pytester) -> None:
    inner.makepyfile(test_stuck=STUCK)
    run = inner.runpytest(
        "--ddpperf-device=cpu", "--ddpperf-world-size=2", "--ddpperf-timeout=600", "--ddpperf-launches=1",
        "--ddpperf-max-time=1", "--ddpperf-counts=off", "--ddpperf-warmup=5",
    )  # fmt: skip
    run.assert_outcomes(failed=2, passed=1)
    run.stdout.fnmatch_lines(
        [
            "*_ test_build _*",
            "*rank 1 standing at test_stuck.py:* in build*",
            "Ranks      rank* 1 took more than * s for the stage build*",
            "*_ test_warm_up _*",
            "*rank 0 standing at test_stuck.py:* in step*",
            "Ranks      ranks 0, 1 took more than * s for the stage warm_up*",
            "*in warm-up step 4*",
        ]
    )
