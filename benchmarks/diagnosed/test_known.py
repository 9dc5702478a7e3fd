"""Trainings with a planted bottleneck: the half that the rules were written with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_ddpperf import Workload

pytestmark = pytest.mark.ddpperf(max_time=3)


def layers(width: int, depth: int) -> Callable[[], Any]:
    def model() -> Any:
        from torch import nn

        return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())))

    return model


def batches(width: int, size: int) -> Callable[[], Any]:
    def batch() -> Any:
        import torch

        return torch.randn(size, width), torch.randn(size, width)

    return batch


def squared(outputs: Any, targets: Any) -> Any:
    return ((outputs - targets) ** 2).mean()


def sgd(parameters: Any) -> Any:
    import torch

    return torch.optim.SGD(parameters, lr=1e-3)


def adam(parameters: Any) -> Any:
    import torch

    return torch.optim.Adam(parameters, lr=1e-3)


def training(width: int, depth: int, size: int, **more: Any) -> Workload:
    given = {"model": layers(width, depth), "batch": batches(width, size), "optimizer": sgd, **more}
    if "loader" in given:
        del given["batch"]
    return Workload(loss=squared, samples_per_step=size, **given)


def slow_loader(width: int, size: int, seconds: Callable[[int], float]) -> Callable[[int, int], Any]:
    def loader(rank: int, _world_size: int) -> Any:
        made = batches(width, size)()

        class Slow:
            def __iter__(self) -> Iterator[Any]:
                while True:
                    time.sleep(seconds(rank))
                    yield made

        return Slow()

    return loader


def slept(seconds: Callable[[int], float]) -> Callable[[], Any]:
    """A model that sleeps in forward, by its rank."""

    def model() -> Any:
        import torch.distributed as dist
        from torch import nn

        class Sleeps(nn.Module):
            def forward(self, inputs: Any) -> Any:
                time.sleep(seconds(dist.get_rank() if dist.is_initialized() else 0))
                return inputs

        return nn.Sequential(Sleeps(), layers(128, 2)())

    return model


@pytest.mark.parametrize("strategy", ["ddp", "naive", "fsdp2"])
def test_compute__large_products(ddpperf: Any, strategy: str) -> None:
    ddpperf.measure(training(512, 3, 2048), strategy=strategy)


def test_compute__convolutions(ddpperf: Any) -> None:
    def model() -> Any:
        from torch import nn

        return nn.Sequential(nn.Conv2d(16, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(1))

    def batch() -> Any:
        import torch

        return torch.randn(16, 16, 28, 28), torch.zeros(16, 64 * 24 * 24)

    ddpperf.measure(
        Workload(model=model, batch=batch, loss=squared, optimizer=sgd, samples_per_step=16), strategy="ddp"
    )


def test_compute__attention(ddpperf: Any) -> None:
    def model() -> Any:
        from torch import nn

        return nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)

    def batch() -> Any:
        import torch

        return torch.randn(16, 128, 256), torch.randn(16, 128, 256)

    ddpperf.measure(
        Workload(model=model, batch=batch, loss=squared, optimizer=sgd, samples_per_step=16), strategy="bucketed"
    )


@pytest.mark.parametrize("size", [2, 8])
def test_overhead__deep_and_narrow(ddpperf: Any, size: int) -> None:
    ddpperf.measure(training(8, 100, size), strategy="ddp")


def test_overhead__python_loop(ddpperf: Any) -> None:
    def model() -> Any:
        import torch
        from torch import nn

        class Loops(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(16))

            def forward(self, inputs: Any) -> Any:
                outputs = inputs
                for _ in range(400):
                    outputs = outputs * self.weight - 1e-3
                return outputs

        return Loops()

    ddpperf.measure(training(16, 1, 4, model=model), strategy="ddp")


def test_overhead__recurrent_cells(ddpperf: Any) -> None:
    def model() -> Any:
        from torch import nn

        class Cells(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.cell = nn.GRUCell(16, 16)

            def forward(self, inputs: Any) -> Any:
                hidden = inputs
                for _ in range(60):
                    hidden = self.cell(inputs, hidden)
                return hidden

        return Cells()

    ddpperf.measure(training(16, 1, 4, model=model), strategy="naive")


@pytest.mark.parametrize("strategy", ["ddp", "naive", "flat", "fsdp2"])
def test_communication__wide_and_small_batch(ddpperf: Any, strategy: str) -> None:
    ddpperf.measure(training(2048, 3, 2), strategy=strategy)


def test_communication__own_step(ddpperf: Any) -> None:
    def step(ctx: Any) -> Callable[[], None]:
        import torch
        import torch.distributed as dist

        gradients = torch.ones(4_000_000)
        weight = torch.ones(64, 64)

        def run() -> None:
            weight @ weight
            with ctx.phase("send"):
                dist.all_reduce(gradients)

        return run

    ddpperf.measure(step)


def test_communication__many_small_collectives(ddpperf: Any) -> None:
    def step(_ctx: Any) -> Callable[[], None]:
        import torch
        import torch.distributed as dist

        small = torch.ones(16)

        def run() -> None:
            for _ in range(60):
                dist.all_reduce(small)

        return run

    ddpperf.measure(step)


@pytest.mark.parametrize("seconds", [0.01, 0.05])
@pytest.mark.parametrize("strategy", ["ddp", "bucketed"])
def test_data__sleeping_loader(ddpperf: Any, seconds: float, strategy: str) -> None:
    loader = slow_loader(64, 8, lambda _: seconds)
    ddpperf.measure(training(64, 2, 8, loader=loader), strategy=strategy)


def test_data__dataset_that_computes(ddpperf: Any) -> None:
    def loader(_rank: int, _world_size: int) -> Any:
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Slow(Dataset[Any]):
            def __len__(self) -> int:
                return 10_000

            def __getitem__(self, index: int) -> Any:
                value = sum(i * i for i in range(4000)) % 7
                return torch.full((64,), float(value)), torch.zeros(64)

        return DataLoader(Slow(), batch_size=32)

    ddpperf.measure(training(64, 2, 32, loader=loader), strategy="ddp")


def test_memory_bandwidth__elementwise(ddpperf: Any) -> None:
    def step(_ctx: Any) -> Callable[[], None]:
        import torch

        state, other = torch.ones(16_000_000), torch.ones(16_000_000)

        def run() -> None:
            state.add_(other, alpha=0.1)
            other.copy_(state)
            state.mul_(0.5)

        return run

    ddpperf.measure(step)


def test_memory_bandwidth__adam_of_a_large_table(ddpperf: Any) -> None:
    def model() -> Any:
        from torch import nn

        class Looks(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.table = nn.Embedding(60_000, 128)

            def forward(self, inputs: Any) -> Any:
                return self.table(inputs)

        return Looks()

    def batch() -> Any:
        import torch

        return torch.arange(32), torch.zeros(32, 128)

    ddpperf.measure(
        Workload(model=model, batch=batch, loss=squared, optimizer=adam, samples_per_step=16),
        strategy="single",
        world_size=1,
    )


def test_memory_bandwidth__activations(ddpperf: Any) -> None:
    def model() -> Any:
        import torch
        from torch import nn

        class Waves(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.ones(1))

            def forward(self, inputs: Any) -> Any:
                outputs = inputs * self.scale
                for _ in range(3):
                    outputs = torch.relu(outputs) + 0.5
                return outputs

        return Waves()

    ddpperf.measure(training(1024, 1, 4096, model=model), strategy="ddp")


@pytest.mark.parametrize("strategy", ["ddp", "naive"])
def test_straggler__sleeps_in_forward(ddpperf: Any, strategy: str) -> None:
    model = slept(lambda rank: 0.03 * (rank == 1))
    ddpperf.measure(training(128, 2, 8, model=model), strategy=strategy)


def test_straggler__slow_loader_of_one_rank(ddpperf: Any) -> None:
    loader = slow_loader(64, 8, lambda rank: 0.03 * (rank == 0))
    ddpperf.measure(training(64, 2, 8, loader=loader), strategy="ddp")


def test_straggler__own_step(ddpperf: Any) -> None:
    def step(ctx: Any) -> Callable[[], None]:
        import torch
        import torch.distributed as dist

        weight, gradients = torch.ones(256, 256), torch.ones(1000)

        def run() -> None:
            for _ in range(40 if ctx.rank else 4):
                weight @ weight
            dist.all_reduce(gradients)

        return run

    ddpperf.measure(step)


@pytest.mark.ddpperf(world_size=4)
@pytest.mark.parametrize("strategy", ["ddp", "naive"])
def test_oversubscribed__four_ranks(ddpperf: Any, strategy: str) -> None:
    ddpperf.measure(training(512, 3, 512), strategy=strategy)


def test_unclear__sleeps_in_forward(ddpperf: Any) -> None:
    ddpperf.measure(training(128, 2, 8, model=slept(lambda _: 0.03)), strategy="ddp")


def test_data_or_compute__both(ddpperf: Any) -> None:
    ddpperf.measure(training(512, 3, 512, loader=slow_loader(512, 512, lambda _: 0.04)), strategy="ddp")


def test_communication_or_data__both(ddpperf: Any) -> None:
    ddpperf.measure(training(2048, 2, 2, loader=slow_loader(2048, 2, lambda _: 0.03)), strategy="naive")


def test_straggler_or_communication__both(ddpperf: Any) -> None:
    def step(ctx: Any) -> Callable[[], None]:
        import torch
        import torch.distributed as dist

        gradients = torch.ones(4_000_000)

        def run() -> None:
            if ctx.rank:
                time.sleep(0.02)
            dist.all_reduce(gradients)

        return run

    ddpperf.measure(step)
