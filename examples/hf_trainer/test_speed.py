"""The Trainer as it is, by its script; and its training step, called one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from train import SEQUENCE, make_trainer

from pytest_ddpperf import Ddpperf, RankContext, Script

BATCH = 8
COUNTS = {"samples_per_step": BATCH, "tokens_per_step": BATCH * SEQUENCE}


def test_script(ddpperf: Ddpperf, tmp_path: Path) -> None:
    arguments = ("--output", tmp_path, "--epochs", 100)  # of which the learning rate depends
    one_process = Script("train.py", *arguments, "--batch-size", 2 * BATCH)  # the samples of two ranks
    ddpperf.check(Script("train.py", *arguments), reference=one_process, **COUNTS)


def test_step(ddpperf: Ddpperf, tmp_path: Path) -> None:
    def one_step(ctx: RankContext) -> Callable[[], torch.Tensor]:
        trainer = make_trainer(str(tmp_path), 1, 2 * BATCH // ctx.world_size)
        trainer.current_gradient_accumulation_steps = 1  # as train() sets it
        optimizer = trainer.create_optimizer()
        model, optimizer, loader = trainer.accelerator.prepare(trainer.model, optimizer, trainer.get_train_dataloader())
        batch = next(iter(loader))

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = trainer.training_step(model, batch)
            optimizer.step()
            return loss

        step.unsynchronised = partial(trainer.accelerator.no_sync, model)  # measures exposed communication
        return step

    ddpperf.check(one_step, reference=one_step, **COUNTS)
