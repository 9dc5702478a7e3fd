"""What a rank's device reaches in simple work: products of matrices, copies, small operators."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_ddpperf.instruments.clock import settle
from pytest_ddpperf.records.launch import MachineRates

if TYPE_CHECKING:
    import torch

_ROWS = {"cpu": 512, "cuda": 4096}  # of square matrices
_COPIED = {"cpu": 32 << 20, "cuda": 256 << 20}  # bytes of a tensor: two of them exceed the caches
_LAYERS = 20  # of the small step
_OPERATORS = 6  # of each layer: two in forward, three in backward, and the sum of the weight's gradients
_LEAST_SECONDS = 0.02  # of each kind of work, and
_LEAST_TIMES = 3
_MOST_TIMES = 1000  # whatever the clock says
_TICK = 1e-9  # seconds: no work takes less


def read_rates(device: torch.device, precision: str = "fp32") -> MachineRates | None:
    """Times simple work on this rank; all ranks do so at the same time, as they do in steps.

    ``precision`` is that of the products, as in the settings. Each kind of work counts with its shortest time. No
    random number is drawn.

    Returns:
        The rates; None if the tensors, less than 100 MB on the CPU, do not fit into memory.
    """
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    rows, copied = _ROWS[device.type], _COPIED[device.type]
    try:
        with torch.autocast(device.type, enabled=False), torch.no_grad():
            matrix = torch.ones((rows, rows), dtype=dtype, device=device)
            product = torch.empty_like(matrix)
            source = torch.ones(copied // 4, dtype=torch.float32, device=device)
            target = torch.empty_like(source)
            products = _shortest(lambda: torch.mm(matrix, matrix, out=product), device)
            copies = _shortest(lambda: target.copy_(source), device)
        small = _shortest(_small_step(device), device)
    except (MemoryError, torch.OutOfMemoryError, RuntimeError):  # the CPU's allocator raises a RuntimeError
        return None
    return MachineRates(
        products=2 * rows**3 / products, copies=2 * copied / copies, operator=small / (_OPERATORS * _LAYERS)
    )


def _small_step(device: torch.device) -> Callable[[], object]:
    """Forward and backward of layers so small that nothing counts but the calls."""
    import torch

    weight = torch.ones((4, 4), device=device, requires_grad=True)
    inputs = torch.ones((4, 4), device=device)

    def step() -> None:
        weight.grad = None
        with torch.enable_grad():
            outputs = inputs
            for _ in range(_LAYERS):
                outputs = torch.tanh(outputs @ weight)
            torch.autograd.backward(outputs.sum())

    return step


def _shortest(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the shortest of several times, after one that warms up."""
    work()
    settle(device)
    begun, times = time.perf_counter(), list[float]()
    while len(times) < _LEAST_TIMES or (len(times) < _MOST_TIMES and time.perf_counter() - begun < _LEAST_SECONDS):
        before = time.perf_counter()
        work()
        settle(device)
        times.append(time.perf_counter() - before)
    return max(_TICK, min(times))
