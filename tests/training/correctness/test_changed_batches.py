"""A step that changes the one batch of all steps is told what it changes; the strategy is not accused of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training.correctness.reference import SingleProcess
from pytest_ddpperf.training.correctness.training_run import MicroBatches, changes, copied
from pytest_ddpperf.training.workload import Workload


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weight * inputs


def batch() -> dict[str, Tensor]:
    return {"x": torch.tensor([1.0, 2.0]), "y": torch.tensor([-1.0, 0.5])}


def mean(model: nn.Module, given: dict[str, Tensor]) -> Any:
    return model(given["x"]).mean()


WORKLOAD = Workload(model=Line, batch=batch, forward=mean, optimizer=torch.optim.SGD, samples_per_step=2)


def step(ctx: Any, forward: Any, **changes: Any) -> float:
    """The loss of a single process's first step."""
    data = MicroBatches([[(batch(), ())]], in_step=1)
    workload = replace(WORKLOAD, forward=forward, **changes)
    return SingleProcess(ctx, workload, Settings(), values=[torch.ones(1)], data=data).backward(0, []).loss


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_tensor_that_each_step_changes_is_named_with_the_cure(make_ctx: Any, precision: str) -> None:
    def doubling(model: nn.Module, given: dict[str, Tensor]) -> Any:
        given["x"].mul_(2)
        return mean(model, given)

    data = MicroBatches([[(batch(), ())]], in_step=1)
    workload = replace(WORKLOAD, forward=doubling)
    single = SingleProcess(make_ctx(), workload, Settings(precision=precision), values=[torch.ones(1)], data=data)
    with pytest.raises(
        WorkloadError,
        match=r"^a step changes batch\['x'\] in place, in each step again, .*batch of batch \(.*clone\(\)",
    ):
        single.backward(0, [])


def test_a_key_that_a_step_takes_out_is_named_with_the_cure(make_ctx: Any) -> None:
    def popping(model: nn.Module, given: dict[str, Tensor]) -> Any:
        return model(given["x"]).mean() + given.pop("y").sum()

    with pytest.raises(WorkloadError, match=r"^a step takes batch\['y'\] out of its batch, .*from dict\(batch\)"):
        step(make_ctx(), popping)


def test_a_change_that_a_second_step_does_not_repeat_is_none(make_ctx: Any) -> None:
    """Labels of padding are masked so."""

    def masking(model: nn.Module, given: dict[str, Tensor]) -> Any:
        given["y"].clamp_(min=0)
        given["new"] = given["y"]
        return mean(model, given)

    assert step(make_ctx(), masking) == step(make_ctx(), mean) == 1.5


def test_a_loader_makes_a_batch_for_each_step(make_ctx: Any) -> None:
    def popping(model: nn.Module, given: dict[str, Tensor]) -> Any:
        return model(given["x"].mul_(2)).mean() + 0 * given.pop("y").sum()

    assert step(make_ctx(), popping, batch=None, loader=lambda _rank, _world_size: [batch()]) == 3.0


def test_what_a_step_changed_is_found_in_containers_of_any_form() -> None:
    before: Any = [(torch.tensor([1.0, float("nan")]), {"a": [torch.ones(1), "text"], "b": torch.ones(1)})]
    after = list(map(copied, before))
    assert changes(before, after) == (set(), set())
    after[0][1]["a"][0].add_(1)
    del after[0][1]["b"]
    lost, changed = changes(before, after)
    assert [str(way[-1]) for way in changed] == ["[0]"]
    assert [str(way[-1]) for way in lost] == ["['b']"]
    assert before[0][1]["a"][0] == 1
