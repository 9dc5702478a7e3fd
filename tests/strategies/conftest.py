"""Where the tests of strategies run, and what those of the hand-written ones share: one launch for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.strategies.strategy import Parallel
from pytest_ddpperf.strategies.table import parallelise
from pytest_ddpperf.training.trainer import set_tf32

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Placement:
    """Where ranks compute, how they talk, and how many there are."""

    device: str
    backend: str
    ranks: int

    @property
    def on_cpu(self) -> bool:
        """Whether this is where the tests run on any machine."""
        return self.device == "cpu"

    @property
    def tolerance(self) -> float:
        """Of gradients in fp32, relative to a single process on the same device.

        A GPU's kernels add up in an order that depends on the layout of a tensor in memory, which strategies change.
        """
        return 1e-6 if self.on_cpu else 1e-5

    def of(self, ranks: int) -> Placement:
        """The same with so many ranks on the CPU; on a GPU there are as many as there can be."""
        return replace(self, ranks=ranks) if self.on_cpu else self


GPU = (pytest.mark.gpu(shared=True),)
# NCCL takes a GPU for each rank; gloo lets two share one.
ON_GPU = [
    pytest.param(Placement("cuda", "nccl", 1), id="cuda-nccl-1", marks=GPU),
    pytest.param(Placement("cuda", "gloo", 2), id="cuda-gloo-2", marks=GPU),
]


def on_cpu(ranks: int) -> Placement:
    return Placement("cpu", "gloo", ranks)


@pytest.fixture(params=[pytest.param(on_cpu(2), id="cpu"), *ON_GPU])
def placement(request: pytest.FixtureRequest) -> Placement:
    """Two ranks on the CPU; where there is a GPU, also those that there can be on one."""
    found: Placement = request.param
    return found


@pytest.fixture
def cpu() -> Placement:
    """Two ranks on the CPU, wherever the tests run."""
    return on_cpu(2)


class Net(nn.Module):
    """Three blocks between two layers; no size is divided by a number of ranks, so that shards are uneven."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 7)) for _ in range(3))
        self.last = nn.Linear(7, 5)
        self.register_buffer("seen", torch.zeros(2, dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        outputs: Tensor = self.last(hidden)
        return outputs


def share_of(rank: int, step: int = 0, micro_batch: int = 0) -> Tensor:
    """Different data for every rank, step and micro-batch, of one size: so the mean of means is the mean."""
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(10_000 * step + 100 * micro_batch + rank))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def ready(
    ctx: RankContext, strategy: str, module: nn.Module, blocks: Any = (), factory: Any = sgd
) -> tuple[Parallel, torch.optim.Optimizer]:
    """The module made ready on this rank by a strategy, and its optimizer."""
    parallel = parallelise(strategy, module.to(ctx.device), ctx, tuple(blocks))
    make = parallel.make_optimizer
    return parallel, factory(parallel.module.parameters()) if make is None else make(factory)


@contextmanager
def all_reduces(noted: Callable[[Tensor], Any] = Tensor.numel) -> Iterator[list[Any]]:
    """What is sent inside, as it is sent: by its number of values, unless noted otherwise.

    Looked at where it is called: PowerSGD does so in a thread of gloo's, where no dispatch mode sees it.
    """
    sent: list[Any] = []
    real = dist.all_reduce

    def spy(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        sent.append(noted(tensor))
        return real(tensor, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", spy)
        yield sent


def computed(ctx: RankContext, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What a function gives on a rank; tensors on the CPU, because the test's process is to stay off the GPU."""
    set_tf32(False)
    return tree_map_only(torch.Tensor, torch.Tensor.cpu, function(ctx, *args))


def computed_alone(ctx: RankContext, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    def without_rank(ctx: RankContext) -> Any:
        return function(ctx.device, *args)

    return computed(ctx, without_rank, ())


def refusal(function: Callable[[], object]) -> str | None:
    """Why it was refused."""
    try:
        function()
    except WorkloadError as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def run_on(launcher: Launcher) -> Callable[..., tuple[Any, ...]]:
    """What ``function(ctx, *args)`` gives on each rank of a placement."""

    def launch(placement: Placement, function: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
        return launcher.run(
            computed,
            function,
            args,
            world_size=placement.ranks,
            backend=placement.backend,
            device=placement.device,
            timeout=120,
        ).values

    return launch


@pytest.fixture(scope="module")
def alone(launcher: Launcher) -> Callable[..., Any]:
    """What ``function(device, *args)`` gives in one process: in this one on the CPU, on a rank of its own on a GPU."""

    @cache
    def launch(placement: Placement, function: Callable[..., Any], *args: Any) -> Any:
        if placement.on_cpu:
            return function(torch.device("cpu"), *args)
        return launcher.run(
            computed_alone, function, args, world_size=1, backend=placement.backend, device="cuda", timeout=120
        ).values[0]

    return launch


@pytest.fixture(scope="module")
def ranks(launcher: Launcher, request: pytest.FixtureRequest) -> tuple[dict[str, Any], ...]:
    """What each case of a module finds on each of its ranks, in one launch."""
    cases, number = request.module.CASES, request.module.RANKS

    def each(ctx: RankContext) -> dict[str, Any]:
        return {one.__name__: one(ctx) for one in cases}

    return launcher.run(each, world_size=number, backend="gloo", device="cpu", timeout=60).values


OVERLAPPING = (
    "overlap",
    "overlap_coalesced",
    "overlap_coalesced[coalesce_mb=0.0001]",  # 104 bytes: some gradients of the tests' models are larger
    "bucketed",
    "bucketed[bucket_cap_mb=0.0002,first_bucket_mb=0.0001]",  # 209 and 104 bytes: several buckets
)
LADDER = ("naive", "flat", *OVERLAPPING)


@pytest.fixture(params=LADDER)
def strategy(request: pytest.FixtureRequest) -> str:
    """Each of them in turn."""
    return str(request.param)


@pytest.fixture
def sends_in_backward(strategy: str) -> bool:
    return strategy in OVERLAPPING


def case(function: F) -> F:
    """Marks ``function(ctx, strategy)`` as what one launch calls on each rank, with the other cases of its module."""
    setattr(function, "on", ("cpu",))  # noqa: B010  a function's type has no such attribute
    return function


def case_anywhere(function: F) -> F:
    """Marks a case that a GPU runs, too."""
    setattr(function, "on", ("cpu", "cuda"))  # noqa: B010  the same
    return function


@pytest.fixture(scope="module")
def on_ranks(run_on: Callable[..., tuple[Any, ...]], request: pytest.FixtureRequest) -> Callable[..., tuple[Any, ...]]:
    """What a case gave on each rank: one launch runs all cases for all strategies, and each test sees its own."""
    module = request.module

    @cache
    def launch(placement: Placement) -> tuple[dict[tuple[str, str], Any], ...]:
        cases = [one for one in vars(module).values() if placement.device in getattr(one, "on", ())]

        def each(ctx: RankContext) -> dict[tuple[str, str], Any]:
            return {(one.__name__, strategy): one(ctx, strategy) for one in cases for strategy in LADDER}

        return run_on(placement.of(module.RANKS), each)

    def launched(function: Callable[..., Any], strategy: str, placement: Placement | None = None) -> tuple[Any, ...]:
        return tuple(rank[function.__name__, strategy] for rank in launch(placement or on_cpu(2)))

    return launched
