"""A way to see a red test: make one workload slower than it is, by a known share of its step.

    PERF_TESTS_SLOW="larger:0.5" pytest perf_tests --ddpperf-world-size=2

makes every step of the workload named ``larger`` take half as long again.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from typing import Any

import torch
from torch import nn

VARIABLE = "PERF_TESTS_SLOW"


def slowed(model: nn.Module, name: str) -> nn.Module:
    """The model, with extra work before each forward pass if the environment asks for it by this name."""
    wanted, _, share = os.environ.get(VARIABLE, "").partition(":")
    if wanted == name:
        model.register_forward_pre_hook(ExtraWork(float(share)))
    return model


class ExtraWork:
    """Multiplies matrices for a share of the time that a step takes without it.

    Work measured against the whole step, from one forward pass to the next, hits the share wherever the step spends
    its time: a repeated forward and backward pass of a slice of the batch would miss communication and optimizer.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.step_times: deque[float] = deque(maxlen=15)  # without the extra work
        self.last_end: float | None = None

    def __call__(self, module: nn.Module, _args: Any) -> None:
        """Called by torch before each forward pass."""
        device = next(module.parameters()).device
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # or the queued work of the step would count as extra work
        start = time.perf_counter()
        if self.last_end is not None:
            self.step_times.append(start - self.last_end)
            self._multiply_until(start + self.share * statistics.median(self.step_times), device)
        self.last_end = time.perf_counter()

    def _multiply_until(self, deadline: float, device: torch.device) -> None:
        matrix = torch.ones(64, 64, device=device)
        while time.perf_counter() < deadline:
            torch.mm(matrix, matrix)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
