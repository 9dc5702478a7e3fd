"""The counted launch, as a rank lives it: build the step, count what a call of it does. Importable without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ddpperf.records.counts import Counts
    from pytest_ddpperf.strategies.parallel import RankView
    from pytest_ddpperf.training.loop import LaunchJob


LEAST_WARMUP = 2  # DDP lays its buckets out anew after the first step


def count_launch(ctx: RankView, job: LaunchJob) -> Counts:
    """What one step of the job does on this rank after the warm-up, as those that are timed; their number is not asked.

    Raises:
        WorkloadError: the subject does not keep its contract.
        SettingError: there is no such strategy, or not for this world size.
        RankSkipped: this device cannot do what the settings ask for.
    """
    from pytest_ddpperf.instruments.counting.counting import Countable, count_step
    from pytest_ddpperf.training.step import build_step

    step = build_step(ctx, job)
    try:
        subject = Countable(ctx.device, step.modules, step.optimizers, step.work_period)
        return count_step(step.run, subject, warmup=max(LEAST_WARMUP, job.plan.warmup))
    finally:
        step.close()
