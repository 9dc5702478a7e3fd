"""The programs whose training steps real runs measure, and a git project with two commits of one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.quality.project import AS_NOBODY
from benchmarks.quality.steps import LENGTHS, PRODUCT, Calibration
from pytest_ddpperf.against.git import git

LATENCY = "latency"
"""A step that waits for messages: an all-reduce of 84 bytes."""

BEFORE, AFTER = "before", "after"  # branches: of the reference, and of what is compared with it
TESTS, BASELINES = "perf", "baselines"
SAMPLES = 64  # of a step, as far as the test says
EPOCH = 20  # steps of the program with a loader
VALIDATED = 3  # batches of a validation
VALIDATE_EVERY = 20  # steps

STEPS = '''\
"""A perceptron that trains under DDP."""

import time

import torch
from torch import nn

WIDTH, DEPTH, BATCH = {width}, {depth}, {batch}
PRODUCTS = {products}  # small matrix products in each step
PAUSE, EVERY = {pause!r}, {every}  # seconds, in one step of so many
SPINS, ALONE = {spins}, {alone}  # whether a pause computes, and whether the first rank alone pauses


def perceptron():
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, *([] if DEPTH else [nn.Linear(WIDTH, 1)]))


def wait():
    until = time.perf_counter() + PAUSE
    while SPINS and time.perf_counter() < until:
        pass
    time.sleep(max(0.0, until - time.perf_counter()))


class Trainer:
    def __init__(self, rank):
        torch.manual_seed(0)
        self.model = nn.parallel.DistributedDataParallel(perceptron())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.inputs = torch.randn(BATCH, WIDTH)
        self.matrix = torch.full(({product}, {product}), 1 / {product})
        self.pauses = PAUSE > 0 and (rank == 0 or not ALONE)
        self.number = 0

    def step(self):
        self.number += 1
        self.optimizer.zero_grad()
        loss = self.model(self.inputs).square().mean()
        loss.backward()
        self.optimizer.step()
        product = self.matrix
        for _ in range(PRODUCTS):
            product = product @ self.matrix
        if self.pauses and self.number % EVERY == 0:
            wait()
        return loss.detach()
'''

LOADER = '''\
"""A perceptron under DDP, whose data come from workers."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PERSISTENT = {persistent}
BATCH, WIDTH, EPOCH = {batch}, {width}, {epoch}


class Trainer:
    def __init__(self, rank):
        torch.manual_seed(0)
        layers = [layer for _ in range({depth}) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self.model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        samples = TensorDataset(torch.randn(EPOCH * BATCH, WIDTH))
        self.loader = DataLoader(samples, batch_size=BATCH, num_workers=1, persistent_workers=PERSISTENT)
        self.batches = iter(())

    def step(self):
        found = next(self.batches, None)
        if found is None:
            self.batches = iter(self.loader)
            found = next(self.batches)
        self.optimizer.zero_grad()
        loss = self.model(found[0]).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()
'''

VALIDATION = '''\
"""A perceptron under DDP, which is validated now and then."""

import torch
from torch import nn

VALIDATED = {validated}  # batches
EVERY = {every}  # steps


class Trainer:
    def __init__(self, rank):
        torch.manual_seed(0)
        layers = [layer for _ in range({depth}) for layer in (nn.Linear({width}, {width}), nn.ReLU())]
        self.model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.inputs = torch.randn({batch}, {width})
        self.number = 0

    def validate(self):
        with torch.no_grad():
            return sum(self.model.module(self.inputs).square().mean().item() for _ in range(VALIDATED))

    def step(self):
        self.number += 1
        self.optimizer.zero_grad()
        loss = self.model(self.inputs).square().mean()
        loss.backward()
        self.optimizer.step()
        if self.number % EVERY == 0:
            self.validate()
        return loss.detach()
'''

TEST = f"""\
from trainer import Trainer


def build(ctx):
    return Trainer(ctx.rank).step


def test_step(ddpperf):
    ddpperf.check(build, samples_per_step={SAMPLES}, verify=False)
"""


@dataclass(frozen=True)
class Program:
    """One program; what makes it slower is off by default."""

    length: str = "12ms"  # of its steps: one of LENGTHS, or LATENCY
    kind: str = "steps"  # or loader, or validation
    work: float = 0.0  # small products in each step, as a share of the step
    pause: float = 0.0  # typical steps
    every: int = 10  # the steps of which one pauses
    spins: bool = False  # whether a pause computes
    alone: bool = False  # whether the first rank alone pauses
    worse: bool = False  # of a loader: its workers start anew in each epoch; a validation takes ten times as long

    def text(self, calibrations: Mapping[str, Calibration]) -> str:
        """Its module; work and pauses are made by what a step of this length was found to take."""
        shape = LENGTHS.get(self.length)
        width, depth, batch = (20, 0, 8) if shape is None else (shape.width, shape.depth, shape.batch)
        if self.kind == "loader":
            return LOADER.format(persistent=not self.worse, batch=batch, width=width, depth=depth, epoch=EPOCH)
        if self.kind == "validation":
            batches = VALIDATED * (10 if self.worse else 1)
            return VALIDATION.format(validated=batches, every=VALIDATE_EVERY, depth=depth, width=width, batch=batch)
        known = calibrations.get(self.length)
        return STEPS.format(
            width=width,
            depth=depth,
            batch=batch,
            products=round(self.work * known.step / known.product) if known is not None else 0,
            pause=self.pause * known.step if known is not None else 0.0,
            every=self.every,
            spins=self.spins,
            alone=self.alone,
            product=PRODUCT,
        )

    @property
    def calibrated(self) -> bool:
        """Whether it needs to be known what its steps take."""
        return self.work > 0 or self.pause > 0


def make_project(folder: Path, before: str, after: str) -> None:
    """A git repository with a branch for either module; of two that are equal, the second one has a comment more."""
    (folder / TESTS).mkdir(parents=True)
    (folder / TESTS / "test_step.py").write_text(TEST, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / ".gitignore").write_text(f"__pycache__\n{BASELINES}\n", encoding="utf-8")
    git(folder, "init", "-q", "-b", BEFORE)
    for branch, text in ((BEFORE, before), (AFTER, after if after != before else f"{after}\n# touched\n")):
        if branch != BEFORE:
            git(folder, "checkout", "-q", "-b", branch)
        (folder / "trainer.py").write_text(text, encoding="utf-8")
        git(folder, "add", "-A")
        git(folder, *AS_NOBODY, "commit", "-q", "-m", branch)


def check_out(folder: Path, branch: str) -> None:
    """Make this branch the one that is measured."""
    git(folder, "checkout", "-q", branch)
