"""The training steps that are measured: of known lengths under DDP, unchanged and made slower in known ways."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_ddpperf import Workload
from pytest_ddpperf.stats.summaries import median_step, quantile

if TYPE_CHECKING:  # reports do without torch
    import torch

    from pytest_ddpperf.launch.context import RankContext

UNCHANGED = "unchanged"
FIRST = "first launch +20%"
WARMUP = 5
PRODUCT = 24  # rows and columns of the matrices of an injection: about 2 us
PRODUCTS = 2000  # to time one: cores are slower at it after a pause
REDUCES = 15  # all-reduces, to time one
ELEMENTS = tuple(2**power for power in range(4, 22))
CALIBRATED_BLOCKS, CALIBRATED_STEPS = 10, 3
LOW = 0.25


@dataclass(frozen=True)
class Length:
    """A step of a perceptron with ``depth`` square layers; ``steps`` of them, about a second's worth, make a launch."""

    name: str  # about how long it lasts with two ranks on the machine that the sizes were chosen on
    width: int
    depth: int
    batch: int
    steps: int


@dataclass(frozen=True)
class Condition:
    """How a step is changed."""

    name: str
    work: float = 0.0  # small matrix products added to a step, as a share of the step's own length
    every: int = 1  # which steps get them: 10 for one in ten
    rank: int | None = None  # the only rank that gets them
    communication: float = 0.0  # further all-reduces, as a share of the step's own length
    launches: int = 1  # alone, in one round
    alarm: bool = True  # whether it is slower, so that finding it is right


@dataclass(frozen=True)
class Injection:
    """What a rank adds to its steps: ``products`` in one step of ``every``, an all-reduce of ``elements``."""

    products: int = 0
    every: int = 1
    elements: int = 0


@dataclass(frozen=True)
class Calibration:
    """Seconds of a typical step, of one small matrix product, and of all-reduces by their number of elements."""

    step: float
    product: float
    reduces: Mapping[int, float]


LENGTHS = {
    length.name: length
    for length in (
        Length("4ms", width=192, depth=4, batch=160, steps=180),
        Length("12ms", width=256, depth=4, batch=400, steps=90),
        Length("60ms", width=512, depth=5, batch=510, steps=20),
        Length("78ms", width=512, depth=6, batch=560, steps=15),
    )
}
OF_CAMPAIGNS = ("4ms", "12ms", "78ms")  # lengths that are measured unless others are asked for
CONDITIONS = {
    condition.name: condition
    for condition in (
        # Baselines for all others, and one another's A/A: so three of them run alone in a round.
        Condition(UNCHANGED, launches=3, alarm=False),
        Condition("+3%", work=0.03),
        Condition("+5%", work=0.05),
        Condition("+10%", work=0.10),
        Condition("1 step in 10", work=0.50, every=10),
        Condition("rank 1 +5%", work=0.05, rank=1),
        Condition("comm +5%", communication=0.05),
        Condition(FIRST, work=0.20, alarm=False),
    )
}


def injection(condition: Condition, calibration: Calibration) -> Injection:
    """What the ranks of this condition add to their steps."""
    products = round(condition.work * calibration.step / calibration.product)
    communication = condition.communication * calibration.step
    elements = elements_for(communication, calibration.reduces) if communication else 0
    return Injection(products, condition.every, elements)


def elements_for(seconds: float, reduces: Mapping[int, float]) -> int:
    """The number of elements whose all-reduce comes closest to ``seconds``, by the logarithm of their ratio."""
    return min(reduces, key=lambda elements: abs(math.log(reduces[elements] / seconds)))


@dataclass(frozen=True)
class Training:
    """Builds the step that a rank runs; with ``rank``, only that one adds the injection."""

    length: Length
    injection: Injection = Injection()
    rank: int | None = None

    def __call__(self, ctx: RankContext) -> Callable[[], torch.Tensor]:
        """The step of this rank."""
        step = training_step(self.length)
        added = self.injection if self.rank in (None, ctx.rank) else Injection()
        return _slower(step, added) if added != Injection() else step


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


def workload(length: Length) -> Workload:
    """The same training as factories, so that a strategy can be held against a single process."""
    import torch

    return Workload(
        model=lambda: perceptron(length),
        batch=lambda: (torch.randn(length.batch, length.width), torch.zeros(1)),
        loss=lambda outputs, _: outputs.square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
        samples_per_step=length.batch,
    )


def _slower(step: Callable[[], torch.Tensor], added: Injection) -> Callable[[], torch.Tensor]:
    import torch
    from torch.distributed import all_reduce

    matrix, sent = torch.full((PRODUCT, PRODUCT), 1 / PRODUCT), torch.zeros(added.elements)
    number = 0

    def slower() -> torch.Tensor:
        nonlocal number
        number += 1
        loss = step()
        if added.products and number % added.every == 0:
            multiply(matrix, added.products)
        if added.elements:
            all_reduce(sent)
        return loss

    return slower


def multiply(matrix: torch.Tensor, times: int) -> torch.Tensor:
    """Small products, one after the other."""
    product = matrix
    for _ in range(times):
        product = product @ matrix
    return product


def calibrate(ctx: RankContext, length: Length) -> Calibration:
    """What a step, one small product and all-reduces take on this rank, with all ranks at it."""
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
        reduces = {elements: _reduce_seconds(ctx, torch.zeros(elements)) for elements in ELEMENTS}
    # Low quartiles: other work hits a step, which waits for all ranks, harder than products.
    return Calibration(quantile(steps, LOW), quantile(products, LOW), reduces)


def _reduce_seconds(ctx: RankContext, sent: torch.Tensor) -> float:
    from torch.distributed import all_reduce, barrier

    from pytest_ddpperf.instruments.clock import clock_for
    from pytest_ddpperf.training.timing import timed_block

    barrier()
    times, _ = timed_block(lambda: all_reduce(sent), REDUCES, clock_for(ctx.device, marks=REDUCES + 1))
    return median_step(times)
