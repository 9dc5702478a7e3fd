"""The programs whose training steps real runs measure, and a git project with two commits of one of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.project import commit, repository, write
from pytest_ddpperf.against.git import git

BEFORE, AFTER = "before", "after"  # branches: of the reference, and of what is compared with it
TESTS, BASELINES = "perf", "baselines"
SAMPLES = 64  # of a step, as far as the test says
SHAPES = {  # width, depth and batch, by about how long a step lasts with two ranks on two cores
    "latency": (20, 0, 8),  # a step that waits for messages: an all-reduce of 84 bytes
    "4ms": (192, 4, 160),
    "12ms": (256, 4, 400),
    "60ms": (512, 5, 510),
}

TRAINER = '''\
"""A perceptron that trains under DDP."""

import time
from collections import deque
from itertools import repeat

import torch
from perf_tests.extra_work import ExtraWork
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH, DEPTH, BATCH = {shape}
WORK = {work}  # in each step, as a share of it
PAUSE, EVERY = {pause}, {every}  # typical steps, in one step of so many
SPINS, ALONE = {spins}, {alone}  # whether a pause computes, and whether the first rank alone pauses
LOADER, PERSISTENT, EPOCH = {loader}, {persistent}, 20  # whether batches come from a worker, and whether it stays
VALIDATED = {validated}  # batches in each 20th step


class Trainer:
    def __init__(self, rank):
        torch.manual_seed(0)
        layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self.model = nn.parallel.DistributedDataParallel(nn.Sequential(*(layers or [nn.Linear(WIDTH, 1)])))
        self.model.module.register_forward_pre_hook(ExtraWork(WORK))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.batches = self.loaded() if LOADER else repeat(torch.randn(BATCH, WIDTH))
        self.pauses = PAUSE > 0 and (rank == 0 or not ALONE)
        self.number, self.times = 0, deque(maxlen=15)

    def loaded(self):
        samples = TensorDataset(torch.randn(EPOCH * BATCH, WIDTH))
        loader = DataLoader(samples, batch_size=BATCH, num_workers=1, persistent_workers=PERSISTENT)
        while True:
            yield from (inputs for inputs, in loader)

    def step(self):
        self.number += 1
        begun = time.perf_counter()
        inputs = next(self.batches)
        self.optimizer.zero_grad()
        loss = self.model(inputs).square().mean()
        loss.backward()
        self.optimizer.step()
        self.times.append(time.perf_counter() - begun)
        if self.pauses and self.number % EVERY == 0:
            until = time.perf_counter() + PAUSE * sorted(self.times)[len(self.times) // 4]
            while SPINS and time.perf_counter() < until:
                pass
            time.sleep(max(0.0, until - time.perf_counter()))
        if self.number % 20 == 0:
            with torch.no_grad():
                sum(self.model.module(inputs).square().mean().item() for _ in range(VALIDATED))
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

    length: str = "12ms"  # of its steps: one of SHAPES
    work: float = 0.0  # in each step, as a share of it
    pause: float = 0.0  # typical steps
    every: int = 10  # the steps of which one pauses
    spins: bool = False  # whether a pause computes
    alone: bool = False  # whether the first rank alone pauses
    loader: bool = False  # whether batches come from a worker
    persistent: bool = True  # else the worker starts anew in each epoch
    validated: int = 0  # batches in each 20th step

    @property
    def text(self) -> str:
        """Its module."""
        return TRAINER.format(**{**vars(self), "shape": SHAPES[self.length]})


def make_project(folder: Path, before: str, after: str) -> None:
    """Makes a repository with a branch for either module; of two that are equal, the second one has a comment more."""
    ignored = {".gitignore": f"__pycache__\n{BASELINES}\n"}
    repository(folder, {f"{TESTS}/test_step.py": TEST, "trainer.py": before, **ignored}, BEFORE)
    git(folder, "checkout", "-q", "-b", AFTER)
    write(folder, {"trainer.py": after if after != before else f"{after}\n# touched\n"})
    commit(folder, AFTER)
