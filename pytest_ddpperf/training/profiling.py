"""The launch under torch's profiler on a rank. Importable without torch."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ddpperf.records.communication import RankProfile
    from pytest_ddpperf.strategies.parallel import RankView
    from pytest_ddpperf.training.job import LaunchJob

PROFILED_STEPS = 5


def profile_launch(ctx: RankView, job: LaunchJob) -> RankProfile:
    """Profiles what a few steps of the job send and compute on this rank, after the warm-up of the job's plan."""
    import torch.distributed as dist

    from pytest_ddpperf.instruments.profile.profiling import profile_steps
    from pytest_ddpperf.training.step import build_step

    with closing(build_step(ctx, job)) as step:
        for _ in range(job.plan.warmup):
            step.run()
        dist.barrier()
        return profile_steps(step.run, PROFILED_STEPS * step.period, ctx.device, step.modules)
