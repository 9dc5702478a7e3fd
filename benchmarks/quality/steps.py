"""On a rank: the step that is timed, what is added to it, and what that takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.quality.conditions import Injection, Length
from pytest_ddpperf import Workload
from pytest_ddpperf.instruments.clock import clock_for
from pytest_ddpperf.instruments.collector import collector_paused
from pytest_ddpperf.stats.summaries import quantile, typical
from pytest_ddpperf.training.timing import timed_block

if TYPE_CHECKING:
    from pytest_ddpperf.launch.context import RankContext

PRODUCT = 24  # rows and columns of the matrices of an injection: about 2 us
PRODUCTS = 2000  # to time one: cores are slower at it after a pause
REDUCES = 15  # all-reduces, to time one
ELEMENTS = tuple(2**power for power in range(4, 22))
CALIBRATED_BLOCKS, CALIBRATED_STEPS = 10, 3
LOW = 0.25
WARMUP = 5


@dataclass(frozen=True)
class Training:
    """A function that a benchmark hands over to be measured: gives one step."""

    length: Length
    injection: Injection
    rank: int | None = None

    def __call__(self, ctx: RankContext) -> Callable[[], torch.Tensor]:
        """The step of this rank."""
        step = training_step(self.length)
        mine = self.injection if self.rank in (None, ctx.rank) else Injection()
        return _with(step, mine) if mine != Injection() else step


def training_step(length: Length) -> Callable[[], torch.Tensor]:
    """A step of plain training under DDP."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(perceptron(length))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(length.batch, length.width)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = model(inputs).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        return loss.detach()

    return step


def perceptron(length: Length) -> nn.Sequential:
    """What all steps train."""
    layers = [layer for _ in range(length.depth) for layer in (nn.Linear(length.width, length.width), nn.ReLU())]
    return nn.Sequential(*layers)


def workload(length: Length) -> Workload:
    """The same training as factories, so that a strategy can be held against a single process."""

    def loss(outputs: torch.Tensor, _: object) -> torch.Tensor:
        return outputs.square().mean()

    return Workload(
        model=lambda: perceptron(length),
        batch=lambda: (torch.randn(length.batch, length.width), torch.zeros(1)),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
        samples_per_step=length.batch,
    )


def _with(step: Callable[[], torch.Tensor], added: Injection) -> Callable[[], torch.Tensor]:
    matrix = torch.full((PRODUCT, PRODUCT), 1 / PRODUCT)
    sent = torch.zeros(added.elements)
    number = 0

    def slower() -> torch.Tensor:
        nonlocal number
        number += 1
        loss = step()
        if added.products and number % added.every == 0:
            multiply(matrix, added.products)
        if added.elements:
            dist.all_reduce(sent)
        return loss

    return slower


def multiply(matrix: torch.Tensor, times: int) -> torch.Tensor:
    """Small products, one after the other."""
    product = matrix
    for _ in range(times):
        product = product @ matrix
    return product


@dataclass(frozen=True)
class Costs:
    """What one rank found, in seconds; ``reduces`` in the order of ``ELEMENTS``."""

    step: float
    product: float
    reduces: tuple[float, ...]


def calibrate(ctx: RankContext, length: Length) -> Costs:
    """What a step, one small product and all-reduces of several sizes take, with all ranks at it."""
    step = training_step(length)
    for _ in range(WARMUP):
        step()
    matrix = torch.full((PRODUCT, PRODUCT), 1 / PRODUCT)
    clock = clock_for(ctx.device, marks=CALIBRATED_STEPS + 1)
    steps: list[float] = []
    products: list[float] = []
    with collector_paused():
        for _ in range(CALIBRATED_BLOCKS):  # in turns: other work of the machine makes both longer, not one of them
            dist.barrier()
            steps += timed_block(step, CALIBRATED_STEPS, clock)[0]
            dist.barrier()
            start = time.perf_counter()
            multiply(matrix, PRODUCTS)
            products.append((time.perf_counter() - start) / PRODUCTS)
        reduces = tuple(_reduce_seconds(ctx, torch.zeros(elements)) for elements in ELEMENTS)
    # Low quartiles: other work hits a step, which waits for all ranks, harder than products.
    return Costs(quantile(steps, LOW), quantile(products, LOW), reduces)


def _reduce_seconds(ctx: RankContext, sent: torch.Tensor) -> float:
    def reduce() -> None:
        dist.all_reduce(sent)

    dist.barrier()
    times, _ = timed_block(reduce, REDUCES, clock_for(ctx.device, marks=REDUCES + 1))
    return typical(times)
