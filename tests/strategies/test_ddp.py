"""What DistributedDataParallel is not given, because torch would fail without saying why; and what its hooks send."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from pytest_ddpperf.errors import SettingError, WorkloadError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.strategies.strategy import Parallel
from pytest_ddpperf.strategies.table import parallelise
from tests.strategies.conftest import all_reduces, ready

if TYPE_CHECKING:
    from tests.strategies.conftest import Placement

RANK = RankContext(0, 2, 0, 2, torch.device("cpu"), "gloo", None)


class AsDouble(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.double()


def two_types(*, second_trains: bool = True) -> nn.Module:
    second = nn.Linear(2, 2).double().requires_grad_(requires_grad=second_trains)
    return nn.Sequential(nn.Linear(2, 2), AsDouble(), second)


@pytest.mark.parametrize(
    ("options", "module", "message"),
    [
        ("", two_types(), r"^comm_hook=powersgd on gloo .* \(torch.float32 and torch.float64\): train"),
        (
            ",find_unused_parameters=true",
            nn.Linear(2, 2),
            r"^comm_hook=powersgd with find_unused_parameters=true needs backend=nccl",
        ),
    ],
)
def test_powersgd_on_gloo_is_refused_if_it_would_hang(options: str, module: nn.Module, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        parallelise(f"ddp[comm_hook=powersgd{options}]", module, RANK)


def test_powersgd_on_the_cpu_of_a_machine_with_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Because torch's hook would synchronise the device of a tensor that is on none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(SettingError, match=r"hide the GPUs \(CUDA_VISIBLE_DEVICES=\) or use device=cuda$"):
        parallelise("ddp[comm_hook=powersgd]", nn.Linear(2, 2), RANK)


@pytest.mark.parametrize("strategy", ["ddp", "ddp[broadcast_buffers=false]", "zero1"])
def test_an_expanded_buffer_is_named(strategy: str) -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    module[0].register_buffer("ones", torch.ones(1).expand(4))
    with pytest.raises(WorkloadError, match=r"the model's buffer 0.ones, because .* an expanded tensor.*\.clone\(\)"):
        parallelise(strategy, module, RANK)


def trained(ctx: RankContext) -> list[bool]:
    cloned, ignored = (nn.Sequential(nn.Linear(2, 2)) for _ in range(2))
    cloned.register_buffer("ones", torch.ones(1).expand(4).clone())
    ignored.register_buffer("ones", torch.ones(1).expand(4))
    ignored.__dict__["_ddp_params_and_buffers_to_ignore"] = ["ones"]  # torch's own way
    cures = [("ddp", cloned), ("ddp", ignored), ("ddp[comm_hook=powersgd]", two_types(second_trains=False))]
    found = []
    for strategy, module in cures:
        parallel = parallelise(strategy, module, ctx)
        parallel.module(torch.ones(1, 2, dtype=next(module.parameters()).dtype)).sum().backward()
        found.append(all(one.grad is not None for one in module.parameters() if one.requires_grad))
    return found


def test_training_works_with_the_cures_that_the_messages_name(
    run_on: Callable[..., tuple[Any, ...]], cpu: Placement
) -> None:
    assert run_on(cpu, trained) == ([True] * 3,) * 2


PERIOD = 3


def run(launcher: Launcher, function: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    return launcher.run(function, *args, world_size=2, backend="gloo", device="cpu", timeout=120).values


def prepared(ctx: RankContext, strategy: str) -> tuple[Parallel, torch.optim.Optimizer]:
    torch.manual_seed(ctx.rank)
    return ready(ctx, strategy, nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)))


def sent_in_steps(ctx: RankContext, strategies: list[str], steps: int) -> list[list[list[tuple[torch.dtype, int]]]]:
    """The type and the number of the values in each all-reduce of each step."""
    found = []
    with all_reduces(lambda tensor: (tensor.dtype, tensor.numel())) as sent:
        for strategy in strategies:
            parallel, optimizer = prepared(ctx, strategy)
            by_step = []
            for _ in range(steps):
                sent.clear()
                parallel.module(torch.ones(2, 64)).sum().backward()
                optimizer.step()
                by_step.append(sent.copy())
            found.append(by_step)
    return found


@pytest.mark.slow
def test_communication_hooks_send_the_documented_bytes(launcher: Launcher) -> None:
    """Weights of 48 x 64 and 10 x 48, biases of 48 and 10: 3610 values.

    With rank r PowerSGD sends the 58 of the biases as they are, then r x (48 + 10) and r x (64 + 48). Local SGD from
    step 1 on averages the parameters after the steps 1, 4, 7 and no gradients.
    """
    full, half, brain = torch.float32, torch.float16, torch.bfloat16
    wanted = {
        "ddp[comm_hook=fp16]": [[(half, 3610)]] * 5,
        "ddp[comm_hook=bf16]": [[(brain, 3610)]] * 5,
        "ddp[comm_hook=powersgd]": [[(full, 3610)]] * 2 + [[(full, 58), (full, 58), (full, 112)]] * 3,
        "ddp[comm_hook=powersgd,powersgd_rank=2,powersgd_start=4]": (
            [[(full, 3610)]] * 4 + [[(full, 58), (full, 116), (full, 224)]]
        ),
        f"ddp[comm_hook=post_local_sgd,local_sgd_start=1,local_sgd_period={PERIOD}]": (
            [[(full, 3610)], [(full, 3610)], [], [], [(full, 3610)]]
        ),
    }
    for found in run(launcher, sent_in_steps, list(wanted), 5):
        assert dict(zip(wanted, found, strict=True)) == wanted


def train_locally(ctx: RankContext, steps: int) -> tuple[list[Tensor], list[float]]:
    """The parameters after each step, whose two micro-batches are both synchronised; and the learning rates."""
    parallel, optimizer = prepared(ctx, f"ddp[comm_hook=post_local_sgd,local_sgd_start=2,local_sgd_period={PERIOD}]")
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    torch.manual_seed(10 + ctx.rank)
    weights, rates = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(2):
            parallel.module(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
        schedule.step()
        weights.append(parallel.module.get_parameter("module.0.weight").detach().clone())
    return weights, rates


@pytest.mark.slow
def test_ranks_train_on_their_own_between_averages(launcher: Launcher) -> None:
    """Together in the steps 0 and 1, averaged after the steps 2 and 5, and on their own after 3, 4 and 6."""
    (first, rates), (second, _) = run(launcher, train_locally, 7)
    equal = [torch.equal(one, other) for one, other in zip(first, second, strict=True)]
    assert equal == [True, True, True, False, False, True, False]
    assert rates == [0.1 / 2**step for step in range(7)]
