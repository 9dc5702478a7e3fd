"""An image classifier for the handwritten digits of scikit-learn: 1797 pictures of 8 x 8 pixels, without a download."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from pytest_ddpperf import Workload


def digits(batch_size: int) -> Workload:
    """Return the workload: each rank trains a small convolutional network on its share of the pictures."""
    return Workload(
        model=convolutional_network,
        loader=partial(digits_loader, batch_size),
        loss=functional.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        samples_per_step=batch_size,
    )


def evaluated_digits(batch_size: int, held_out: int = 360) -> Workload:
    """Return the same workload with an evaluation: the accuracy on the first pictures, which no step trains on."""

    def accuracy(model: nn.Module, device: torch.device) -> float:
        pictures, labels = (part[:held_out].to(device) for part in pictures_and_labels())
        recognised: Tensor = model(pictures).argmax(dim=1) == labels
        return recognised.float().mean().item()

    return replace(digits(batch_size), loader=partial(digits_loader, batch_size, held_out=held_out), evaluate=accuracy)


def convolutional_network() -> nn.Module:
    """Return two convolutions, a pooling layer and a linear layer, with one score for each of the ten digits."""
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 10),
    )


@cache
def pictures_and_labels() -> tuple[Tensor, Tensor]:
    """Return all pictures, of shape (1797, 1, 8, 8) with pixels from 0 to 1, and the digits that they show.

    The function reads the file of scikit-learn's `load_digits`, because importing scikit-learn would slow down each
    launch of each rank.
    """
    package = find_spec("sklearn")
    assert package is not None, "the pictures come with scikit-learn"
    assert package.origin is not None
    table = np.loadtxt(
        Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",", dtype=np.float32
    )
    return torch.from_numpy(table[:, :-1] / 16).view(-1, 1, 8, 8), torch.from_numpy(table[:, -1]).long()


def digits_loader(batch_size: int, rank: int, world_size: int, held_out: int = 0) -> DataLoader[tuple[Tensor, ...]]:
    """Return shuffled batches of one rank's share of the pictures, without the first `held_out` pictures."""
    pictures, labels = pictures_and_labels()
    dataset = TensorDataset(pictures[held_out:], labels[held_out:])
    sampler = DistributedSampler[tuple[Tensor, ...]](dataset, world_size, rank, shuffle=True, drop_last=True)
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, drop_last=True)
