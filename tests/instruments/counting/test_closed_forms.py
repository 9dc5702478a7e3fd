"""Counts on real ranks equal what the strategies' formulas say; M is the bytes of all parameters, n the ranks.

The model is two blocks of two linear layers, 16 x 16 with a bias: 2 x 2 x 272 = 1088 parameters, all of them in blocks,
in 8 tensors whose first dimension 4 ranks can share. M = 4352 bytes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from pytest_ddpperf.instruments.counting.counting import SEEN_STEPS, Countable
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.strategies.table import parallelise
from tests.counted import count_step
from tests.factories import SHARDS_ON_CPU, runnable

PARAMETERS = 1088
FEW = 4  # steps are looked at: all of a case are alike
M = 4 * PARAMETERS
Expected = dict[str, tuple[float, float]]  # calls and bytes of each collective
TWICE: Expected = {"all_gather": (4, 2 * M), "reduce_scatter": (2, M)}  # in forward and backward of each block
ONCE: Expected = {"all_gather": (2, M), "reduce_scatter": (2, M)}
# Each of two micro-batches gathers 2 M, in 4 calls; and torch prefetches a block, of M / 2, in vain.
ACCUMULATING: Expected = {"all_gather": (9, 4.5 * M), "reduce_scatter": (2, M)}
CASES: dict[str, tuple[str, dict[str, Any], Expected, float]] = {
    # Strategy and step; collectives; bytes that each rank sends, in M (n-1)/n.
    "naive": ("naive", {}, {"all_reduce": (8, M)}, 2.0),  # one for each parameter
    "each rank alone": ("naive", {"synchronised": False}, {}, 0.0),
    "flat": ("flat", {}, {"all_reduce": (1, M)}, 2.0),
    "overlap": ("overlap", {}, {"all_reduce": (8, M)}, 2.0),
    "bucketed": ("bucketed", {}, {"all_reduce": (1, M)}, 2.0),  # the first bucket holds 1 MiB
    "ddp": ("ddp", {}, {"all_reduce": (1, M)}, 2.0),
    "ddp autocast": ("ddp", {"autocast": True}, {"all_reduce": (1, M)}, 2.0),  # parameters and gradients stay fp32
    "ddp accumulating": ("ddp", {"micro_steps": 4}, {"all_reduce": (1, M)}, 2.0),
    "ddp always synchronised": ("ddp", {"micro_steps": 4, "quiet": False}, {"all_reduce": (4, 4 * M)}, 8.0),
    "ddp bf16": ("ddp[comm_hook=bf16]", {}, {"all_reduce": (1, M / 2)}, 1.0),
    # torch broadcasts each parameter from the rank that updated it; the paper's ZeRO-1 would send 2 M (n-1)/n.
    "zero1": ("zero1", {}, {"all_reduce": (1, M), "broadcast": (8, M)}, 3.0),
    "fsdp1": ("fsdp1", {}, TWICE, 3.0),
    "fsdp1 SHARD_GRAD_OP": ("fsdp1[sharding=SHARD_GRAD_OP]", {}, ONCE, 2.0),
    "fsdp2": ("fsdp2", {}, TWICE, 3.0),
    "fsdp2 accumulating": ("fsdp2", {"micro_steps": 2}, ACCUMULATING, 5.5),
    "fsdp2 without resharding": ("fsdp2[reshard_after_forward=false]", {}, ONCE, 2.0),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 16)
        self.down = nn.Linear(16, 16)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.down(torch.tanh(self.up(inputs)))
        return inputs + hidden


def step_of(
    ctx: RankContext,
    strategy: str,
    *,
    micro_steps: int = 1,
    quiet: bool = True,
    autocast: bool = False,
    synchronised: bool = True,
) -> tuple[Callable[[], None], nn.Module]:
    model = nn.Sequential(Block(), Block())
    parallel = parallelise(strategy, model, ctx, list(model))
    factory = partial(torch.optim.Adam, lr=1e-3)
    make = parallel.make_optimizer
    optimizer = factory(parallel.module.parameters()) if make is None else make(factory)
    no_sync = parallel.no_sync if quiet and parallel.no_sync is not None else nullcontext
    inputs = torch.ones(4, 16)

    def run() -> None:
        optimizer.zero_grad()
        for left in reversed(range(micro_steps)):
            with no_sync() if left else nullcontext():
                with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                    loss = parallel.module(inputs).square().mean()
                loss.backward()
        if synchronised:
            parallel.synchronise()
        optimizer.step()

    return run, model


def influence_of_counting(ctx: RankContext) -> float:
    """The difference of parameters after two steps and those that are counted, and after as many without counters."""

    def trained(*, counted: bool) -> Tensor:
        torch.manual_seed(0)
        run, model = step_of(ctx, "overlap")
        if counted:
            count_step(run, Countable(device=ctx.device), warmup=2)
        else:
            for _ in range(2 + SEEN_STEPS):
                run()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    return (trained(counted=True) - trained(counted=False)).abs().max().item()


def count_cases(ctx: RankContext) -> tuple[dict[str, Counts], float]:
    gc.freeze()  # collections, of which each counted step has one, are fast
    counts = {
        case: count_step(step_of(ctx, strategy, **how)[0], Countable(device=ctx.device), steps=FEW)
        for case, (strategy, how, *_) in CASES.items()
        if runnable([strategy])
    }
    return counts, influence_of_counting(ctx)


class Found(NamedTuple):
    """What the ranks of a group return."""

    ranks: tuple[dict[str, Counts], ...]  # each one's counts by case
    influences: tuple[float, ...]


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def found(request: pytest.FixtureRequest, launcher: Launcher) -> Found:
    launched = launcher.run(count_cases, world_size=request.param, backend="gloo", device="cpu", timeout=120)
    return Found(*zip(*launched.values, strict=True))


def collectives(counts: Counts) -> dict[str, tuple[float, float]]:
    """Calls and bytes by collective."""
    return {
        name: (calls, counts.details["collective_bytes"][name])
        for name, calls in counts.details["collective_calls"].items()
    }


@pytest.mark.parametrize("case", CASES)
def test_collectives_of_each_strategy_match_its_closed_form(found: Found, case: str) -> None:
    """2 M (n-1)/n for DDP, 3 M (n-1)/n for full sharding (Zhao et al. 2023, section 3.2; Rajbhandari et al., 7)."""
    *_, expected, times = CASES[case]
    n = len(found.ranks)
    for rank in found.ranks:
        assert collectives(rank[case]) == expected
        assert rank[case].totals["collective_send_bytes"] == times * M * (n - 1) / n
        assert rank[case].unstable == {}


def test_model_state_has_the_bytes_that_adam_needs(found: Found) -> None:
    """4 bytes each for parameter, gradient and two moments; sharded, each rank has its part of all of them.

    With SHARD_GRAD_OP too: unlike the paper's ZeRO-2 it frees the parameters of others at the end of backward.
    """
    for case in runnable(["naive", "ddp", "ddp autocast", "bucketed", "fsdp1", "fsdp2", "fsdp1 SHARD_GRAD_OP"]):
        part = 4 * PARAMETERS / (len(found.ranks) if case.startswith("fsdp") else 1)
        for counts in (rank[case] for rank in found.ranks):
            assert counts.totals["model_state_bytes"] == 4 * part
            assert counts.details["model_state_bytes"] == {
                "parameters": part,
                "gradients": part,
                "optimizer_state": 2 * part,
            }


def test_zero1_shards_only_the_optimizer_state(found: Found) -> None:
    """8 bytes a parameter on each rank, and 8 more on one of them: in the mean 8 + 8/n."""
    n, states = len(found.ranks), [rank["zero1"].details["model_state_bytes"] for rank in found.ranks]
    assert {state["parameters"] + state["gradients"] for state in states} == {8.0 * PARAMETERS}
    assert sum(state["optimizer_state"] for state in states) == 8 * PARAMETERS
    assert max(state["optimizer_state"] for state in states) < 8 * PARAMETERS / n * 1.5


def test_nothing_is_kept_from_step_to_step(found: Found) -> None:
    for counts in found.ranks:
        assert {case: counted.totals["retained_bytes"] for case, counted in counts.items()} == dict.fromkeys(
            counts, 0.0
        )
        assert {counted.totals["optimizer_steps"] for counted in counts.values()} == {1.0}


def test_buckets_are_ddps_own(found: Found) -> None:
    for counts in found.ranks:
        assert counts["ddp"].details["ddp_buckets"] == {"bucket 0": M}
        assert counts["zero1"].totals["ddp_buckets"] == 1
        assert counts["naive"].totals["ddp_buckets"] == 0


def test_replicas_hold_more_at_the_peak_than_shards(found: Found) -> None:
    """DDP has a copy of the gradients in its buckets, M, and so has a flat all-reduce, beside the batch of 4 x 16.

    A naive all-reduce takes no more than no all-reduce.
    """
    for counts in found.ranks:
        ddp, naive, flat, alone = (
            counts[case].details["peak_tensor_bytes"] for case in ("ddp", "naive", "flat", "each rank alone")
        )
        assert (ddp["buckets"], naive.get("buckets", 0)) == (M, 0)
        assert flat["temporaries"] == M + 4 * 16 * 4
        assert naive == alone
        assert ddp["parameters"] == naive["parameters"] == M
        if not SHARDS_ON_CPU:
            continue
        assert counts["fsdp2"].totals["peak_tensor_bytes"] < counts["ddp"].totals["peak_tensor_bytes"]
        without = counts["fsdp2 without resharding"].totals["peak_tensor_bytes"]
        assert counts["fsdp2"].totals["peak_tensor_bytes"] < without


def test_flops_are_the_same_for_every_strategy(found: Found) -> None:
    """4 rows x 4 layers x 2 x 256 = 8192 forward; in backward twice that, without the first layer's input."""
    for counts in found.ranks:
        for case in runnable(["naive", "ddp", "ddp autocast", "zero1", "fsdp1", "fsdp2"]):
            assert counts[case].details["flops_forward"] == dict.fromkeys(("0.up", "0.down", "1.up", "1.down"), 2048.0)
            assert counts[case].totals["flops_backward"] == 2 * 8192 - 2048


def test_counting_leaves_the_training_as_it_is(found: Found) -> None:
    assert set(found.influences) == {0.0}
