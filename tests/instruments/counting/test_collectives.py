"""Every way to communicate is counted by its name, with the bytes of its whole buffer and those that a rank sends."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch._ops import OpOverload

from pytest_ddpperf.instruments.counting import collectives
from pytest_ddpperf.instruments.counting.collectives import CollectiveCall
from pytest_ddpperf.instruments.counting.counting import Countable
from pytest_ddpperf.instruments.counting.operators import operator_name
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.counts import Counts
from tests.counted import count_step
from tests.factories import TORCH


@pytest.mark.parametrize(
    ("name", "ranks", "sent"),
    [
        ("all_reduce", 4, 1200.0),  # 2 (n-1)/n S
        ("reduce_scatter", 2, 400.0),
        ("broadcast", 4, 600.0),  # (n-1)/n S
        ("send", 4, 800.0),
        ("recv", 4, 0.0),
        ("barrier", 4, 0.0),
    ],
)
def test_bytes_sent_follow_the_ring_algorithms(name: str, ranks: int, sent: float) -> None:
    assert CollectiveCall(name, 800, ranks).sent_bytes == sent


def test_a_sparse_tensor_has_the_bytes_of_its_values_and_indices() -> None:
    """Three numbers of 4 bytes with two indices of 8 bytes each, of 9 elements."""
    found = collectives.collectives_of(torch.ops.c10d.allreduce_.default, ([torch.eye(3).to_sparse()],), {})
    assert found == [CollectiveCall("all_reduce", 3 * (4 + 2 * 8), 1)]


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("nvshmem_put", (torch.ones(100), 1), [CollectiveCall("nvshmem_put", 400, 1)]),
        (
            "one_shot_all_reduce_out",
            (torch.ones(100), "sum", "all", torch.ones(100)),
            [CollectiveCall("one_shot_all_reduce_out", 800, 4)],
        ),
        ("multimem_all_reduce_", (torch.ones(100), "sum", "all"), [CollectiveCall("multimem_all_reduce", 400, 4)]),
        ("memset32_", (torch.ones(100), 0, 1, 100), []),
    ],
)
def test_symmetric_memory_counts_under_its_own_names(
    monkeypatch: pytest.MonkeyPatch, name: str, args: tuple[Any, ...], expected: list[CollectiveCall]
) -> None:
    if not hasattr(torch.ops.symm_mem, name):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    func: OpOverload = getattr(torch.ops.symm_mem, name).default
    monkeypatch.setattr(collectives, "_resolve_process_group", lambda _name: SimpleNamespace(size=lambda: 4))
    assert collectives.collectives_of(func, args, {}) == expected
    assert operator_name(func) is None


WORLD: Any = dist.group  # its WORLD are all ranks, once they are there


def tensors(*sizes: int) -> list[Tensor]:
    return [torch.ones(size) for size in sizes]


def read(*results: Tensor) -> None:
    """Wait for functional collectives, as whoever uses what comes out does."""
    for result in results:
        result.sum().item()


def gather_in_forward() -> None:
    inputs = torch.ones(10, requires_grad=True)
    gathered = functional.all_gather_tensor_autograd(inputs, 0, WORLD.WORLD)  # type: ignore[no-untyped-call, unused-ignore]  # torch
    gathered.square().sum().backward()  # torch 2.11 cannot scatter the expanded gradient of a mere sum


def asynchronous() -> None:
    for request in [dist.all_reduce(torch.ones(100), async_op=True) for _ in range(3)]:
        request.wait()


def plain_ways(ctx: RankContext) -> dict[str, Callable[[], object]]:
    first, world = ctx.rank == 0, WORLD.WORLD
    alone = dist.new_group([0])
    # The first rank keeps 3 of its 10 and gives 7, the second one gives 4 and keeps 6.
    gives, takes = ([3, 7], [3, 4]) if first else ([4, 6], [7, 6])
    return {
        "all_reduce_coalesced": lambda: read(*functional.all_reduce_coalesced(tensors(10, 20), "sum", world)),
        "all_gather_coalesced": lambda: read(*functional.all_gather_into_tensor_coalesced(tensors(10, 20), world)),
        "reduce_scatter_coalesced": lambda: read(
            *functional.reduce_scatter_tensor_coalesced(tensors(10, 20), "sum", [0, 0], world)
        ),
        "reduce_and_gather": lambda: read(
            functional.all_reduce(torch.ones(100), "sum", world),
            functional.all_gather_tensor(torch.ones(100), 0, world),
        ),
        "gather_in_forward": gather_in_forward,
        "functional_all_to_all": lambda: read(functional.all_to_all_single(torch.ones(10), None, None, world)),
        "uneven_all_to_all": lambda: dist.all_to_all_single(torch.empty(sum(takes)), torch.ones(10), takes, gives),
        "asynchronous": asynchronous,
        "lone send": lambda: dist.send(torch.ones(7), 1) if first else dist.recv(torch.empty(7)),
        "in a group of one": lambda: dist.all_reduce(torch.ones(100), group=alone) if first else None,
        "an object": lambda: dist.broadcast_object_list([ctx.rank]),
    }


def every_kind(ctx: RankContext) -> Callable[[], None]:
    """One of each, of two ranks and 100 numbers of 4 bytes on each: 400 bytes, or 800 for both."""
    first, peer = ctx.rank == 0, 1 - ctx.rank
    half, whole = torch.ones(100), torch.ones(200)
    # Not made in the step: gloo's thread lets go of what a call has held when it gets to it, maybe after the step.
    small, parts, received, both = tensors(10, 20), tensors(100, 100), torch.empty(100), torch.empty(200)

    def run() -> None:
        dist.all_reduce(whole[:100])  # a view: what it shows is sent, not what it is a view of
        dist.all_reduce_coalesced(small)
        dist.all_gather(parts, half)
        _gather_single()(whole, half)
        if TORCH < (2, 9):  # gloo has no other
            _scatter_single()(received, whole)
        else:
            dist.reduce_scatter(received, parts)
        _scatter_single()(received, whole)
        dist.broadcast(half, src=0)
        dist.reduce(half, dst=0)
        dist.gather(half, parts if first else None)
        dist.scatter(received, parts if first else None)
        dist.all_to_all_single(both, whole)
        dist.barrier()
        requests = dist.batch_isend_irecv([dist.P2POp(dist.isend, half, peer), dist.P2POp(dist.irecv, received, peer)])
        for request in requests:
            request.wait()

    return run


def _gather_single() -> Callable[..., object]:
    """torch 2.13 has renamed it, and warns of the old name."""
    return getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def _scatter_single() -> Callable[..., object]:
    return getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def blocking_or_not(_ctx: RankContext) -> Callable[[], None]:
    whole, parts = torch.ones(100), tensors(50, 50)

    def run() -> None:
        dist.all_reduce(whole)
        works: list[Any] = [dist.all_reduce(whole, async_op=True), dist.all_gather(parts, whole[:50], async_op=True)]
        for work in works:
            work.wait()
        functional.all_reduce(whole, "sum", WORLD.WORLD)
        dist.broadcast(whole, src=0)

    return run


def sent_and_let_go() -> None:
    for _ in range(4):
        reduced = functional.all_reduce(torch.ones(300_000), "sum", WORLD.WORLD)
        reduced = reduced + 1
        del reduced
        functional.all_to_all_single(torch.ones(10), None, None, WORLD.WORLD).sum().item()


def count_ways(ctx: RankContext) -> dict[str, Counts]:
    gc.freeze()  # collections, of which each counted step has one, are fast
    subject = Countable(device=ctx.device)
    steps = {**plain_ways(ctx), "every kind": every_kind(ctx), "blocking or not": blocking_or_not(ctx)}
    few = {name: count_step(step, subject, warmup=1, steps=4) for name, step in steps.items()}
    often = {f"often {number}": count_step(sent_and_let_go, subject, warmup=1) for number in range(3)}
    return {**few, **often}


@pytest.fixture(scope="module")
def ways(launcher: Launcher) -> tuple[dict[str, Counts], ...]:
    """The counts of every way to communicate, by rank."""
    return launcher.run(count_ways, world_size=2, backend="gloo", device="cpu").values


@pytest.mark.parametrize(
    ("way", "expected"),
    [  # calls, bytes, bytes sent
        ("all_reduce_coalesced", {"all_reduce": (1, 120, 120)}),
        ("all_gather_coalesced", {"all_gather": (1, 240, 120)}),
        ("reduce_scatter_coalesced", {"reduce_scatter": (1, 120, 60)}),
        ("reduce_and_gather", {"all_reduce": (1, 400, 400), "all_gather": (1, 800, 400)}),
        ("gather_in_forward", {"all_gather": (1, 80, 40), "reduce_scatter": (1, 80, 40)}),
        ("functional_all_to_all", {"all_to_all": (1, 40, 20)}),
        ("uneven_all_to_all", {"all_to_all": (1, 40, 20)}),
        ("asynchronous", {"all_reduce": (3, 1200, 1200)}),
    ],
)
def test_each_kind_of_communication_is_counted_once(
    ways: tuple[dict[str, Counts], ...], way: str, expected: dict[str, tuple[float, float, float]]
) -> None:
    for rank in ways:
        assert communicated(rank[way]) == expected
        assert rank[way].unstable == {}


def test_each_rank_counts_its_own_collectives(ways: tuple[dict[str, Counts], ...]) -> None:
    """One sends and one receives, and one is not in a group. An object travels as its size, of 8 bytes, and itself."""
    assert [communicated(rank["lone send"]) for rank in ways] == [{"send": (1, 28, 28)}, {"recv": (1, 28, 0)}]
    assert [communicated(rank["in a group of one"]) for rank in ways] == [{"all_reduce": (1, 400, 0)}, {}]
    for counts in (rank["an object"] for rank in ways):
        assert counts.details["collective_calls"] == {"broadcast": 2}
        assert counts.totals["collective_bytes"] > 8


def communicated(counts: Counts) -> dict[str, tuple[float, float, float]]:
    """Calls, bytes and bytes sent by collective."""
    calls, nbytes, sent = (counts.details[f"collective_{what}"] for what in ("calls", "bytes", "send_bytes"))
    return {name: (times, nbytes[name], sent[name]) for name, times in calls.items()}


def test_all_collectives_are_counted_with_their_bytes(ways: tuple[dict[str, Counts], ...]) -> None:
    for counts in (rank["every kind"] for rank in ways):
        assert communicated(counts) == {
            "all_reduce": (2, 400 + 120, 520),  # 2 x 1/2 of the bytes, and 1/2 of all others
            "all_gather": (2, 2 * 800, 800),
            "reduce_scatter": (2, 2 * 800, 800),
            "broadcast": (1, 400, 200),
            "reduce": (1, 400, 200),
            "gather": (1, 800, 400),
            "scatter": (1, 800, 400),
            "all_to_all": (1, 800, 400),
            "barrier": (1, 0, 0),
            "send": (1, 400, 400),
            "recv": (1, 400, 0),
        }
        assert counts.unstable == {}


def test_collectives_that_return_when_they_are_done_are_blocking(ways: tuple[dict[str, Counts], ...]) -> None:
    """Before torch 2.11 operators say it of a broadcast, and not of an all-reduce."""
    blocking = {"broadcast": 1.0, **({"all_reduce": 1.0} if TORCH >= (2, 11) else {})}
    for counts in (rank["blocking or not"] for rank in ways):
        assert counts.details["collective_calls"] == {"all_reduce": 3, "all_gather": 1, "broadcast": 1}
        assert counts.details["blocking_collectives"] == blocking


def test_counts_do_not_depend_on_the_moment_when_a_backend_releases_its_buffers(
    ways: tuple[dict[str, Counts], ...],
) -> None:
    """Gloo's thread does so when it pleases; what it still held would be part of the next tensors' peak."""
    for rank in ways:
        first, *others = (rank[f"often {number}"] for number in range(3))
        assert others == [first, first]
        assert first.unstable == {}
        assert first.totals["peak_tensor_bytes"] == 2 * 300_000 * 4
