"""What DistributedDataParallel is not given, because torch would fail without saying why."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from pytest_ddpperf.errors import SettingError, WorkloadError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.strategies.table import parallelise

if TYPE_CHECKING:
    from tests.strategies.conftest import Placement

RANK = RankContext(0, 2, 0, 2, torch.device("cpu"), "gloo", None)


def two_types(*, second_trains: bool = True) -> nn.Module:
    second = nn.Linear(2, 2).double().requires_grad_(requires_grad=second_trains)
    return nn.Sequential(nn.Linear(2, 2), AsDouble(), second)


class AsDouble(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.double()


def test_powersgd_on_gloo_takes_parameters_of_one_type() -> None:
    message = r"^comm_hook=powersgd on gloo .* are of torch.float32 and torch.float64, which never share one: train"
    with pytest.raises(SettingError, match=message):
        parallelise("ddp[comm_hook=powersgd]", two_types(), RANK)


def test_powersgd_on_gloo_does_not_go_with_looking_for_unused_parameters() -> None:
    with pytest.raises(SettingError, match=r"^comm_hook=powersgd with find_unused_parameters=true works with nccl"):
        parallelise("ddp[comm_hook=powersgd,find_unused_parameters=true]", nn.Linear(2, 2), RANK)


@pytest.mark.parametrize("strategy", ["ddp", "ddp[broadcast_buffers=false]", "zero1"])
def test_an_expanded_buffer_is_named(strategy: str) -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    module[0].register_buffer("ones", torch.ones(1).expand(4))
    with pytest.raises(WorkloadError, match=r"^the model's buffer 0.ones is an expanded tensor.*\.clone\(\)"):
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


def test_what_the_messages_advise_helps(run_on: Callable[..., tuple[Any, ...]], cpu: Placement) -> None:
    assert run_on(cpu, trained) == ([True] * 3,) * 2
