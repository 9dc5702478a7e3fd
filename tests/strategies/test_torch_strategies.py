"""torch's own strategies on real ranks: what they train is what one process trains, whatever their options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.strategies.strategy import Parallel
from tests.factories import TORCH
from tests.strategies.conftest import Net, ready, share_of

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.strategies.conftest import Placement

RunOn = Callable[..., tuple[Any, ...]]

STEPS = 3


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        quiet: whether micro-batches but the last are within ``no_sync``.
    """

    strategy: str
    micro_batches: int = 1
    quiet: bool = True
    model: type[nn.Module] = Net


def prepared(ctx: RankContext, case: Case) -> tuple[Parallel, torch.optim.Optimizer]:
    torch.manual_seed(ctx.rank)
    module: Any = case.model()
    return ready(ctx, case.strategy, module, module.blocks)


def backward(ctx: RankContext, case: Case, parallel: Parallel, step: int) -> None:
    for micro_batch in range(case.micro_batches):
        silent = case.quiet and micro_batch < case.micro_batches - 1
        with parallel.no_sync() if silent and parallel.no_sync is not None else nullcontext():
            outputs = parallel.module(share_of(ctx.rank, step, micro_batch).to(ctx.device))
            (outputs.float().square().mean() / case.micro_batches).backward()
    parallel.synchronise()


OFFLOADING = ("fsdp1[cpu_offload=true]", "fsdp2[cpu_offload=true]")


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """How often each collective is called, and how many values all-reduces add up that could be gradients."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the same
        self.count: Counter[str] = Counter()
        self.reduced = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            name = func._opname.strip("_")
            self.count[name] += 1
            if name == "allreduce":
                self.reduced += sum(tensor.numel() for tensor in args[0] if tensor.is_floating_point())
        return func(*args, **(kwargs or {}))


def reduced_in_steps(ctx: RankContext, cases: tuple[Case, ...]) -> list[list[float]]:
    """How often each gradient is sent in the first step and in the second."""
    found = []
    for case in cases:
        parallel, _ = prepared(ctx, case)
        size = sum(parameter.numel() for parameter in parallel.module.parameters())
        steps = []
        for step in range(2):
            parallel.module.zero_grad(set_to_none=True)
            with Calls() as calls:
                backward(ctx, case, parallel, step)
            steps.append(calls.reduced / size)
        found.append(steps)
    return found


def test_a_static_graph_is_learned_in_the_very_first_micro_batch(run_on: RunOn, placement: Placement) -> None:
    """It is synchronised although it is within no_sync: the first step sends each gradient twice, the next one once."""
    strategies = ("ddp[static_graph=true]", "ddp[gradient_as_bucket_view=true,static_graph=true]")
    cases = tuple(Case(strategy, micro_batches=2) for strategy in strategies)
    for found in run_on(placement, reduced_in_steps, cases):
        assert found == [[2, 1]] * 2


def calls_of_a_step(ctx: RankContext, cases: list[Case]) -> list[tuple[Counter[str], Counter[str]]]:
    """Of the third step, when DDP has laid out its buckets anew: in forward and backward, then in the optimizer."""
    counted = []
    for case in cases:
        parallel, optimizer = prepared(ctx, case)
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=True)
            with Calls() as trained:
                backward(ctx, case, parallel, step)
            with Calls() as updated:
                optimizer.step()
        counted.append((trained.count, updated.count))
    return counted


UNITS = 4  # three blocks and what is outside of them
TENSORS = 16  # weights and biases of eight layers


def test_gradients_are_sent_once_a_step_within_no_sync_and_with_every_micro_batch_without(
    run_on: RunOn, cpu: Placement
) -> None:
    """Four micro-batches. FSDP gathers in each, and all but the root's again in backward; it scatters by unit."""
    plain = {
        "ddp[broadcast_buffers=false]": {"allreduce": 1},
        "ddp[broadcast_buffers=false,static_graph=true]": {"allreduce": 1},
        "zero1[broadcast_buffers=false]": {"allreduce": 1},
        "fsdp1": {"reduce_scatter_base": UNITS},
        "fsdp1[sharding=NO_SHARD]": {"allreduce": UNITS},
        "fsdp2": {"reduce_scatter_base": UNITS},
    }
    hybrid = {
        "fsdp1[sharding=HYBRID_SHARD,replicas=2]": {"reduce_scatter_base": UNITS, "allreduce": UNITS},
        "fsdp2[replicas=2]": {"reduce_scatter_base": UNITS, "allreduce": UNITS},
    }
    for wanted, ranks in ((plain, 2), (hybrid, 4)):
        cases = [Case(strategy, 4, quiet) for strategy in wanted for quiet in (True, False)]
        for case, (trained, _) in zip(cases, run_on(cpu.of(ranks), calls_of_a_step, cases)[0], strict=True):
            sent = {name: number for name, number in trained.items() if not name.startswith("allgather")}
            times = 1 if case.quiet else 4
            assert sent == {name: number * times for name, number in wanted[case.strategy].items()}, case


def test_options_reach_torch_as_calls(run_on: RunOn, cpu: Placement) -> None:
    """Counted for one micro-batch. 2 gathers for each unit, but 1 if it is not freed between forward and backward.

    zero1 broadcasts each parameter, or the piece of each of the 2 ranks. 0.0005 MiB are 524 bytes: of the gradients
    of 1.3 kB that makes several buckets of several tensors.
    """
    gathers = {
        "fsdp1": 2 * UNITS - 1,
        "fsdp1[sharding=SHARD_GRAD_OP]": UNITS,
        "fsdp1[sharding=NO_SHARD]": 0,
        "fsdp2": 2 * UNITS - 1,
        "fsdp2[reshard_after_forward=true]": 2 * UNITS - (TORCH < (2, 8)),
        "fsdp2[reshard_after_forward=false]": UNITS,
    }
    broadcasts = {"ddp": 0, "zero1": TENSORS, "zero1[parameters_as_bucket_view=true]": 2}
    cases = [Case(strategy) for strategy in (*gathers, *broadcasts, "ddp[bucket_cap_mb=0.0005]")]
    for counted in run_on(cpu, calls_of_a_step, cases):
        for case, (trained, updated) in zip(cases, counted, strict=True):
            if case.strategy in gathers:  # FSDP1 gathers into lists on the CPU
                assert trained["allgather_base"] + trained["allgather"] == gathers[case.strategy], case
            elif case.strategy in broadcasts:
                assert updated["broadcast"] == broadcasts[case.strategy], case
                assert trained["broadcast"] == 1, case  # the buffer, before forward
            else:
                assert 1 < trained["allreduce"] < TENSORS, case


def poisoned(ctx: RankContext, strategies: list[str]) -> list[dict[str, Any]]:
    """An overflow on the last rank, and what the scalers of all ranks make of it.

    Under sharding it is put into the last rank's shard (and that of its copy) when all has been synchronised; without,
    into the last rank's loss.
    """
    seen = []
    for strategy in strategies:
        parallel, optimizer = prepared(ctx, Case(strategy))
        assert parallel.parameters is not None
        scaler = parallel.make_scaler() if parallel.make_scaler is not None else torch.amp.GradScaler(ctx.device.type)
        sharded = strategy.startswith("fsdp")
        scales, parameters = [scaler.get_scale()], [parallel.parameters()]
        for poison in (False, True):
            last = ctx.world_size - 1
            chosen = poison and ctx.rank in ((1, last) if "replicas" in strategy else (last,))
            optimizer.zero_grad(set_to_none=True)
            loss = parallel.module(share_of(ctx.rank, 0, 0).to(ctx.device)).square().mean()
            scaler.scale(loss * torch.inf if chosen and not sharded else loss).backward()
            if chosen and sharded:
                grads = [parameter.grad for parameter in parallel.module.parameters()]
                local = [grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads]
                next(shard for shard in local if shard is not None and shard.numel()).view(-1)[0] = torch.inf
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            parameters.append(parallel.parameters())
        seen.append({"scales": scales, "parameters": parameters})
    return seen


def test_an_overflow_on_one_rank_lets_all_ranks_skip_the_step(run_on: RunOn, placement: Placement) -> None:
    strategies = [
        "ddp",
        "ddp[comm_hook=fp16]",
        "ddp[comm_hook=post_local_sgd]",
        "zero1",
        "fsdp1",
        "fsdp1[use_orig_params=false]",
        "fsdp1[sharding=SHARD_GRAD_OP]",
        "fsdp2",
        *(("fsdp2[replicas=2]",) if placement.on_cpu else OFFLOADING),
    ]
    for seen in run_on(placement.of(4), poisoned, strategies):
        for strategy, found in zip(strategies, seen, strict=True):
            assert found["scales"] == [2.0**16, 2.0**16, 2.0**15], strategy
            start, good, bad = found["parameters"]
            assert any(not torch.equal(start[name], good[name]) for name in start), strategy
            assert all(torch.equal(good[name], bad[name]) for name in start), strategy


class Sparing(Net):
    """Has a layer that no input uses."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(5, 5)


def gradients_of_sparing(ctx: RankContext, strategies: list[str]) -> list[Tensor | None]:
    found = []
    for strategy in strategies:
        case = Case(strategy, model=Sparing)
        parallel, _ = prepared(ctx, case)
        assert parallel.gradients is not None
        for step in range(STEPS):
            parallel.module.zero_grad()
            backward(ctx, case, parallel, step)
        found.append(parallel.gradients()["spare.weight"])
    return found


def test_unused_parameters_have_no_gradient_except_in_fsdp1(run_on: RunOn, cpu: Placement) -> None:
    """FSDP1 has zeros, because the unit's flat gradient is one; a unit that is not used at all has none."""
    strategies = ["ddp[find_unused_parameters=true]", "ddp[static_graph=true]", "zero1[static_graph=true]", "fsdp2"]
    for found in run_on(cpu, gradients_of_sparing, [*strategies, "fsdp1"]):
        assert found[:-1] == [None] * len(strategies)
        assert isinstance(found[-1], Tensor)
        assert not found[-1].any()
