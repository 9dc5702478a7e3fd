"""Lightning's Trainer as it is, by its script; and the module's training step, called one by one through Fabric."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from lightning.fabric import Fabric
from train import Classifier, make_data

from pytest_ddpperf import Ddpperf, RankContext, Script

BATCH = 32


def test_script(ddpperf: Ddpperf) -> None:
    one_process = Script("train.py", "--batch-size", 2 * BATCH)  # the samples of two ranks
    ddpperf.check(Script("train.py", "--devices", 2, "--epochs", 1000), reference=one_process, samples_per_step=BATCH)


def test_step(ddpperf: Ddpperf) -> None:
    ddpperf.check(one_step, reference=one_step, samples_per_step=BATCH)


def one_step(ctx: RankContext) -> Callable[[], torch.Tensor]:
    """Trains the module on one batch; a single process takes the samples of two ranks."""
    fabric = Fabric(accelerator="cpu", devices=ctx.world_size, strategy="ddp")
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    module = Classifier()
    model, optimizer = fabric.setup(module, module.configure_optimizers())
    batch = next(iter(fabric.setup_dataloaders(make_data(2 * BATCH // ctx.world_size))))

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model.training_step(batch)
        fabric.backward(loss)
        optimizer.step()
        return loss.detach()

    step.unsynchronised = partial(fabric.no_backward_sync, model)  # measures exposed communication
    return step
