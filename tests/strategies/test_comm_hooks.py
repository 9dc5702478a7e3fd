"""Communication hooks of DistributedDataParallel on real ranks: what they send, and when ranks are alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.strategies.parallel import Parallel
from pytest_ddpperf.strategies.table import parallelise

pytestmark = pytest.mark.slow


PERIOD = 3


def run(launcher: Launcher, function: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    return launcher.run(function, *args, world_size=2, backend="gloo", device="cpu", timeout=120).values


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


def prepared(ctx: RankContext, strategy: str) -> tuple[Parallel, torch.optim.Optimizer]:
    torch.manual_seed(ctx.rank)
    parallel = parallelise(strategy, network().to(ctx.device), ctx)

    def factory(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)

    if parallel.make_optimizer is not None:
        return parallel, parallel.make_optimizer(factory)
    return parallel, factory(parallel.module.parameters())


def sent_in_steps(ctx: RankContext, strategies: list[str], steps: int) -> list[list[list[tuple[torch.dtype, int]]]]:
    """The type and the number of the values in each all-reduce of each step.

    Looked at where hooks call it: PowerSGD does so in a thread of gloo's, where no dispatch mode sees it.
    """
    sent: list[tuple[torch.dtype, int]] = []
    real = dist.all_reduce

    def spy(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        sent.append((tensor.dtype, tensor.numel()))
        return real(tensor, *args, **kwargs)

    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", spy)
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


def test_hooks_send_what_they_say(launcher: Launcher) -> None:
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


def train_locally(ctx: RankContext, micro_batches: int, start: int, steps: int) -> tuple[list[Tensor], list[float]]:
    """The parameters after each step, every micro-batch of which is synchronised; and the learning rates."""
    parallel, optimizer = prepared(
        ctx, f"ddp[comm_hook=post_local_sgd,local_sgd_start={start},local_sgd_period={PERIOD}]"
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    torch.manual_seed(10 + ctx.rank)
    weights, rates = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            parallel.module(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
        schedule.step()
        weights.append(parallel.module.get_parameter("module.0.weight").detach().clone())
    return weights, rates


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_ranks_train_on_their_own_between_averages(launcher: Launcher, micro_batches: int) -> None:
    """Together in the steps 0 and 1, averaged after the steps 2 and 5, and on their own after 3, 4 and 6."""
    (first, rates), (second, _) = run(launcher, train_locally, micro_batches, 2, 7)
    equal = [torch.equal(one, other) for one, other in zip(first, second, strict=True)]
    assert equal == [True, True, True, False, False, True, False]
    assert rates == [0.2 / 2**step for step in range(7)]


def on_a_machine_with_a_gpu(ctx: RankContext) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        with pytest.raises(SettingError) as caught:
            prepared(ctx, "ddp[comm_hook=powersgd]")
    return str(caught.value)


def test_powersgd_on_the_cpu_of_a_machine_with_a_gpu_is_refused(launcher: Launcher) -> None:
    """Because torch's hook would synchronise the device of a tensor that is on none."""
    for message in run(launcher, on_a_machine_with_a_gpu):
        assert "hide the GPUs (CUDA_VISIBLE_DEVICES=) or use device=cuda" in message
