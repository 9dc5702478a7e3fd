"""The rows of a step's batches, and what leaves them unsure."""

from __future__ import annotations

import itertools
from collections import UserDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pytest_ddpperf.instruments.counting.copies import CopyWatch
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


def test_the_rows_of_a_step_are_the_sum_of_its_micro_batches() -> None:
    assert rows(trained(lambda model: [loss_of(model, 8, 4)])) == {"batches of 8 x 4": 8}
    assert rows(trained(lambda model: [loss_of(model, 8, 4), loss_of(model, 8, 4)])) == {"batches of 8 x 4": 16}
    assert rows(trained(lambda model: [loss_of(model, 8, 4), loss_of(model, 4, 4)])) == {
        "batches of 8 x 4": 8,
        "batches of 4 x 4": 4,
    }


def test_rows_of_a_frozen_model_and_of_a_validation_without_gradients_are_omitted() -> None:
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
def test_rows_of_a_loader_depend_on_its_collate_function(
    collate: Any, taken: Callable[[Any], Tensor], found: Any
) -> None:
    batches = iter(DataLoader(TensorDataset(torch.ones(800, 4)), batch_size=8, collate_fn=collate))
    assert rows(trained(lambda model: [model(taken(next(batches))).square().mean()])) == found


class Strict(Tensor):
    """Refuses all functions of torch except linear layers, such as ``dim`` and ``shape``."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], _types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        assert func is nn.functional.linear, f"unsupported {func}"
        with torch._C.DisableTorchFunctionSubclass():
            return func(*(arg.as_subclass(Tensor) for arg in args if arg is not None), **(kwargs or {}))


class StrictBelow(Tensor):
    """Refuses all operators except those of a linear layer."""

    held: Tensor

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's is no classmethod
        cls, func: Any, _types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        assert func in {torch.ops.aten.addmm.default, torch.ops.aten.mm.default, torch.ops.aten.t.default}
        return func(*(arg.held if isinstance(arg, StrictBelow) else arg for arg in args), **(kwargs or {}))


def below(inner: Tensor) -> StrictBelow:
    made: StrictBelow = Tensor._make_wrapper_subclass(StrictBelow, inner.shape, dtype=inner.dtype)
    made.held = inner
    return made


@pytest.mark.parametrize("kind", [lambda batch: batch.as_subclass(Strict), below])
def test_tensor_classes_that_refuse_functions_are_inspected_without_calling_them(kind: Callable[[Tensor], Any]) -> None:
    model, watch = nn.Linear(8, 4), CopyWatch()
    subject = Countable(device=torch.device("cpu"), called=watch.called)
    found = count_step(lambda: model(kind(torch.ones(4, 8))).sum().backward(), subject, warmup=1, steps=0)
    assert found.totals["flops_forward"] == 2 * 4 * 8 * 4
    assert found.details["batch_rows"] == {"batches of 4 x 8": 4.0}


def test_batches_that_a_thread_loads_ahead_do_not_make_rows_uncertain() -> None:
    model, batches = nn.Linear(8, 4), iter(DataLoader(TensorDataset(torch.ones(1024, 8)), 2))
    ahead = deque([next(batches)[0] for _ in range(2)])

    def step() -> None:
        with ThreadPoolExecutor(1) as pool:  # two batches in a step, none in the next
            ahead.extend(pool.submit(lambda: [next(batches)[0] for _ in range(2 * (len(ahead) < 2))]).result(60))
        model(ahead.popleft()).sum().backward()

    found = count_step(step, Countable(device=torch.device("cpu")), warmup=1, steps=0)
    assert found.details["batch_rows"] == {"batches of 2 x 8": 2.0}
