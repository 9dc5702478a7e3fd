"""Do DataLoader workers hide the cost of preparing a batch? Is the number of workers that `auto` selects still good?

Each picture is stored compressed; the loader unpacks it, turns it a little and scales it down, which keeps a core busy.
Each test guards the step time with one setting of the loader. If no core is free, as with two ranks on two cores,
workers cannot help, and `auto` uses none.
"""

from __future__ import annotations

import math
import zlib
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from pytest_ddpperf import Ddpperf, Workload

from .digits import convolutional_network, pictures_and_labels

if find_spec("sklearn") is None:  # importing it would take a second
    pytest.skip("the pictures come with scikit-learn", allow_module_level=True)

PICTURES = 768  # of 1797: each launch compresses them again
STORED = 64  # pixels along the side of a stored picture
BATCH = 32
DEGREES = 15.0


@pytest.mark.ddpperf(launches=3, warmup=3)
@pytest.mark.parametrize(
    "loader",
    [
        "auto",
        *(pytest.param(name, marks=pytest.mark.sweep) for name in ("workers=0", "workers=2,persistent_workers=true")),
    ],
)
def test_packed_digits(ddpperf: Ddpperf, loader: str) -> None:
    ddpperf.check(packed_digits(BATCH), strategy="ddp", loader=loader, name=loader.partition(",")[0])


def packed_digits(batch_size: int) -> Workload:
    """Return the workload of the image classifier with pictures that are slow to unpack."""
    return Workload(
        model=convolutional_network,
        loader=partial(packed_loader, batch_size),
        loss=functional.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        samples_per_step=batch_size,
    )


def packed_loader(batch_size: int, rank: int, world_size: int) -> DataLoader[Any]:
    """Return shuffled batches of one rank's share of the pictures."""
    dataset = PackedDigits()
    sampler = DistributedSampler[Any](dataset, world_size, rank, shuffle=True, drop_last=True)
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, drop_last=True)


class PackedDigits(Dataset[tuple[Tensor, int]]):
    """The handwritten digits as large compressed pictures, as in a folder of image files."""

    def __init__(self) -> None:
        pictures, labels = pictures_and_labels()
        large = functional.interpolate(pictures[:PICTURES], size=(STORED, STORED), mode="bilinear")
        pixels = (large * 255).to(torch.uint8)
        self.packed = [zlib.compress(picture.numpy().tobytes()) for picture in pixels]
        self.labels = [int(label) for label in labels[:PICTURES]]

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        unpacked = bytearray(zlib.decompress(self.packed[index]))
        picture = torch.frombuffer(unpacked, dtype=torch.uint8).view(1, 1, STORED, STORED).float() / 255
        turned = turn(picture, math.radians(DEGREES * math.sin(index)))
        return functional.adaptive_avg_pool2d(turned, 8)[0], self.labels[index]


def turn(picture: Tensor, angle: float) -> Tensor:
    """Return the picture, turned by an angle in radians."""
    cosine, sine = math.cos(angle), math.sin(angle)
    rotation = torch.tensor([[[cosine, -sine, 0.0], [sine, cosine, 0.0]]])
    grid = functional.affine_grid(rotation, list(picture.shape), align_corners=False)
    return functional.grid_sample(picture, grid, align_corners=False)
