"""A training script for torchrun: DistributedDataParallel, two micro-batches a step, a loop written by hand."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ACCUMULATED = 2  # micro-batches of an optimizer step


def make_data() -> TensorDataset:
    """Random points, and the class of each."""
    random = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(640, 64, generator=random), torch.randint(10, (640,), generator=random))


class Training:
    """A model that is trained by all ranks, and its optimizer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        self.model = DistributedDataParallel(layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Trains on the micro-batches of one optimizer step, and returns their mean loss."""
        self.optimizer.zero_grad()
        total = torch.zeros(())
        for number, (inputs, targets) in enumerate(batches, 1):
            with nullcontext() if number == len(batches) else self.model.no_sync():
                loss = nn.functional.cross_entropy(self.model(inputs), targets) / len(batches)
                loss.backward()
            total += loss.detach()
        self.optimizer.step()
        return total


def batches_of(data: TensorDataset, batch_size: int, epochs: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """This rank's share of the data, a list of micro-batches for each step."""
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, batch_size, sampler=sampler, drop_last=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        batches = iter(loader)
        yield from ([first, second] for first, second in zip(batches, batches, strict=False))


def main() -> None:
    """Trains; started by torchrun."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    arguments = parser.parse_args()
    torch.distributed.init_process_group()
    training = Training()
    for batches in batches_of(make_data(), arguments.batch_size, arguments.epochs):
        training.step(batches)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
