"""Does the image classifier train as fast as its baseline, and does each strategy learn the same?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from pytest_ddpperf import Ddpperf, RankContext, RankGroup

from .digits import digits, digits_loader, pictures_and_labels

if find_spec("sklearn") is None:  # importing it would take a second
    pytest.skip("the pictures come with scikit-learn", allow_module_level=True)

BATCH = 64
STRATEGIES = ["naive", "flat", "overlap", "bucketed", "ddp", "zero1", "fsdp1", "fsdp2"]
EPOCHS = 3
VALIDATION = 360  # pictures that no step trains on


@pytest.mark.ddpperf(launches=4, warmup=3)
def test_digits(ddpperf: Ddpperf) -> None:
    ddpperf.check(digits(BATCH), strategy="ddp")


def test_accuracy_curves(ddpperf_group: RankGroup) -> None:
    """After each epoch, each strategy has the accuracy of a single process that trains on the same batches."""
    alone, together = ddpperf_group.run(accuracy_curves).rank(0)
    assert alone[-1] > 0.7
    for strategy, curve in together.items():
        # Rounding may change the class of a picture with two nearly equal scores.
        assert curve == pytest.approx(alone, abs=2 / VALIDATION), f"{strategy} learns something else"


def accuracy_curves(ctx: RankContext) -> tuple[list[float], dict[str, list[float]]]:
    """Return the accuracy after each epoch: of a single process, and of all ranks with each strategy."""
    alone = replace(ctx, rank=0, world_size=1, local_rank=0, local_world_size=1)
    return (
        accuracy_curve(alone, "single", list(range(ctx.world_size))),
        {strategy: accuracy_curve(ctx, strategy, [ctx.rank]) for strategy in STRATEGIES},
    )


def accuracy_curve(ctx: RankContext, strategy: str, shares: list[int]) -> list[float]:
    """Train on one batch of each share in each step, and return the validation accuracy after each epoch."""
    from pytest_ddpperf.settings import Settings
    from pytest_ddpperf.strategies.table import resolve
    from pytest_ddpperf.training.trainer import Trainer

    ranks = ctx.world_size * len(shares)
    trainer = Trainer(ctx, digits(BATCH), resolve(strategy), Settings(accumulation_steps=len(shares)))
    loaders = [digits_loader(BATCH, share, ranks, held_out=VALIDATION) for share in shares]
    pictures, labels = (part[:VALIDATION].to(ctx.device) for part in pictures_and_labels())
    curve = []
    for epoch in range(EPOCHS):
        for loader in loaders:
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]  # it is a DistributedSampler
        for batches in zip(*loaders, strict=True):
            trainer.backward(partial(next_on_device, iter(batches), ctx.device))
            trainer.update()
        with torch.no_grad():
            found = trainer.parallel.module(pictures).argmax(dim=1)
        curve.append((found == labels).float().mean().item())
    return curve


def next_on_device(batches: Iterator[Any], device: torch.device) -> tuple[Any, Any]:
    """Return the next batch on the device of the model."""
    pictures, labels = next(batches)
    return pictures.to(device), labels.to(device)
