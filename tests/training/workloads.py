"""Workloads that several tests train."""

from __future__ import annotations

import torch

from pytest_ddpperf import Workload


def linear_workload() -> Workload:
    return Workload(
        model=lambda: torch.nn.Linear(8, 8),
        batch=lambda: (torch.rand(4, 8), torch.zeros(4, 8)),
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        samples_per_step=4,
        tokens_per_step=32,
    )
