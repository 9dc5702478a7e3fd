"""What the tests of the hand-written strategies share: one launch for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_ddpperf.launch import Launcher, RankContext

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
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


@pytest.fixture(scope="module")
def on_ranks(launcher: Launcher) -> Callable[..., tuple[Any, ...]]:
    """What ``case(ctx, strategy)`` gave on each rank: one launch runs it for all, and each test sees its own."""
    launches: dict[tuple[Any, int], tuple[dict[str, Any], ...]] = {}

    def run(case: Callable[[RankContext, str], Any], strategy: str, ranks: int = 2) -> tuple[Any, ...]:
        names = LADDER

        def each(ctx: RankContext) -> dict[str, Any]:
            return {name: case(ctx, name) for name in names}

        if (case, ranks) not in launches:
            found = launcher.run(each, world_size=ranks, backend="gloo", device="cpu", timeout=60)
            launches[case, ranks] = found.values
        return tuple(by_strategy[strategy] for by_strategy in launches[case, ranks])

    return run
