"""A script for torchrun: a loop over Accelerate, which accumulates gradients over two micro-batches."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATED = 2  # micro-batches of an optimizer step


class Training:
    """Model, optimizer and data, as Accelerate prepares them."""

    def __init__(self, batch_size: int) -> None:
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        data = TensorDataset(torch.randn(6400, 64), torch.randint(10, (6400,)))
        optimizer = torch.optim.AdamW(model.parameters())
        self.model, self.optimizer, self.loader = self.accelerator.prepare(
            model, optimizer, DataLoader(data, batch_size, drop_last=True)
        )

    def steps(self, epochs: int) -> Iterator[Tensor]:
        """Trains, and yields the loss of the last micro-batch after each optimizer step."""
        for _ in range(epochs):
            for inputs, targets in self.loader:
                with self.accelerator.accumulate(self.model):
                    loss = nn.functional.cross_entropy(self.model(inputs), targets)
                    self.accelerator.backward(loss)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                if self.accelerator.sync_gradients:
                    yield loss.detach()


def main() -> None:
    """Trains; started by torchrun or by accelerate launch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    arguments = parser.parse_args()
    for _ in Training(arguments.batch_size).steps(arguments.epochs):
        pass


if __name__ == "__main__":
    main()
