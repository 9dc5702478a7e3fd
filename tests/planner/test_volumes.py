from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.planner import Network, bucket_layout, estimate_ddp_comm_cost, estimate_fsdp_comm_cost

M = 4 * 1000
MODEL = nn.Linear(1000, 1, bias=False)
LINK = Network(latency=1e-3, bandwidth=1e6)


def test_ddp_sends_twice_its_gradients_except_the_own_part() -> None:
    cost = estimate_ddp_comm_cost(MODEL, 4)
    assert (cost.calls, cost.send_bytes) == (1, 2 * M * 3 / 4)


@pytest.mark.parametrize(("no_sync", "times"), [(True, 1), (False, 4)])
def test_ddp_sends_for_each_micro_batch_without_no_sync(*, no_sync: bool, times: int) -> None:
    cost = estimate_ddp_comm_cost(MODEL, 2, accumulation_steps=4, no_sync=no_sync)
    assert (cost.calls, cost.send_bytes) == (times, times * M)


def test_ddp_sends_half_with_a_compressing_hook_and_no_gradients_of_frozen_parameters() -> None:
    frozen = nn.Linear(10, 10, bias=False).requires_grad_(requires_grad=False)
    model = nn.Sequential(nn.Linear(10, 10, bias=False), frozen)
    assert estimate_ddp_comm_cost(model, 2).send_bytes == 400
    assert estimate_ddp_comm_cost(model, 2, gradient_element_bytes=2).send_bytes == 200


def test_the_estimated_communication_equals_the_counts_of_ranks(launcher: Launcher) -> None:
    """Of four linear layers of 16 KiB each, and three buffers of two kinds."""
    ways = [(1, True), (3, True), (3, False)]  # steps of accumulation, and whether it is under no_sync

    def counted(ctx: RankContext) -> list[tuple[float, float]]:
        from contextlib import nullcontext

        from torch.nn.parallel import DistributedDataParallel

        from pytest_ddpperf.instruments.counting.counting import Countable
        from tests.counted import count_step

        found = []
        for steps, no_sync in ways:
            layers = [nn.Linear(64, 64, bias=False) for _ in range(4)]
            model = DistributedDataParallel(nn.Sequential(*layers, nn.BatchNorm1d(64)), bucket_cap_mb=0.02)

            def run(model: Any = model, steps: int = steps, no_sync: bool = no_sync) -> None:  # noqa: FBT001
                for left in reversed(range(steps)):
                    with model.no_sync() if left and no_sync else nullcontext():
                        model(torch.ones(4, 64)).sum().backward()

            totals = count_step(run, Countable(device=ctx.device)).totals
            found.append((totals["collective_calls"], totals["collective_send_bytes"]))
        return found

    module = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)), nn.BatchNorm1d(64))
    costs = [
        estimate_ddp_comm_cost(module, 2, bucket_cap_mb=0.02, accumulation_steps=steps, no_sync=no_sync)
        for steps, no_sync in ways
    ]
    for found in launcher.run(counted, world_size=2, device="cpu", backend="gloo").values:
        assert found == [(cost.calls, cost.send_bytes) for cost in costs]


@pytest.mark.parametrize(("sharding", "times"), [("FULL_SHARD", 3), ("SHARD_GRAD_OP", 2), ("NO_SHARD", 2)])
def test_fsdp_sends_by_its_sharding(sharding: str, times: int) -> None:
    assert estimate_fsdp_comm_cost(MODEL, 4, sharding=sharding).send_bytes == times * M * 3 / 4


@pytest.mark.parametrize(
    ("sharding", "no_sync", "gathers", "scatters"),
    [
        ("FULL_SHARD", False, 8, 4),
        ("FULL_SHARD", True, 8, 1),
        ("SHARD_GRAD_OP", False, 4, 4),
        ("SHARD_GRAD_OP", True, 1, 1),
    ],
)
def test_fsdp_gathers_for_each_of_four_micro_batches(
    sharding: str, *, no_sync: bool, gathers: int, scatters: int
) -> None:
    cost = estimate_fsdp_comm_cost(MODEL, 2, sharding=sharding, accumulation_steps=4, no_sync=no_sync)
    assert [(part.collective, part.calls) for part in cost.parts] == [
        ("all_gather", gathers),
        ("reduce_scatter", scatters),
    ]


def test_units_are_more_calls_and_the_same_bytes() -> None:
    one, ten = (estimate_fsdp_comm_cost(MODEL, 4, units=units, network=LINK) for units in (1, 10))
    assert (one.calls, ten.calls) == (3, 30)
    assert ten.send_bytes == pytest.approx(one.send_bytes)
    assert one.seconds == pytest.approx(3 * 3 * (1e-3 + 1e-3))
    assert ten.seconds == pytest.approx(3 * 3 * (10e-3 + 1e-3))


def test_hybrid_sharding_sends_between_nodes_only_the_parts() -> None:
    """2 nodes of 4: 3 M 3/4 inside, and 2 (M/4) 1/2 between. The paper prints 2 M (W-1)/(G W) for the latter."""
    cost = estimate_fsdp_comm_cost(MODEL, 8, sharding="HYBRID_SHARD", ranks_per_node=4)
    assert [(part.ranks, part.send_bytes) for part in cost.parts] == [(4, 2 * M * 3 / 4), (4, M * 3 / 4), (2, M / 4)]
    assert (cost.parts[-1].send_bytes, 2 * M * (8 - 1) / (4 * 8)) == (1000, 1750)
    alone = estimate_fsdp_comm_cost(MODEL, 4, sharding="HYBRID_SHARD", ranks_per_node=4)
    assert alone.parts == estimate_fsdp_comm_cost(MODEL, 4).parts  # nothing between nodes


def test_mixed_precision_sends_its_own_types() -> None:
    cost = estimate_fsdp_comm_cost(MODEL, 2, param_element_bytes=2, reduce_element_bytes=4)
    assert [part.send_bytes for part in cost.parts] == [2 * M / 2 / 2, M / 2]
    assert estimate_fsdp_comm_cost(MODEL, 2, param_element_bytes=2).send_bytes == 3 * M / 2 / 2


def test_a_network_gives_the_time() -> None:
    """2 x 3 messages of 1 ms, and 2 x 3/4 of 4000 B at 1 MB/s."""
    cost = estimate_ddp_comm_cost(MODEL, 4, network=LINK)
    assert cost.seconds == pytest.approx(6e-3 + 6e-3)
    assert estimate_ddp_comm_cost(MODEL, 4).seconds is None


@pytest.mark.parametrize("cost", [estimate_ddp_comm_cost, estimate_fsdp_comm_cost])
def test_one_rank_sends_nothing(cost: Any) -> None:
    found = cost(MODEL, 1, network=LINK)
    assert (found.calls, found.send_bytes, found.seconds) == (0, 0, 0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: estimate_ddp_comm_cost(3, 2), r"model is of type int without parameters\(\); give a torch.nn.Module"),  # type: ignore[arg-type]
        (lambda: estimate_ddp_comm_cost(MODEL, 0), "world_size=0 is not valid"),
        (lambda: estimate_fsdp_comm_cost(MODEL, 2, sharding="HALF"), "sharding='HALF' is not known; give one of FULL"),
        (lambda: estimate_fsdp_comm_cost(MODEL, 4, sharding="HYBRID_SHARD"), "ranks_per_node=None: HYBRID_SHARD"),
        (lambda: estimate_fsdp_comm_cost(MODEL, 4, ranks_per_node=2), "ranks_per_node=2 is only for HYBRID_SHARD, no"),
    ],
)
def test_an_invalid_argument_is_named(call: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        call()


MIB = 2**20


def test_buckets_follow_the_order_in_which_gradients_are_ready() -> None:
    assert [bucket.parameters for bucket in bucket_layout([MIB] * 4, 2, ready_order=(0, 2, 1, 3))] == [(0, 2), (1, 3)]


def test_gradients_of_several_kinds_never_share_a_bucket() -> None:
    found = bucket_layout([MIB] * 4, 2, kinds=["fp32", "bf16", "fp32", "bf16"])
    assert [bucket.parameters for bucket in found] == [(3, 1), (2, 0)]


@pytest.mark.parametrize("cap", [None, 1])
def test_the_bucket_layout_equals_torchs(cap: float | None) -> None:
    sizes = [4 * (1 + seed * 7919 % 500_000) for seed in range(40)]
    tensors = [torch.empty(size // 4, device="meta") for size in reversed(sizes)]
    caps = [MIB, 25 * MIB] if cap is None else [int(cap * MIB)]
    indices, _ = dist._compute_bucket_assignment_by_size(tensors, caps, [False] * len(sizes))  # type: ignore[attr-defined]
    assert [bucket.parameters for bucket in bucket_layout(sizes, cap)] == [
        tuple(len(sizes) - 1 - i for i in bucket) for bucket in indices
    ]


def test_the_bucket_layout_equals_the_one_that_ddp_rebuilds(launcher: Launcher) -> None:
    def rebuilt(_ctx: object) -> tuple[list[int], str]:
        from torch.nn.parallel import DistributedDataParallel

        layers = [nn.Linear(64, 64, bias=False) for _ in range(5)]
        model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.03)
        for _ in range(3):
            model(torch.ones(2, 64)).sum().backward()
        return [64 * 64 * 4] * 5, str(model._get_ddp_logging_data()["rebuilt_bucket_sizes"])  # type: ignore[no-untyped-call]

    sizes, told = launcher.run(rebuilt, world_size=2, device="cpu", backend="gloo").rank(0)
    assert [int(size) for size in told.split(", ")] == [bucket.nbytes for bucket in bucket_layout(sizes, 0.03)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sizes": [1], "cap_mb": 0}, "cap_mb=0 is not valid; give a finite number of more than 0"),
        ({"sizes": [1, 2], "ready_order": [0, 0]}, "ready_order=\\[0, 0\\]: expected each index below 2 exactly once"),
        ({"sizes": [1, 2], "kinds": ["fp32"]}, "kinds has 1 entries for 2 parameters; give one for each"),
    ],
)
def test_an_impossible_bucket_layout_is_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        bucket_layout(**arguments)  # type: ignore[arg-type]
