"""The sharded optimizer on real ranks: whose state is where, and that it is the user's optimizer still."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.strategies.replicas import import_distributed_optimizers
from pytest_ddpperf.strategies.table import parallelise
from tests.strategies.conftest import ready, share_of

STEPS = 3
Ranks = tuple[dict[str, Any], ...]


def zero_optimizer() -> Any:
    return import_distributed_optimizers().ZeroRedundancyOptimizer


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 3))


def in_groups(parameters: Any) -> torch.optim.Optimizer:
    given = list(parameters)
    groups = [{"params": given[::2], "weight_decay": 0.5}, {"params": given[1::2], "lr": 0.02}]
    return torch.optim.AdamW(groups, lr=0.01, foreach=False)


def zero1_facts(ctx: RankContext) -> dict[str, Any]:
    """Which parameters this rank keeps state of, and what its optimizer is like."""
    torch.manual_seed(ctx.rank)
    parallel, made = ready(ctx, "zero1", network(), factory=in_groups)
    whole: Any = made
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


def adagrad(ctx: RankContext) -> tuple[int, Tensor]:
    """Adagrad makes its state when it is built; here there are more ranks than parameters."""
    torch.manual_seed(ctx.rank)
    adagrad = partial(torch.optim.Adagrad, lr=0.1)
    parallel, optimizer = ready(ctx, "zero1[parameters_as_bucket_view=true]", nn.Linear(5, 3), factory=adagrad)
    assert isinstance(optimizer, zero_optimizer())
    parallel.module(share_of(ctx.rank, 0)).square().mean().backward()
    optimizer.step()
    assert parallel.parameters is not None
    return len(optimizer.optim.state), parallel.parameters()["weight"]


def without_optimizer(ctx: RankContext) -> list[str]:
    messages = []
    for strategy in ("zero1", "ddp[comm_hook=post_local_sgd]"):
        make = parallelise(strategy, network(), ctx).make_optimizer
        assert make is not None
        with pytest.raises(WorkloadError) as caught:
            make(lambda _: "SGD")  # type: ignore[arg-type, return-value]  # that is the mistake
        messages.append(str(caught.value))
    return messages


RANKS, CASES = 3, (zero1_facts, adagrad, without_optimizer)


def test_zero1_shards_the_state_of_the_users_own_optimizer(ranks: Ranks) -> None:
    """AdamW in two groups, with learning rates of 0.01 and 0.02; after the first step they are halved.

    The second group's is then set to 0.007, which the third step uses.
    """
    facts = [found["zero1_facts"] for found in ranks]
    names = [f"module.{name}" for name, _ in network().named_parameters()]
    assert sorted(name for fact in facts for name in fact["state"]) == sorted(names)
    for fact in facts:
        assert fact["state"] == fact["kept"] != []
        assert (fact["type"], fact["steps"]) == ("AdamW", STEPS)
        assert fact["groups"] == [(0.5, False), (0.01, False)]
        assert fact["rates"] == [[0.01, 0.02], [0.005, 0.01], [0.005, 0.007]]


def test_a_rank_of_zero1_keeps_only_its_own_state_and_may_have_none(ranks: Ranks) -> None:
    torch.manual_seed(0)
    alone = nn.Linear(5, 3)
    optimizer = torch.optim.Adagrad(alone.parameters(), lr=0.1)
    for rank in range(3):
        (alone(share_of(rank, 0)).square().mean() / 3).backward()
    optimizer.step()
    results = [found["adagrad"] for found in ranks]
    assert sorted(states for states, _ in results) == [0, 1, 1]
    assert all(torch.allclose(weight, alone.weight, rtol=1e-5, atol=1e-7) for _, weight in results)


def test_a_value_that_is_no_optimizer_is_refused_with_a_clear_message(ranks: Ranks) -> None:
    for sharded, averaged in (found["without_optimizer"] for found in ranks):
        assert sharded.startswith(
            "strategy zero1 needs a torch.optim.Optimizer, but the Workload's optimizer(parameters) returned"
        )
        assert averaged.endswith("a value of type str: return a torch optimizer")
