"""Where the tests of strategies run, and what those of the hand-written ones share: one launch for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map_only

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.training.trainer import set_tf32


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


@pytest.fixture(scope="module")
def on_ranks(run_on: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """What ``case(ctx, strategy)`` gave on each rank: one launch runs it for all, and each test sees its own."""

    @cache
    def launch(case: Callable[[RankContext, str], Any], placement: Placement) -> tuple[dict[str, Any], ...]:
        names = LADDER

        def each(ctx: RankContext) -> dict[str, Any]:
            return {name: case(ctx, name) for name in names}

        return run_on(placement, each)

    def launched(
        case: Callable[[RankContext, str], Any], strategy: str, placement: Placement | None = None
    ) -> tuple[Any, ...]:
        found = launch(case, on_cpu(2) if placement is None else placement)
        return tuple(by_strategy[strategy] for by_strategy in found)

    return launched
