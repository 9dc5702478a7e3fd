"""The same model on every rank, and gradients of any type and memory layout: for every hand-written strategy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.strategies.replicas import whole
from pytest_ddpperf.strategies.table import parallelise
from tests.strategies.conftest import case, case_anywhere, refusal

if TYPE_CHECKING:
    from tests.strategies.conftest import Placement

Alone = Callable[..., Any]
OnRanks = Callable[..., tuple[Any, ...]]
RANKS = 2


class Odd(nn.Module):
    """State of every kind."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self.single = nn.Parameter(torch.tensor(float(value)))
        self.turned = nn.Parameter(torch.full((3, 4), float(value)).t())
        self.gaps = nn.Parameter(torch.full((4, 6), float(value))[:, ::2])
        self.short = nn.Parameter(torch.full((3,), value, dtype=torch.bfloat16), requires_grad=False)
        self.rotated = nn.Parameter(torch.full((2,), complex(value, 1)))
        self.register_buffer("flag", torch.tensor(value == 5))
        self.register_buffer("count", torch.tensor([value] * 3, dtype=torch.int64))
        self.register_buffer("byte", torch.full((5,), value, dtype=torch.uint8), persistent=False)
        self.register_buffer("expanded", torch.full((1,), float(value)).expand(4))
        self.register_buffer("expanded_rows", torch.full((2, 1), float(value)).expand(2, 4))
        self.register_buffer("empty", torch.empty(0))
        self.register_buffer("absent", None)


@case_anywhere
def start_state(ctx: RankContext, strategy: str) -> tuple[dict[str, Tensor], tuple[int, ...]]:
    from pytest_ddpperf.strategies import replicas

    module = Odd(5 + ctx.rank).to(ctx.device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replicas, "_PIECE", 50)  # bytes: several broadcasts, not all at once
        parallelise(strategy, module, ctx)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in state.items()}, module.turned.stride()


def test_all_ranks_start_from_the_state_of_rank_0(on_ranks: OnRanks, strategy: str, placement: Placement) -> None:
    for state, strides in on_ranks(start_state, strategy, placement):
        alone = Odd(5)
        expected = {**dict(alone.named_parameters()), **dict(alone.named_buffers())}
        assert state.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(state[name], tensor)
        assert strides == (1, 4)


def build_unlike(ctx: RankContext) -> None:
    module = nn.Linear(4, 3)
    module.bias.requires_grad = ctx.rank == 0
    parallelise("naive", module, ctx)


def test_ranks_with_different_models_are_refused(launcher: Launcher) -> None:
    message = (
        r"rank 1 built \[bias: shape \(3,\), torch.float32, not trained\], but rank 0 built "
        r"\[bias: shape \(3,\), torch.float32, trained\]: model\(\) must build the same model on every rank"
    )
    with pytest.raises(WorkloadError, match=message):
        launcher.run(build_unlike, world_size=2, backend="gloo", device="cpu", timeout=60)


class Mixed(nn.Module):
    """Parameters of five types, in turns, some of them empty."""

    def __init__(self) -> None:
        super().__init__()
        types = (torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.float16)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.full((size,), 2, dtype=dtype)) for size in (3, 1, 0, 200) for dtype in types
        )
        self.large = nn.Parameter(torch.ones(1, dtype=torch.float16))

    def forward(self, scale: float) -> Tensor:
        sums = [weight.abs().double().sum() * scale for weight in self.weights]
        total: Tensor = sum(sums, (self.large * 40_000).sum())
        return total


@case_anywhere
def mixed_gradients(ctx: RankContext, strategy: str) -> tuple[list[tuple[torch.dtype, list[complex]]], float]:
    module = Mixed().to(ctx.device)
    parallel = parallelise(strategy, module, ctx)
    for _ in range(2):
        module.zero_grad()
        module(ctx.rank + 1.0).backward()
        parallel.synchronise()
    gradients = [weight.grad for weight in module.weights if weight.grad is not None]
    kinds = [(gradient.dtype, sorted(set(gradient.tolist()), key=abs)) for gradient in gradients]
    assert module.large.grad is not None
    return kinds, module.large.grad.item()


def test_each_type_is_added_up_as_it_is_and_does_not_overflow(
    on_ranks: OnRanks, strategy: str, placement: Placement
) -> None:
    """d|w|/dw is 1 at w = 2; times 1 and 2 on two ranks: 1.5 in the mean, exact in every type.

    The sum of 40,000 on both ranks is above the largest number of fp16, 65,504.
    """
    mean = {1: 1, 2: 1.5}[placement.ranks]
    for found, large in on_ranks(mixed_gradients, strategy, placement):
        assert found == [(weight.dtype, [mean] if weight.numel() else []) for weight in Mixed().weights]
        assert large == 40_000


@case_anywhere
def convolutions(ctx: RankContext, strategy: str) -> tuple[list[tuple[int, ...]], list[Tensor]]:
    module = convolution_net(ctx.device)
    parallel = parallelise(strategy, module, ctx)
    for _ in range(2):
        module.zero_grad()
        module(image(ctx.rank).to(ctx.device)).square().mean().backward()
        parallel.synchronise()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return [gradient.stride() for gradient in gradients], gradients


def convolution_net(device: torch.device) -> nn.Module:
    """Channels last, a 1 x 1 convolution (whose strides are ambiguous), and a weight that is stored transposed."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(36, 5))
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as torch documents it
    module[3].weight = nn.Parameter(torch.randn(36, 5).t())
    return module.to(device)


def image(rank: int) -> Tensor:
    pixels = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(rank))
    return pixels.to(memory_format=torch.channels_last)


def convolutions_alone(device: torch.device, ranks: int) -> list[Tensor | None]:
    module = convolution_net(device)
    for rank in range(ranks):
        (module(image(rank).to(device)).square().mean() / ranks).backward()
    return [p.grad for p in module.parameters()]


def test_any_memory_layout_is_kept_and_right(
    on_ranks: OnRanks, alone: Alone, strategy: str, placement: Placement
) -> None:
    expected = alone(placement, convolutions_alone, placement.ranks)
    for strides, gradients in on_ranks(convolutions, strategy, placement):
        torch.testing.assert_close(gradients, expected)
        assert strides[0] == (12, 1, 6, 3)  # 4 x 3 x 2 x 2, channels last
        assert strides[4] == (1, 5)


@case
def gradient_in_another_layout(ctx: RankContext, strategy: str) -> list[Tensor]:
    """Rank 1 puts in a gradient that lies transposed; sent as memory, it would be added up with the wrong elements."""
    module = nn.Linear(3, 2, bias=False)
    parallel = parallelise(strategy, module, ctx)
    found = []
    for _ in range(2):
        gradient = torch.arange(6.0).reshape(2, 3)
        module.weight.grad = gradient.t().contiguous().t() if ctx.rank else gradient
        module(torch.ones(1, 3)).sum().backward()  # adds 1 to each
        parallel.synchronise()
        assert module.weight.grad is not None
        found.append(module.weight.grad.clone())
    return found


def test_gradients_in_different_layouts_are_added_up_element_by_element(on_ranks: OnRanks, strategy: str) -> None:
    for found in on_ranks(gradient_in_another_layout, strategy):
        for gradient in found:
            assert gradient.tolist() == [[1, 2, 3], [4, 5, 6]]


@case
def refused_gradients(ctx: RankContext, strategy: str) -> list[str | None]:
    """Of a sparse gradient, and of one with a history."""
    embedding, linear = nn.Embedding(8, 4, sparse=True), nn.Linear(3, 2)
    sparse, plain = (parallelise(strategy, module, ctx) for module in (embedding, linear))

    def step() -> None:
        embedding(torch.tensor([1, 2])).sum().backward()
        sparse.synchronise()

    def with_history() -> None:
        linear(torch.ones(1, 3)).square().sum().backward(create_graph=True)
        plain.synchronise()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a cycle, once in a process; zero_grad breaks it
        messages = [refusal(step), refusal(with_history)]
    linear.zero_grad()
    return messages


def test_gradients_that_are_sparse_or_have_a_history_are_refused(on_ranks: OnRanks, strategy: str) -> None:
    for sparse, history in on_ranks(refused_gradients, strategy):
        assert sparse == (
            "parameter weight has a gradient of layout torch.sparse_coo, but this strategy sends only dense gradients: "
            "create its nn.Embedding without sparse=True, or use strategy 'ddp'"
        )
        assert "requires gradients itself, as after backward(create_graph=True)" in history


class Sharded:
    """Stands in for a DTensor on a GPU, whose ranks talk by some backends."""

    is_cuda = True

    def __init__(self, *backends: str) -> None:
        self.device_mesh, self.gathered_on = SimpleNamespace(get_all_groups=lambda: backends), ""

    def detach(self) -> Sharded:
        return self

    def cpu(self) -> Sharded:
        self.is_cuda = False
        return self

    def full_tensor(self) -> Tensor:
        self.gathered_on = "cuda" if self.is_cuda else "cpu"
        return torch.ones(2)


@pytest.mark.parametrize(
    ("backends", "place"),
    [
        (("cpu:gloo,cuda:gloo",), "cpu"),
        (("cpu:gloo,cuda:nccl",), "cuda"),
        (("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:gloo"), "cpu"),
    ],
)
def test_shards_on_a_gpu_are_gathered_on_the_cpu_if_gloo_would_gather_them(
    monkeypatch: pytest.MonkeyPatch, backends: tuple[str, ...], place: str
) -> None:
    monkeypatch.setattr(dist, "get_backend_config", str)
    sharded: Any = Sharded(*backends)
    assert torch.equal(whole(sharded), torch.ones(2))
    assert sharded.gathered_on == place


@case
def config(_ctx: RankContext, _strategy: str) -> list[str]:
    return dist.get_backend_config(dist.group.WORLD).split(",")


def test_a_groups_config_names_the_backend_of_each_device(on_ranks: OnRanks) -> None:
    assert {"cpu:gloo", "cuda:gloo"} <= {*on_ranks(config, "naive")[0]}
