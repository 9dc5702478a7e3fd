"""FLOPs belong to the module that asked for them, and to forward or backward."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from pytest_ddpperf.instruments.counting.counting import Countable
from pytest_ddpperf.records.counts import Counts
from tests.counted import count_step


def counted(run: Callable[[], object]) -> Counts:
    return count_step(run, Countable(device=torch.device("cpu")), warmup=1, steps=0)


def flops_of_training(model: nn.Module, *inputs: torch.Tensor) -> Counts:
    return counted(lambda: model(*inputs).sum().backward())


class Recomputing(nn.Module):
    """A linear layer of 8 x 8, and a product of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(self.work, inputs, use_reentrant=False)  # type: ignore[no-any-return]

    def work(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.inner(inputs)
        return torch.tanh(hidden @ hidden.T)


def test_work_that_checkpointing_recomputes_is_counted_as_forward_again() -> None:
    """2 rows: 2 x 2 x 8 x 8 = 256 for the layer, 2 x 2 x 2 x 8 = 64 for the product; each twice."""
    inputs = torch.ones(2, 8, requires_grad=True)
    found = flops_of_training(Recomputing(), inputs)
    assert found.details["flops_forward"] == {"inner": 512.0, "model": 64.0, "recomputed in backward": 64.0}
    assert found.details["flops_backward"] == {"inner": 512.0, "model": 128.0}
    assert found.details["flops_recomputed"] == {"inner": 256.0, "recomputed in backward": 64.0}


def test_autograd_functions_of_the_user_belong_to_the_module_that_calls_them() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, inputs: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(inputs)
            return inputs @ inputs

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> torch.Tensor:
            inputs: torch.Tensor = ctx.saved_tensors[0]  # type: ignore[attr-defined]
            return grad @ inputs.T + inputs.T @ grad

    class Squaring(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return Square.apply(inputs)  # type: ignore[no-untyped-call, no-any-return]

    found = flops_of_training(nn.Sequential(nn.Linear(4, 4), Squaring()), torch.ones(4, 4))
    assert found.details["flops_forward"] == {"0": 128.0, "1": 128.0}
    assert found.details["flops_backward"] == {"0": 128.0, "1": 256.0}


def test_a_gradient_of_a_gradient_is_backward() -> None:
    """4 rows through 8 x 16 and 16 x 1: 1024 and 128 forward, as many for the gradient of the inputs.

    That is the gradients with respect to its matrix, 16 x 8, and to what this one was multiplied with, and both once
    more by way of tanh's derivative: 4 x 1024; of the last layer the weight's only: 128.
    """
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def run() -> None:
        inputs = torch.ones(4, 8, requires_grad=True)
        (slope,) = torch.autograd.grad(net(inputs).sum(), inputs, create_graph=True)
        slope.square().sum().backward()  # type: ignore[no-untyped-call]  # torch

    found = counted(run)
    assert found.details["flops_forward"] == {"0": 1024.0, "2": 128.0}
    assert found.details["flops_backward"] == {"0": 1024.0 + 4 * 1024, "2": 128.0 + 128}


def test_torch_knows_of_no_hook_and_modules_are_called_as_before() -> None:
    """It would warn of a hook when a compiled model is called."""
    seen, called = list[bool](), nn.Module.__call__

    class Looking(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hooks = nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks
            seen.append(bool(hooks))
            return super().forward(inputs)

    found = flops_of_training(Looking(2, 2), torch.ones(2, 2))
    assert found.details["flops_forward"] == {"model": 16.0}
    assert seen
    assert not any(seen)
    assert nn.Module.__call__ is called


def test_products_in_float32_or_wider_count_by_type() -> None:
    """2 rows, 8 x 8: 256 FLOPs forward in bfloat16 and 256 in float64, which count twice; as many backward."""
    inputs, half, double = torch.ones(2, 8), nn.Linear(8, 8), nn.Linear(8, 8).double()

    def run() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = half(inputs)
        double(hidden.double().detach()).sum().backward()
        hidden.float().sum().backward()

    found = counted(run)
    assert found.totals["flops"] == 1024.0
    assert found.details["full_precision_flops"] == {"float64": 1024.0}


@pytest.mark.parametrize(("precision", "expected"), [("highest", {"float32": 256.0}), ("high", {})])
def test_products_that_tf32_may_compute_do_not_count(precision: str, expected: dict[str, float]) -> None:
    before = torch.get_float32_matmul_precision()
    inputs, layer = torch.ones(2, 8), nn.Linear(8, 8)
    torch.set_float32_matmul_precision(precision)
    try:
        found = counted(lambda: layer(inputs))
    finally:
        torch.set_float32_matmul_precision(before)
    assert found.totals["flops"] == 256.0
    assert found.details["full_precision_flops"] == expected


def test_modules_that_a_thread_of_the_user_runs_change_nothing() -> None:
    """The thread is inside of a teacher while the model runs, and leaves it only then."""
    model, teacher = nn.Linear(8, 4), nn.Sequential(nn.Linear(8, 8))
    inside, left = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        inside.set()
        assert left.wait(60)

    teacher[0].register_forward_pre_hook(wait)

    def step() -> None:
        inside.clear()
        left.clear()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(teacher, torch.ones(2, 8))
            assert inside.wait(60)
            loss = model(torch.ones(2, 8)).sum()
            left.set()
            running.result(60)
        loss.backward()

    found = counted(step)
    assert found.details["flops_forward"] == {"model": 2 * 2 * 8 * 4}
    assert found.details["batch_rows"] == {"batches of 2 x 8": 2.0}
    assert found.unstable == {}
