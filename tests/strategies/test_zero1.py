"""The sharded optimizer on real ranks: whose state is where, and that it is the user's optimizer still."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.strategies.ddp_wrapping import import_distributed_optimizers
from pytest_ddpperf.strategies.parallel import Parallel
from pytest_ddpperf.strategies.table import parallelise

STEPS = 3


def zero_optimizer() -> Any:
    return import_distributed_optimizers().ZeroRedundancyOptimizer


def run(launcher: Launcher, function: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    return launcher.run(function, *args, world_size=3, backend="gloo", device="cpu", timeout=60).values


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 3))


def share_of(rank: int, step: int) -> Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(100 * step + rank))


def in_groups(parameters: Any) -> torch.optim.Optimizer:
    given = list(parameters)
    groups = [{"params": given[::2], "weight_decay": 0.5}, {"params": given[1::2], "lr": 0.02}]
    return torch.optim.AdamW(groups, lr=0.01, foreach=False)


def prepared(ctx: RankContext, strategy: str) -> tuple[Parallel, torch.optim.Optimizer]:
    torch.manual_seed(ctx.rank)
    parallel = parallelise(strategy, network(), ctx)
    make = parallel.make_optimizer
    return parallel, in_groups(parallel.module.parameters()) if make is None else make(in_groups)


def zero1_facts(ctx: RankContext) -> dict[str, Any]:
    """Which parameters this rank keeps state of, and what its optimizer is like."""
    parallel, whole = prepared(ctx, "zero1")
    assert isinstance(whole, zero_optimizer())
    steps = []
    whole.optim.register_step_post_hook(lambda *_: steps.append(1))
    schedule = torch.optim.lr_scheduler.StepLR(whole, step_size=1, gamma=0.5)
    rates = []
    for step in range(STEPS):
        parallel.module(share_of(ctx.rank, step)).square().mean().backward()
        whole.step()
        rates.append([group["lr"] for group in whole.optim.param_groups])
        if step == 0:
            schedule.step()
        else:
            whole.param_groups[-1]["lr"] = 7e-3
    names = {parameter: name for name, parameter in parallel.module.named_parameters()}
    return {
        "state": sorted(names[parameter] for parameter in whole.optim.state),
        "kept": sorted(names[parameter] for group in whole.optim.param_groups for parameter in group["params"]),
        "type": type(whole.optim).__name__,
        "groups": [(group["weight_decay"], group["foreach"]) for group in whole.optim.param_groups],
        "steps": len(steps),
        "rates": rates,
    }


def test_zero1_shares_out_the_state_of_the_users_own_optimizer(launcher: Launcher) -> None:
    """AdamW in two groups, with learning rates of 0.01 and 0.02; after the first step they are halved.

    The second group's is then set to 0.007, which the third step uses.
    """
    facts = run(launcher, zero1_facts)
    names = [f"module.{name}" for name, _ in network().named_parameters()]
    assert sorted(name for fact in facts for name in fact["state"]) == sorted(names)
    for fact in facts:
        assert fact["state"] == fact["kept"] != []
        assert (fact["type"], fact["steps"]) == ("AdamW", STEPS)
        assert fact["groups"] == [(0.5, False), (0.01, False)]
        assert fact["rates"] == [[0.01, 0.02], [0.005, 0.01], [0.005, 0.007]]


def scheduled(ctx: RankContext, strategy: str) -> dict[str, Tensor]:
    parallel, optimizer = prepared(ctx, strategy)
    assert parallel.parameters is not None
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for step in range(STEPS):
        optimizer.zero_grad()
        parallel.module(share_of(ctx.rank, step)).square().mean().backward()
        optimizer.step()
        schedule.step()
    return parallel.parameters()


def test_zero1_follows_a_schedule_as_ddp_does(launcher: Launcher) -> None:
    expected = run(launcher, scheduled, "ddp")[0]
    for found in run(launcher, scheduled, "zero1"):
        assert all(torch.allclose(found[name], value, rtol=1e-5, atol=1e-7) for name, value in expected.items())


def adagrad(ctx: RankContext) -> tuple[int, Tensor]:
    """Adagrad makes its state when it is built; here there are more ranks than parameters."""
    torch.manual_seed(ctx.rank)
    parallel = parallelise("zero1[parameters_as_bucket_view=true]", nn.Linear(5, 3), ctx)
    assert parallel.make_optimizer is not None
    optimizer = parallel.make_optimizer(lambda parameters: torch.optim.Adagrad(parameters, lr=0.1))
    assert isinstance(optimizer, zero_optimizer())
    parallel.module(share_of(ctx.rank, 0)).square().mean().backward()
    optimizer.step()
    assert parallel.parameters is not None
    return len(optimizer.optim.state), parallel.parameters()["weight"]


def test_zero1_keeps_no_state_of_others_and_may_leave_a_rank_without_any(launcher: Launcher) -> None:
    torch.manual_seed(0)
    alone = nn.Linear(5, 3)
    optimizer = torch.optim.Adagrad(alone.parameters(), lr=0.1)
    for rank in range(3):
        (alone(share_of(rank, 0)).square().mean() / 3).backward()
    optimizer.step()
    results = run(launcher, adagrad)
    assert sorted(states for states, _ in results) == [0, 1, 1]
    assert all(torch.allclose(weight, alone.weight, rtol=1e-5, atol=1e-7) for _, weight in results)


def without_optimizer(ctx: RankContext) -> list[str]:
    messages = []
    for strategy in ("zero1", "ddp[comm_hook=post_local_sgd]"):
        make = parallelise(strategy, network(), ctx).make_optimizer
        assert make is not None
        with pytest.raises(WorkloadError) as caught:
            make(lambda _: "SGD")  # type: ignore[arg-type, return-value]  # that is the mistake
        messages.append(str(caught.value))
    return messages


def test_what_is_no_optimizer_is_refused_in_clear(launcher: Launcher) -> None:
    for sharded, averaged in run(launcher, without_optimizer):
        assert sharded.startswith(
            "zero1 wraps the workload's optimizer, and optimizer(parameters) gave a value of type"
        )
        assert averaged.endswith("gave a value of type str: give a torch.optim.Optimizer")
