"""Verifications on real ranks, as several tests launch them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.strategy import Strategy
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.correctness.verifier import verify_launch
from pytest_ddpperf.training.jobs import VerifyJob
from pytest_ddpperf.training.subject import Workload
from pytest_ddpperf.training.verification import Verification
from tests.strategies.conftest import Placement, on_cpu

ADAMW = partial(torch.optim.AdamW, lr=1e-2)
CPU = on_cpu(2)


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(16, 8), torch.randint(3, (16,))


def job(strategy: Strategy | str, settings: Settings | None = None, **changes: Any) -> VerifyJob:
    fields: dict[str, Any] = {
        "batch": batch,
        "loss": nn.functional.cross_entropy,
        "optimizer": ADAMW,
        "samples_per_step": 16,
    }
    return VerifyJob(Workload(**(fields | changes)), resolve(strategy), settings or Settings())


def verify_all(ctx: RankContext, jobs: list[VerifyJob]) -> list[Verification]:
    return [verify_launch(ctx, job) for job in jobs]


def verify(launcher: Launcher, *jobs: VerifyJob, on: Placement = CPU) -> list[Verification]:
    """What each job comes to; all ranks have to say the same of it."""
    first, *others = launcher.run(
        verify_all, list(jobs), world_size=on.ranks, backend=on.backend, device=on.device, timeout=100
    ).values
    assert all(other == first for other in others)
    return list(first)
