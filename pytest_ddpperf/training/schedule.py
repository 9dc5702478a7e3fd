"""The learning rate of a workload's steps: a linear warm-up, or the workload's scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.training.model import describe_value
from pytest_ddpperf.training.workload import located, unfit


def linear_warmup(optimizer: torch.optim.Optimizer, steps: int) -> Callable[[], None]:
    """Returns a function to call after each step, which raises the learning rate linearly during the first ``steps``.

    torch's schedulers are not used: they warn if an fp16 overflow skips a step, and depend on the optimizer's
    class, which is another class for a sharded optimizer.
    """
    goals = [group["lr"] for group in optimizer.param_groups]
    done = 0

    def rise() -> None:
        nonlocal done
        done += 1
        if done <= steps:
            for group, goal in zip(optimizer.param_groups, goals, strict=True):
                group["lr"] = goal * min(1.0, (done + 1) / steps)

    for group, goal in zip(optimizer.param_groups, goals, strict=True):
        group["lr"] = goal / steps
    return rise


def scheduler_for(
    factory: Callable[[torch.optim.Optimizer], Any], optimizer: torch.optim.Optimizer
) -> torch.optim.lr_scheduler.LRScheduler:
    """Returns the scheduler that the workload's factory makes for this optimizer.

    Raises a WorkloadError for an object that is no scheduler, schedules another optimizer, or needs a metric in each
    step.
    """
    scheduler = factory(optimizer)
    gave = f"Workload(scheduler=...): {located(factory)} returned {describe_value(scheduler)}"
    step = getattr(scheduler, "step", None)
    if not callable(step) or getattr(scheduler, "optimizer", optimizer) is not optimizer:
        another = ", which schedules another optimizer" if callable(step) else ""
        raise WorkloadError(
            f"{gave}{another}: scheduler(optimizer) must return a torch scheduler for that optimizer, such as "
            "torch.optim.lr_scheduler.LinearLR(optimizer)"
        )
    problem = unfit(step)
    if problem is not None:
        raise WorkloadError(f"{gave}, whose step cannot follow every optimizer step: {problem}")
    return scheduler  # type: ignore[no-any-return]  # nothing more is needed of it
