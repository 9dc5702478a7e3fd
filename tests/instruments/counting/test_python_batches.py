"""The rows of a step's batches, and what leaves them unsure."""

from __future__ import annotations

import itertools
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pytest_ddpperf.instruments.counting.counting import Countable
from pytest_ddpperf.instruments.counting.python import shape_of
from tests.counted import count_step

IDS = torch.zeros(4, 7, dtype=torch.long)


@pytest.mark.parametrize(
    ("batch", "shape"),
    [
        ((torch.zeros(8, 64), torch.zeros(8)), (8, 64)),
        ({"input_ids": IDS, "attention_mask": IDS, "labels": torch.zeros(4)}, (4, 7)),
        (([torch.zeros(8, 3, 32, 32), torch.zeros(8)], 0), (8, 3, 32, 32)),  # Lightning gives batch and number
        ((torch.zeros(8, 64), torch.tensor(3.0)), (8, 64)),
        ({"input_ids": IDS, "position_ids": torch.zeros(1, 7)}, ()),
        ((torch.zeros(20, 64), torch.tensor([0, 4, 20])), ()),  # packed, with the starts of sequences
        (torch.zeros(1, 4096), ()),  # packed into one row
        (torch.zeros(2048), ()),  # tokens of several sequences
        (([torch.zeros(3, 32, 32), torch.zeros(3, 32, 32)],), ()),  # a list of images
        (([torch.zeros(8, 4), torch.zeros(8, 4)], torch.zeros(8)), (8, 4)),  # two views of each sample
        (UserDict(input_ids=IDS, labels=torch.zeros(4)), (4, 7)),  # as of a tokenizer
        (("text", 3), ()),
    ],
)
def test_a_batch_shows_its_rows_or_nothing(batch: Any, shape: tuple[int, ...]) -> None:
    assert shape_of(batch) == shape


def trained(forward: Callable[[nn.Module], list[Tensor]], model: nn.Module | None = None) -> Callable[[], None]:
    """A step that runs backward for each loss that ``forward`` gives."""
    model = nn.Linear(4, 2) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        for loss in forward(model):
            loss.backward()  # type: ignore[no-untyped-call]  # torch
        optimizer.step()
        optimizer.zero_grad()

    return step


def rows(step: Callable[[], object]) -> dict[str, float] | None:
    found = count_step(step, Countable(device=torch.device("cpu")), warmup=1, steps=0)
    assert "batch_rows" not in found.unstable
    return dict(found.details["batch_rows"]) if "batch_rows" in found.totals else None


def loss_of(model: nn.Module, *shape: int) -> Tensor:
    loss: Tensor = model(torch.ones(*shape)).square().mean()
    return loss


def test_the_rows_of_a_step_are_those_of_all_its_micro_batches() -> None:
    assert rows(trained(lambda model: [loss_of(model, 8, 4)])) == {"batches of 8 x 4": 8}
    assert rows(trained(lambda model: [loss_of(model, 8, 4), loss_of(model, 8, 4)])) == {"batches of 8 x 4": 16}
    assert rows(trained(lambda model: [loss_of(model, 8, 4), loss_of(model, 4, 4)])) == {
        "batches of 8 x 4": 8,
        "batches of 4 x 4": 4,
    }


def test_a_frozen_model_and_a_validation_without_gradients_are_left_out() -> None:
    teacher = nn.Linear(4, 4).requires_grad_(False)  # noqa: FBT003  torch's own signature

    def distilled(model: nn.Module) -> list[Tensor]:
        with torch.no_grad():
            model(torch.ones(100, 4))
        return [model(teacher(torch.ones(8, 4))).square().mean()]

    assert rows(trained(distilled)) == {"batches of 8 x 4": 8}


def same_twice(model: nn.Module) -> list[Tensor]:
    """As sharpness-aware minimisation does."""
    batch = torch.ones(8, 4)
    return [model(batch).sum(), model(batch).sum()]


@pytest.mark.parametrize(
    "forward",
    [
        lambda model: [(model(torch.ones(8, 4)) - model(torch.zeros(8, 4))).square().mean()],  # contrastive
        lambda model: [model(torch.cat([torch.ones(8, 4), torch.zeros(8, 4)])).square().mean()],  # the same in one call
        lambda model: [model(torch.ones(8, 5, 4).view(40, 4)).square().mean()],  # the tokens of 8 sequences
        lambda model: [model(nn.Linear(4, 4)(torch.ones(8, 4))).square().mean()],  # a generator and a discriminator
        same_twice,
    ],
)
def test_a_step_whose_samples_are_not_sure_has_no_rows(forward: Callable[[nn.Module], list[Tensor]]) -> None:
    assert rows(trained(forward)) is None


def test_steps_of_different_batches_have_no_rows() -> None:
    sizes = iter(range(2, 100))
    assert rows(trained(lambda model: [loss_of(model, next(sizes), 4)])) is None


def test_batches_of_different_lengths_have_rows_without_lengths() -> None:
    lengths = iter(range(2, 100))
    assert rows(trained(lambda model: [loss_of(model, 8, next(lengths), 4)])) == {"batches of 8": 8}


def test_a_later_step_of_another_length_is_seen() -> None:
    lengths = itertools.chain((3,) * 8, itertools.repeat(5))
    step = trained(lambda model: [loss_of(model, 8, next(lengths), 4)])
    found = count_step(step, Countable(device=torch.device("cpu")), warmup=1)
    assert found.details["batch_rows"] == {"batches of 8": 8}


@pytest.mark.parametrize(
    ("collate", "taken", "found"),
    [
        (None, lambda batch: batch[0], {"batches of 8 x 4": 8}),
        (None, lambda batch: batch[0].repeat(2, 1) + 0, None),  # two views of each sample
        (
            lambda items: [torch.cat([one.view(2, 2) for (one,) in items])],
            lambda batch: batch[0].view(8, 4),
            None,
        ),  # packed
    ],
)
def test_a_loader_has_a_say_in_the_rows(collate: Any, taken: Callable[[Any], Tensor], found: Any) -> None:
    batches = iter(DataLoader(TensorDataset(torch.ones(800, 4)), batch_size=8, collate_fn=collate))
    assert rows(trained(lambda model: [model(taken(next(batches))).square().mean()])) == found
