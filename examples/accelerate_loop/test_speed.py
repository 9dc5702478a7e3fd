"""Is the script as fast as it was, does it train what one process would, and does it still synchronise only once?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor
from train import ACCUMULATED, Training

from pytest_ddpperf import Ddpperf, RankContext, Script

BATCH = 32
EPOCHS = 200  # more than any launch needs


def test_script(ddpperf: Ddpperf) -> None:
    one_process = Script("train.py", "--batch-size", 2 * BATCH)  # the samples of two ranks
    ddpperf.check(Script("train.py", "--epochs", EPOCHS), reference=one_process, samples_per_step=ACCUMULATED * BATCH)


def test_step(ddpperf: Ddpperf) -> None:
    ddpperf.check(one_step, reference=one_step, samples_per_step=ACCUMULATED * BATCH)
    ddpperf.expect(collectives={"all_reduce": 1}, optimizer_steps=1)  # one bucket; accumulate() holds the first back


def one_step(ctx: RankContext) -> Callable[[], Tensor]:
    """A step of the script's own loop; one process takes the samples of two ranks."""
    training = Training(2 * BATCH // ctx.world_size)
    steps = training.steps(EPOCHS)

    def step() -> Tensor:
        return next(steps)

    step.unsynchronised = partial(training.accelerator.no_sync, training.model)  # measures exposed communication
    return step
