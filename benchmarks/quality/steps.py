"""The training steps that are measured: perceptrons of known lengths under DDP."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_ddpperf.stats.summaries import quantile

if TYPE_CHECKING:  # reports do without torch
    import torch

    from pytest_ddpperf.launch.context import RankContext
    from pytest_ddpperf.launch.launcher import Launcher

WARMUP = 5
PRODUCT = 24  # rows and columns of the small matrices that add work to a step: a product takes about 2 us
PRODUCTS = 2000  # to time one: cores are slower at it after a pause
CALIBRATED_BLOCKS, CALIBRATED_STEPS = 10, 3
CALIBRATING_LAUNCHES = 5
LOW = 0.25


@dataclass(frozen=True)
class Length:
    """A step of a perceptron with ``depth`` square layers."""

    width: int
    depth: int
    batch: int


@dataclass(frozen=True)
class Calibration:
    """Seconds of a typical step and of one small matrix product."""

    step: float
    product: float


LENGTHS = {  # by about how long a step lasts with two ranks on the machine that the sizes were chosen on
    "4ms": Length(width=192, depth=4, batch=160),
    "12ms": Length(width=256, depth=4, batch=400),
    "60ms": Length(width=512, depth=5, batch=510),
}


def training_step(length: Length) -> Callable[[], torch.Tensor]:
    """A step of plain training under DDP."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(perceptron(length))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(length.batch, length.width)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = model(inputs).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        return loss.detach()

    return step


def perceptron(length: Length) -> torch.nn.Sequential:
    """What all steps train."""
    from torch import nn

    layers = [layer for _ in range(length.depth) for layer in (nn.Linear(length.width, length.width), nn.ReLU())]
    return nn.Sequential(*layers)


def multiply(matrix: torch.Tensor, times: int) -> torch.Tensor:
    """Small products, one after the other."""
    product = matrix
    for _ in range(times):
        product = product @ matrix
    return product


def calibrate(ctx: RankContext, length: Length) -> Calibration:
    """Returns what a step and one small product take on this rank, with all ranks at it."""
    import torch
    from torch.distributed import barrier

    from pytest_ddpperf.instruments.clock import clock_for, collector_paused
    from pytest_ddpperf.training.timing import timed_block

    step = training_step(length)
    for _ in range(WARMUP):
        step()
    matrix = torch.full((PRODUCT, PRODUCT), 1 / PRODUCT)
    clock = clock_for(ctx.device, marks=CALIBRATED_STEPS + 1)
    steps: list[float] = []
    products: list[float] = []
    with collector_paused():
        for _ in range(CALIBRATED_BLOCKS):  # alternating: other work of the machine makes both longer, not one of them
            barrier()
            steps += timed_block(step, CALIBRATED_STEPS, clock)[0]
            barrier()
            start = time.perf_counter()
            multiply(matrix, PRODUCTS)
            products.append((time.perf_counter() - start) / PRODUCTS)
    # Low quartiles: other work hits a step, which waits for all ranks, harder than products.
    return Calibration(quantile(steps, LOW), quantile(products, LOW))


def calibrated(launcher: Launcher, length: Length, ranks: int) -> Calibration:
    """Returns medians over launches of the slowest rank's figures."""
    launches = [
        launcher.run(calibrate, length, world_size=ranks, backend="gloo", device="cpu", timeout=300).values
        for _ in range(CALIBRATING_LAUNCHES)
    ]

    def slowest(figure: Callable[[Calibration], float]) -> float:
        return statistics.median(max(map(figure, each)) for each in launches)

    return Calibration(slowest(lambda rank: rank.step), slowest(lambda rank: rank.product))
