"""The pass as a whole: a custom step, its time and its memory; two ranks that wait for each other."""

from __future__ import annotations

import time
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from pytest_ddpperf.instruments.phases.diagnosis import diagnose
from pytest_ddpperf.instruments.phases.section import Section
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.phases import PHASES, PhaseTimes
from pytest_ddpperf.stats.summaries import quantile

CPU = torch.device("cpu")
MIB = 2**20
LATE = 0.05  # seconds
LATE_STEPS = 5  # of which one has to be let alone by whatever else the machine does


def test_the_phases_of_a_step_add_up_to_it() -> None:
    """To what a clock around the step says, within 2 %: in the middle of the steps, for any one may be interrupted."""
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples: Any = [torch.randn(256) for _ in range(1024)]
    batches = iter(DataLoader(samples, batch_size=64))
    clocked: list[float] = []

    def run() -> None:
        start = time.perf_counter()
        optimizer.zero_grad()
        model(next(batches)).square().mean().backward()
        optimizer.step()
        clocked.append(time.perf_counter() - start)

    found = diagnose(run, 12, CPU)
    ratios = [parts / whole for parts, whole in zip(found.step_times, clocked[1:], strict=True)]
    assert quantile(ratios, 0.5) == pytest.approx(1, abs=0.02)
    assert tuple(found.seconds) == PHASES
    for phase in ("data_wait", "forward", "backward", "optimizer", "other"):
        assert min(found.seconds[phase]) > 0
    assert found.seconds["gradient_sync"] == (0.0,) * 12
    assert max(found.seconds["other"]) < max(found.step_times)


def test_sections_of_the_user_and_what_they_keep() -> None:
    kept: list[torch.Tensor] = []

    def run() -> None:
        with Section("outer"):
            for _ in range(2):
                with Section("inner"):
                    kept.append(torch.empty(4 * MIB, dtype=torch.uint8))
            kept.pop()

    outer, inner = diagnose(run, 3, CPU).sections
    assert (outer.path, outer.count, inner.path, inner.count) == ("outer", 1, "outer/inner", 2)
    for whole, own, inside in zip(outer.seconds, outer.own_seconds, inner.seconds, strict=True):
        assert 0 < inside < whole
        assert own + inside == pytest.approx(whole)
    if outer.memory is not None:
        assert inner.memory is not None
        assert outer.memory.change == pytest.approx(4 * MIB, abs=MIB // 4)
        assert inner.memory.change == pytest.approx(8 * MIB, abs=MIB // 4)


def test_the_pass_runs_one_step_more_than_it_times() -> None:
    calls: list[int] = []
    assert len(diagnose(lambda: calls.append(1), 4, CPU).step_times) == 4
    assert len(calls) == 5


def test_a_compiled_step_stays_as_it_was_compiled() -> None:
    """Its optimizer is part of a graph: its time is other. Backward, which no graph has, is still seen."""
    import torch._dynamo.utils

    weight: Any = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.AdamW([weight], lr=0.1)

    def step() -> None:
        with Section("mine"):
            loss = weight.square().sum()
        loss.backward()
        optimizer.step()

    torch._dynamo.reset()
    run: Any = torch.compile(step, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's, of what it does itself
        for _ in range(3):
            run()
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        counted: list[int] = []

        def counting() -> None:
            run()
            counted.append(torch._dynamo.utils.counters["frames"]["total"])

        found = diagnose(counting, 4, CPU)
    assert graphs
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    assert counted[0] == counted[-1]
    assert min(found.seconds["backward"]) > 0
    assert not any(found.seconds["optimizer"])


def on_two_ranks(ctx: RankContext) -> dict[str, PhaseTimes]:
    """Steps of several kinds, all with the same group; rank 1 begins each of `late` 50 ms after rank 0."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    def trained(model: Any, synchronise: bool = False) -> PhaseTimes:  # noqa: FBT001, FBT002
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def run() -> None:
            if synchronise and ctx.rank == 1:
                time.sleep(LATE)
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            if synchronise:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        return diagnose(run, LATE_STEPS if synchronise else 3, ctx.device)

    def asynchronous() -> None:
        dist.all_reduce(torch.ones(8), async_op=True).wait()

    torch.manual_seed(0)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    return {
        "late": trained(nn.Linear(8, 8), synchronise=True),
        "async": diagnose(asynchronous, 3, ctx.device),
        "ddp": trained(DistributedDataParallel(nn.Linear(8, 8))),
        "fsdp1": trained(FullyShardedDataParallel(nn.Linear(8, 8), device_id=CPU)),
        "fsdp2": trained(fully_shard(nn.Linear(8, 8), mesh=mesh)),
    }


def test_two_ranks(launcher: Launcher) -> None:
    first, second = launcher.run(on_two_ranks, world_size=2, backend="gloo", device="cpu", timeout=60).values
    for rank in (first, second):
        assert min(rank["async"].seconds["gradient_sync"]) > 0
        for wrapped in ("ddp", "fsdp1", "fsdp2"):
            seconds: Any = rank[wrapped].seconds
            assert min(map(min, (seconds["forward"], seconds["backward"], seconds["optimizer"]))) > 0
            assert not any(seconds["gradient_sync"])  # it is sent in forward, in backward and by the optimizer
    # The one who comes early waits for the other: the wait is not of any phase that computes.
    assert max(first["late"].seconds["gradient_sync"]) > 0.8 * LATE
    assert min(second["late"].seconds["gradient_sync"]) < 0.8 * LATE
    assert min(second["late"].seconds["other"]) > 0.9 * LATE  # it slept for at least that, in each step
