"""Workloads that several tests train."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pytest_ddpperf import Workload


class Weight(nn.Module):
    """One weight, 1 at the start: the gradient of ``weight * mean(inputs)`` is the mean of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.weight * inputs


def workload(**changes: Any) -> Workload:
    """A linear layer with other fields, of which a loader takes the place of the batch."""
    fields: dict[str, Any] = {
        "model": lambda: nn.Linear(8, 8),
        "batch": lambda: (torch.rand(4, 8), torch.zeros(4, 8)),
        "loss": nn.functional.mse_loss,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "samples_per_step": 4,
    }
    return Workload(**(fields | ({"batch": None} if "loader" in changes else {}) | changes))


def weights_of(*numbers: float, **changes: Any) -> Workload:
    """One weight on these inputs, one in each step: in fp16, 1e35 times the scale overflows."""
    batches = [(torch.tensor([number]), torch.zeros(1)) for number in numbers]
    fields = {"model": Weight, "loader": lambda _rank, _size: batches, "loss": lambda outputs, _: outputs.mean()}
    return workload(**{**fields, "samples_per_step": 1, **changes})
