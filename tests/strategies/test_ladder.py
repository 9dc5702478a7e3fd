"""What hand-written data parallelism gets wrong: the sums of every such strategy on real ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.strategies.parallel import Parallel
from pytest_ddpperf.strategies.table import parallelise
from tests.strategies.conftest import refusal

if TYPE_CHECKING:
    from tests.strategies.conftest import Placement

Alone = Callable[..., Any]
OnRanks = Callable[..., tuple[Any, ...]]


class Net(nn.Module):
    """A tied weight, a frozen layer, a norm's small parameters, and a layer that the caller may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.again = nn.Linear(6, 6)
        self.again.weight = self.inside.weight
        self.frozen = nn.Linear(6, 6).requires_grad_(requires_grad=False)
        self.optional = nn.Linear(6, 6)
        self.never = nn.Linear(6, 6)

    def forward(self, inputs: Tensor, *, optional: bool = True) -> Tensor:
        hidden: Tensor = self.frozen(torch.tanh(self.again(self.norm(torch.tanh(self.inside(inputs))))))
        return hidden + self.optional(inputs) if optional else hidden


def net(seed: int, device: torch.device) -> Net:
    torch.manual_seed(seed)
    return Net().to(device)


def share_of(rank: int, step: int, part: int = 0) -> Tensor:
    """Different for every rank, step and micro-batch; all of one size, so that the mean of means is the mean."""
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(10_000 * step + 100 * part + rank))


def loss_of(module: nn.Module, share: Tensor, **options: bool) -> Any:
    """Of a share of the data, wherever the module is."""
    return module(share.to(next(module.parameters()).device), **options).square().mean()


def gradients_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def assert_equal_in_norm(found: dict[str, Tensor], expected: dict[str, Tensor], relative: float) -> None:
    """All of one beside all of the other, as one long vector."""
    assert found.keys() >= expected.keys()
    difference = sum((found[name] - tensor).double().square().sum() for name, tensor in expected.items())
    norm = sum(tensor.double().square().sum() for tensor in expected.values())
    assert difference**0.5 <= relative * norm**0.5


def accumulate(module: nn.Module, parallel: Parallel, rank: int, step: int, parts: int, *, local: bool) -> None:
    """A step's gradients out of micro-batches, of which all but the last stay local, or each is synchronised."""
    for part in range(parts):
        last = part == parts - 1
        alone = local and not last and parallel.no_sync is not None
        with parallel.no_sync() if alone and parallel.no_sync is not None else nullcontext():
            (loss_of(module, share_of(rank, step, part)) / parts).backward()
        if last or not local:
            parallel.synchronise()


class Sharing(nn.Module):
    """Gradients that share memory: with what goes on to earlier layers, and with one another."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(6, 6)
        self.positions = nn.Parameter(torch.rand(5, 6))
        self.one = nn.Parameter(torch.rand(36))
        self.other = nn.Parameter(torch.rand(6, 6))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.before(inputs[None]) + self.positions.unsqueeze(0))
        return hidden @ (self.one.view(6, 6) + self.other.view(6, 6))


def sharing(seed: int, device: torch.device) -> Sharing:
    torch.manual_seed(seed)
    return Sharing().to(device)


def shared_gradients(ctx: RankContext, strategy: str) -> list[dict[str, Tensor]]:
    module = sharing(ctx.rank, ctx.device)
    parallel = parallelise(strategy, module, ctx)
    steps = []
    for step in range(3):
        module.zero_grad()
        loss_of(module, share_of(ctx.rank, step)).backward()
        parallel.synchronise()
        steps.append(gradients_of(module))
    return steps


def shared_gradients_alone(device: torch.device, ranks: int) -> list[dict[str, Tensor]]:
    module = sharing(0, device)

    def of(share: Tensor) -> list[Tensor]:
        module.zero_grad()  # a second backward would add up what shares memory twice
        loss_of(module, share).backward()
        return list(gradients_of(module).values())

    names = [name for name, _ in module.named_parameters()]
    return [
        dict(zip(names, (sum(parts) / ranks for parts in zip(*map(of, shares), strict=True)), strict=True))
        for shares in ([share_of(rank, step) for rank in range(ranks)] for step in range(3))
    ]


@pytest.mark.slow
def test_gradients_that_share_memory_are_not_changed_under_one_another(
    on_ranks: OnRanks, alone: Alone, strategy: str, placement: Placement
) -> None:
    expected = alone(placement, shared_gradients_alone, placement.ranks)
    for found in on_ranks(shared_gradients, strategy, placement):
        for step, right in zip(found, expected, strict=True):
            assert_equal_in_norm(step, right, placement.tolerance)


class Branches(nn.Module):
    """Two branches, one after the other: the order in which they run is each rank's own."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(6, 6)
        self.middle = nn.Linear(6, 6, bias=False)
        self.right = nn.Linear(6, 6)

    def forward(self, inputs: Tensor, *, left_first: bool) -> Tensor:
        first, second = (self.left, self.right) if left_first else (self.right, self.left)
        outputs: Tensor = second(self.middle(torch.tanh(first(inputs))))
        return outputs


def branches(seed: int, device: torch.device) -> Branches:
    torch.manual_seed(seed)
    return Branches().to(device)


def steps_in_other_order(ctx: RankContext, strategy: str) -> tuple[list[int], list[dict[str, Tensor]]]:
    module = branches(ctx.rank, ctx.device)
    parallel = parallelise(strategy, module, ctx)
    sent, steps = [], []
    real = dist.all_reduce

    def spy(tensor: Tensor, *args: Any, **options: Any) -> object:
        sent.append(tensor.numel())
        return real(tensor, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", spy)
        for step in range(3):
            module.zero_grad()
            loss_of(module, share_of(ctx.rank, step), left_first=(ctx.rank + step) % 2 == 0).backward()
            parallel.synchronise()
            steps.append(gradients_of(module))
    return sent, steps


def steps_alone(device: torch.device, ranks: int) -> list[dict[str, Tensor]]:
    steps = []
    for step in range(3):
        module = branches(0, device)
        for rank in range(ranks):
            (loss_of(module, share_of(rank, step), left_first=(rank + step) % 2 == 0) / ranks).backward()
        steps.append(gradients_of(module))
    return steps


@pytest.mark.slow
def test_ranks_with_other_orders_of_arrival_send_in_one_order(
    on_ranks: OnRanks, alone: Alone, strategy: str, placement: Placement
) -> None:
    several = placement.of(3)
    results = on_ranks(steps_in_other_order, strategy, several)
    assert len({tuple(sent) for sent, _ in results}) == 1
    expected = alone(several, steps_alone, several.ranks)
    for _, steps in results:
        for gradients, right in zip(steps, expected, strict=True):
            assert_equal_in_norm(gradients, right, placement.tolerance)


USERS: tuple[tuple[int, ...], ...] = ((), (1,), (0,), (0, 1))  # ranks that use the optional layer, by step


def unused(ctx: RankContext, strategy: str) -> list[dict[str, Tensor]]:
    """Gradients of steps in which `optional` is used by: no rank, rank 1 only, rank 0 only, all."""
    module = net(ctx.rank, ctx.device)
    parallel = parallelise(strategy, module, ctx)
    steps = []
    for step, users in enumerate(USERS):
        module.zero_grad()
        loss_of(module, share_of(ctx.rank, step), optional=ctx.rank in users).backward()
        parallel.synchronise()
        steps.append(gradients_of(module))
    return steps


def unused_alone(device: torch.device, ranks: int) -> list[dict[str, Tensor]]:
    steps = []
    for step, users in enumerate(USERS):
        module = net(0, device)
        for rank in range(ranks):
            (loss_of(module, share_of(rank, step), optional=rank in users) / ranks).backward()
        steps.append(gradients_of(module))
    return steps


def test_what_some_rank_leaves_out_is_averaged_all_the_same(
    on_ranks: OnRanks, alone: Alone, strategy: str, placement: Placement
) -> None:
    expected = alone(placement, unused_alone, placement.ranks)
    for steps in on_ranks(unused, strategy, placement):
        for gradients, right, users in zip(steps, expected, USERS, strict=True):
            assert_equal_in_norm(gradients, right, placement.tolerance)
            assert not {"frozen.weight", "frozen.bias"} & gradients.keys()
            assert not gradients["never.weight"].any()  # no rank used it: zeros, on all
            assert gradients["optional.weight"].any() == any(rank in users for rank in range(placement.ranks))


def used_before_the_last_micro_batch(ctx: RankContext, strategy: str) -> dict[str, Tensor]:
    """`optional` is used in the first of two micro-batches only, whose gradients stay local."""
    module = net(0, ctx.device)
    parallel = parallelise(strategy, module, ctx)
    for _ in range(2):
        module.zero_grad()
        with parallel.no_sync() if parallel.no_sync is not None else nullcontext():
            loss_of(module, share_of(ctx.rank, 0, 0), optional=True).backward()
        loss_of(module, share_of(ctx.rank, 0, 1), optional=False).backward()
        parallel.synchronise()
    return gradients_of(module)


def used_before_the_last_alone(device: torch.device, ranks: int) -> dict[str, Tensor]:
    module = net(0, device)
    for rank, part in itertools.product(range(ranks), range(2)):
        (loss_of(module, share_of(rank, 0, part), optional=part == 0) / ranks).backward()
    return gradients_of(module)


@pytest.mark.slow
def test_a_gradient_of_an_earlier_micro_batch_counts(
    on_ranks: OnRanks, alone: Alone, strategy: str, placement: Placement
) -> None:
    expected = alone(placement, used_before_the_last_alone, placement.ranks)
    for gradients in on_ranks(used_before_the_last_micro_batch, strategy, placement):
        assert_equal_in_norm(gradients, expected, placement.tolerance)


def changed_later(ctx: RankContext, strategy: str) -> list[str | None]:
    messages = []
    for layer, trained in (("frozen", True), ("optional", False)):
        module = net(0, ctx.device)
        parallel = parallelise(strategy, module, ctx)
        for step in range(2):
            module.zero_grad()
            module(share_of(ctx.rank, step)).sum().backward()
            parallel.synchronise()
        module.get_submodule(layer).requires_grad_(requires_grad=trained)
        module(share_of(ctx.rank, 2)).sum().backward()
        messages.append(refusal(parallel.synchronise))
    return messages


@pytest.mark.slow
def test_freezing_and_unfrozing_later_is_refused(on_ranks: OnRanks, strategy: str) -> None:
    for unfrozen, frozen in on_ranks(changed_later, strategy):
        assert unfrozen.startswith("parameter frozen.weight was unfrozen after training began")
        assert frozen.startswith("parameter optional.weight was frozen after training began")


def nothing_to_train(ctx: RankContext, strategy: str) -> int:
    module = nn.Linear(4, 4).requires_grad_(requires_grad=False)
    parallelise(strategy, module, ctx).synchronise()
    return len(gradients_of(module))


@pytest.mark.slow
def test_a_model_may_have_nothing_to_train(on_ranks: OnRanks, strategy: str) -> None:
    assert on_ranks(nothing_to_train, strategy) == (0, 0)
