"""Every way to communicate is counted by its name, with the bytes of its whole buffer and those that a rank sends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
        ("all_reduce", 1, 0.0),
        ("all_gather", 4, 600.0),  # (n-1)/n S
        ("reduce_scatter", 2, 400.0),
        ("broadcast", 4, 600.0),
        ("send", 4, 800.0),
        ("recv", 4, 0.0),
        ("barrier", 4, 0.0),
    ],
)
def test_bytes_sent_follow_the_ring_algorithms(name: str, ranks: int, sent: float) -> None:
    assert CollectiveCall(name, 800, ranks).sent_bytes == sent


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


def count_all(ctx: RankContext) -> Counts:
    """One of each, of two ranks and 100 numbers of 4 bytes on each: 400 bytes, or 800 for both."""
    first, peer = ctx.rank == 0, 1 - ctx.rank
    half, whole = torch.ones(100), torch.ones(200)
    # Not made in the step: gloo's thread lets go of what a call has held when it gets to it, maybe after the step.
    small, received, both = [torch.ones(10), torch.ones(20)], torch.empty(100), torch.empty(200)
    parts = [torch.ones(100), torch.ones(100)]

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

    return count_step(run, Countable(device=ctx.device), warmup=1)


def _gather_single() -> Callable[..., object]:
    """torch 2.13 has renamed it, and warns of the old name."""
    return getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def _scatter_single() -> Callable[..., object]:
    return getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def test_all_collectives_are_counted_with_their_bytes(launcher: Launcher) -> None:
    for counts in launcher.run(count_all, world_size=2, backend="gloo", device="cpu").values:
        assert counts.details["collective_calls"] == {
            "all_reduce": 2,
            "all_gather": 2,
            "reduce_scatter": 2,
            "broadcast": 1,
            "reduce": 1,
            "gather": 1,
            "scatter": 1,
            "all_to_all": 1,
            "barrier": 1,
            "send": 1,
            "recv": 1,
        }
        assert counts.details["collective_bytes"] == {
            "all_reduce": 400 + 120,
            "all_gather": 2 * 800,
            "reduce_scatter": 2 * 800,
            "broadcast": 400,
            "reduce": 400,
            "gather": 800,
            "scatter": 800,
            "all_to_all": 800,
            "barrier": 0,
            "send": 400,
            "recv": 400,
        }
        assert counts.details["collective_send_bytes"]["all_reduce"] == 520  # 2 x 1/2
        assert counts.details["collective_send_bytes"]["all_gather"] == 800
        assert counts.unstable == {}


def count_blocking(ctx: RankContext) -> Counts:
    whole, parts = torch.ones(100), [torch.ones(50), torch.ones(50)]

    def run() -> None:
        dist.all_reduce(whole)
        works: list[Any] = [dist.all_reduce(whole, async_op=True), dist.all_gather(parts, whole[:50], async_op=True)]
        for work in works:
            work.wait()
        functional.all_reduce(whole, "sum", WORLD.WORLD)
        dist.broadcast(whole, src=0)

    return count_step(run, Countable(device=ctx.device), warmup=1)


def test_collectives_that_return_when_they_are_done_are_blocking(launcher: Launcher) -> None:
    """Before torch 2.11 operators say it of a broadcast, and not of an all-reduce."""
    blocking = {"broadcast": 1.0, **({"all_reduce": 1.0} if TORCH >= (2, 11) else {})}
    for counts in launcher.run(count_blocking, world_size=2, backend="gloo", device="cpu").values:
        assert counts.details["collective_calls"] == {"all_reduce": 3, "all_gather": 1, "broadcast": 1}
        assert counts.details["blocking_collectives"] == blocking


Contender = Callable[[RankContext], object]
WORLD: Any = dist.group  # its WORLD are all ranks, once they are there


def tensors(*sizes: int) -> list[Tensor]:
    return [torch.ones(size) for size in sizes]


def all_reduce_coalesced(_ctx: RankContext) -> None:
    read(*functional.all_reduce_coalesced(tensors(10, 20), "sum", WORLD.WORLD))


def all_gather_coalesced(_ctx: RankContext) -> None:
    read(*functional.all_gather_into_tensor_coalesced(tensors(10, 20), WORLD.WORLD))


def reduce_scatter_coalesced(_ctx: RankContext) -> None:
    read(*functional.reduce_scatter_tensor_coalesced(tensors(10, 20), "sum", [0, 0], WORLD.WORLD))


def reduce_and_gather(_ctx: RankContext) -> None:
    reduced = functional.all_reduce(torch.ones(100), "sum", WORLD.WORLD)
    read(reduced, functional.all_gather_tensor(torch.ones(100), 0, WORLD.WORLD))


def gather_in_forward(_ctx: RankContext) -> None:
    inputs = torch.ones(10, requires_grad=True)
    gathered = functional.all_gather_tensor_autograd(inputs, 0, WORLD.WORLD)  # type: ignore[no-untyped-call, unused-ignore]  # torch
    gathered.square().sum().backward()  # torch 2.11 cannot scatter the expanded gradient of a mere sum


def functional_all_to_all(_ctx: RankContext) -> None:
    read(functional.all_to_all_single(torch.ones(10), None, None, WORLD.WORLD))


def uneven_all_to_all(ctx: RankContext) -> None:
    """The first keeps 3 of its 10 and gives 7, the second gives 4 and keeps 6."""
    gives, takes = (([3, 7], [3, 4]), ([4, 6], [7, 6]))[ctx.rank]
    dist.all_to_all_single(torch.empty(sum(takes)), torch.ones(10), takes, gives)


def asynchronous(_ctx: RankContext) -> None:
    for request in [dist.all_reduce(torch.ones(100), async_op=True) for _ in range(3)]:
        request.wait()


def lone_send(ctx: RankContext) -> None:
    if ctx.rank == 0:
        dist.send(torch.ones(7), 1)
    else:
        dist.recv(torch.empty(7))


def read(*results: Tensor) -> None:
    """Wait for functional collectives, as whoever uses what comes out does."""
    for result in results:
        result.sum().item()


WAYS: dict[str, Contender] = {
    way.__name__: way
    for way in (
        all_reduce_coalesced,
        all_gather_coalesced,
        reduce_scatter_coalesced,
        reduce_and_gather,
        gather_in_forward,
        functional_all_to_all,
        uneven_all_to_all,
        asynchronous,
        lone_send,
    )
}


def count_ways(ctx: RankContext) -> dict[str, Counts]:
    alone = dist.new_group([0])

    def in_a_group_of_one(ctx: RankContext) -> None:
        if ctx.rank == 0:
            dist.all_reduce(torch.ones(100), group=alone)

    ways: dict[str, Contender] = {**WAYS, "in_a_group_of_one": in_a_group_of_one}
    return {name: count_step(partial(way, ctx), Countable(device=ctx.device), warmup=1) for name, way in ways.items()}


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
def test_each_way_to_communicate_is_counted_once(
    ways: tuple[dict[str, Counts], ...], way: str, expected: dict[str, tuple[float, float, float]]
) -> None:
    for rank in ways:
        assert communicated(rank[way]) == expected
        assert rank[way].unstable == {}


def test_who_sends_and_who_receives_are_told_apart(ways: tuple[dict[str, Counts], ...]) -> None:
    assert [communicated(rank["lone_send"]) for rank in ways] == [{"send": (1, 28, 28)}, {"recv": (1, 28, 0)}]


def test_who_is_not_in_a_group_communicates_nothing(ways: tuple[dict[str, Counts], ...]) -> None:
    assert [communicated(rank["in_a_group_of_one"]) for rank in ways] == [{"all_reduce": (1, 400, 0)}, {}]


def communicated(counts: Counts) -> dict[str, tuple[float, float, float]]:
    """Calls, bytes and bytes sent by collective."""
    calls, nbytes, sent = (counts.details[f"collective_{what}"] for what in ("calls", "bytes", "send_bytes"))
    return {name: (times, nbytes[name], sent[name]) for name, times in calls.items()}


def count_objects(ctx: RankContext) -> Counts:
    return count_step(lambda: dist.broadcast_object_list([ctx.rank]), Countable(device=ctx.device), warmup=1)


def test_an_object_counts_as_what_it_travels_by(launcher: Launcher) -> None:
    """Its size, of 8 bytes, and itself."""
    for counts in launcher.run(count_objects, world_size=2, backend="gloo", device="cpu").values:
        assert counts.details["collective_calls"] == {"broadcast": 2}
        assert counts.totals["collective_bytes"] > 8
