"""Every way to communicate is counted by its name, with the bytes of its whole buffer and those that a rank sends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from pytest_ddpperf.counts import Counts
from pytest_ddpperf.instruments.counting.collectives import Collective
from pytest_ddpperf.instruments.counting.counting import Countable, count_step
from pytest_ddpperf.launch import Launcher, RankContext


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
    assert Collective(name, 800, ranks).sent_bytes == sent


def count_all(ctx: RankContext) -> Counts:
    """One of each, of two ranks and 100 numbers of 4 bytes on each: 400 bytes, or 800 for both."""
    first, peer = ctx.rank == 0, 1 - ctx.rank
    half, whole = torch.ones(100), torch.ones(200)

    def run() -> None:
        dist.all_reduce(whole[:100])  # a view: what it shows is sent, not what it is a view of
        dist.all_reduce_coalesced([torch.ones(10), torch.ones(20)])
        dist.all_gather([torch.empty(100), torch.empty(100)], half)
        _gather_single()(whole, half)
        dist.reduce_scatter(torch.empty(100), [torch.ones(100), torch.ones(100)])
        _scatter_single()(torch.empty(100), whole)
        dist.broadcast(half, src=0)
        dist.reduce(half, dst=0)
        dist.gather(half, [torch.empty(100), torch.empty(100)] if first else None)
        dist.scatter(torch.empty(100), [torch.ones(100), torch.ones(100)] if first else None)
        dist.all_to_all_single(torch.empty(200), whole)
        dist.barrier()
        requests = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, half, peer), dist.P2POp(dist.irecv, half.clone(), peer)]
        )
        for request in requests:
            request.wait()

    return count_step(run, Countable(ctx.device), warmup=1)


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


def count_functional(ctx: RankContext) -> Counts:
    group = dist.group.WORLD

    def run() -> None:
        reduced = functional.all_reduce(torch.ones(100), "sum", group)  # type: ignore[arg-type, unused-ignore]  # by version
        gathered = functional.all_gather_tensor(torch.ones(100), 0, group)  # type: ignore[arg-type, unused-ignore]  # by version
        (gathered.sum() + reduced.sum()).item()

    return count_step(run, Countable(ctx.device), warmup=1)


def test_functional_collectives_are_counted_once(launcher: Launcher) -> None:
    for counts in launcher.run(count_functional, world_size=2, backend="gloo", device="cpu").values:
        assert counts.details["collective_calls"] == {"all_reduce": 1, "all_gather": 1}
        assert counts.details["collective_bytes"] == {"all_reduce": 400, "all_gather": 800}


def count_objects(ctx: RankContext) -> Counts:
    return count_step(lambda: dist.broadcast_object_list([ctx.rank]), Countable(ctx.device), warmup=1)


def test_an_object_counts_as_what_it_travels_by(launcher: Launcher) -> None:
    """Its size, of 8 bytes, and itself."""
    for counts in launcher.run(count_objects, world_size=2, backend="gloo", device="cpu").values:
        assert counts.details["collective_calls"] == {"broadcast": 2}
        assert counts.totals["collective_bytes"] > 8
