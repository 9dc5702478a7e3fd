"""Blocks with and without synchronisation: their plan, their order, and that they leave no trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.instruments import clock as clocks
from pytest_ddpperf.instruments.host import available_memory
from pytest_ddpperf.instruments.profile.profiling import profile_steps
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.phases import BlockTimes, MemoryHeadroom
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.strategy import Parallel, RankView
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.jobs import LaunchJob, blocks_for
from pytest_ddpperf.training.loop import run_launch
from pytest_ddpperf.training.step import build_step
from pytest_ddpperf.training.subject import Workload
from pytest_ddpperf.training.timing import alternating_blocks, sides
from tests.factories import TORCH, runnable
from tests.training import workloads


@pytest.mark.parametrize(
    ("steps", "period", "blocks"),
    [
        (5, 1, (4, 1)),  # at least four pairs, and one timed step a side
        (24, 1, (4, 1)),  # 4 x (1 + 1) x 2 sides: 16 of 24
        (80, 1, (4, 4)),  # 4 x (1 + 4) x 2: 40 of 80
        (1000, 1, (8, 30)),  # 8 x (1 + 30) x 2: 496 of 1000
        (160, 4, (5, 4)),  # 5 x (4 + 4) x 2: 80 of 160
    ],
)
def test_blocks_take_half_as_many_steps_as_are_timed(steps: int, period: int, blocks: tuple[int, int]) -> None:
    assert blocks_for(steps, period) == blocks


def test_no_side_comes_first_more_often_than_the_other() -> None:
    """Neither within a launch nor from launch to launch: a drift is the same for both."""
    assert sides(2, 0) == (True, False, False, True)
    assert sides(2, 1) == (False, True, True, False)
    assert sides(3, 2) == (True, False, False, True, True, False)


def test_each_block_begins_with_an_untimed_step_and_restores_the_training(make_ctx: Any) -> None:
    """Four pairs of four timed steps, each after one that is not timed: five calls in each block."""
    events: list[str] = []

    @contextmanager
    def alone() -> Iterator[None]:
        events.append("alone")
        yield
        events.append("together")

    def snapshot() -> Callable[[], None]:
        events.append("keep")
        return lambda: events.append("restore")

    make_ctx()
    trainer: Any = SimpleNamespace(
        unsynchronised=alone, snapshot=snapshot, skipped_steps=[], still_sent=lambda _run: "all else"
    )
    times = alternating_blocks(lambda: events.append("step"), trainer, torch.device("cpu"), steps=80, period=1, seed=0)
    assert times is not None
    assert (len(times.synchronised), len(times.unsynchronised), times.still_sent) == (16, 16, "all else")
    assert times.pairs == 4
    whole, lone = ["step"] * 5, ["alone", *["step"] * 5, "together"]
    expected = [(whole if side else lone) for side in sides(4, 0)]
    assert events == ["keep", *(event for block in expected for event in (*block, "restore"))]


def test_exposed_communication_is_unknown_if_a_step_overflowed(make_ctx: Any) -> None:
    skipped: list[int] = []
    make_ctx()
    trainer: Any = SimpleNamespace(
        unsynchronised=nullcontext, snapshot=lambda: lambda: None, skipped_steps=skipped, still_sent=lambda _run: ""
    )
    assert (
        alternating_blocks(lambda: skipped.append(1), trainer, torch.device("cpu"), steps=5, period=1, seed=0) is None
    )


def workload(**changes: Any) -> Workload:
    def model() -> torch.nn.Module:
        layers = [torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 6)]
        return torch.nn.Sequential(torch.nn.Sequential(*layers[:2]), layers[2])

    fields = {"model": model, "batch": lambda: (torch.rand(4, 6), torch.zeros(4, 6)), "optimizer": torch.optim.AdamW}
    return workloads.workload(**{**fields, **changes})


def trained_state(step: Any) -> list[torch.Tensor]:
    """This rank's copies of parameters, buffers and optimizer state, in an order."""
    (module,), (optimizer,) = step.modules, step.optimizers
    inner = getattr(optimizer, "optim", optimizer)
    tensors = [*module.parameters(), *module.buffers()]
    tensors += [value for state in inner.state.values() for value in state.values() if torch.is_tensor(value)]
    return [getattr(tensor, "_local_tensor", tensor).detach().clone() for tensor in tensors]


def before_and_after(ctx: RankView, job: LaunchJob, texts: list[str]) -> dict[str, tuple[bool, bool, bool]]:
    """For each strategy: whether training moved on, whether blocks left no trace, and whether it goes on in step."""
    found = {}
    for text in texts:
        step = build_step(ctx, replace(job, strategy=resolve(text)))
        for _ in range(2):
            step.run()
        early = trained_state(step)
        step.run()
        before = trained_state(step)
        assert step.unsynchronised is not None
        alternating_blocks(step.run, step.unsynchronised, ctx.device, steps=8, period=step.period, seed=1)
        after = trained_state(step)
        step.run()
        moved = any(not torch.equal(a, b) for a, b in zip(early, before, strict=True))
        same = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        on = any(not torch.equal(a, b) for a, b in zip(after, trained_state(step), strict=True))
        found[text] = (moved, same, on)
    return found


EVERYDAY = runnable(["flat", "bucketed", "ddp", "zero1", "fsdp1", "fsdp2"])
ALL = [
    *EVERYDAY,
    *("naive", "overlap", "overlap_coalesced", "ddp[static_graph=true]", "ddp[gradient_as_bucket_view=true]"),
    *("ddp[comm_hook=powersgd]", "ddp[comm_hook=post_local_sgd]"),
    *("fsdp1[sharding=NO_SHARD]", "fsdp1[use_orig_params=false]"),
]


@pytest.mark.parametrize(
    ("settings", "strategies"),
    [
        pytest.param(Settings(accumulation_steps=2), EVERYDAY, id="everyday"),
        pytest.param(Settings(), ALL, id="all", marks=pytest.mark.slow),
        pytest.param(Settings(accumulation_steps=2, no_sync=False), ALL, id="each", marks=pytest.mark.slow),
    ],
)
def test_measuring_exposed_communication_leaves_the_training_state_unchanged_on_every_rank(
    launcher: Launcher, settings: Settings, strategies: list[str]
) -> None:
    job = LaunchJob(workload(), None, settings, Plan(warmup=2, steps=8))
    ranks = launcher.run(before_and_after, job, strategies, world_size=2, backend="gloo", device="cpu").values
    assert ranks == (dict.fromkeys(strategies, (True, True, True)),) * 2


def kinds_sent_alone(ctx: RankView, job: LaunchJob, texts: list[str]) -> dict[str, tuple[set[str], str]]:
    """For each strategy: the collectives of an unsynchronised step, and what it says of them."""
    found = {}
    for text in texts:
        step = build_step(ctx, replace(job, strategy=resolve(text)))
        for _ in range(2):
            step.run()
        assert step.unsynchronised is not None
        with step.unsynchronised.unsynchronised():
            step.run()
            profile = profile_steps(step.run, 1, ctx.device)
        found[text] = ({one.kind for one in profile.steps[0].collectives}, step.unsynchronised.still_sent(step.run))
    return found


def kinds_in_units(ctx: RankView, texts: list[str]) -> list[dict[str, tuple[set[str], str]]]:
    """The same of a model in two units, and of one in a single unit."""
    in_two = workload(blocks=lambda model: list(model.children())[:1])
    given = LaunchJob(in_two, None, Settings(accumulation_steps=2), Plan(warmup=2, steps=8))
    single = replace(given, subject=workload(blocks=lambda _model: []))
    return [kinds_sent_alone(ctx, given, texts), kinds_sent_alone(ctx, single, IN_ONE)]


IN_ONE = runnable(["fsdp1", "fsdp2", "fsdp2[reshard_after_forward=true]"])


def test_an_unsynchronised_step_sends_no_gradients_and_names_other_collectives(launcher: Launcher) -> None:
    """FSDP frees a unit's parameters after forward; the outermost one's only where it is told to."""
    once = "the parameters that are gathered for forward"
    told = {
        "ddp": (set[str](), ""),
        "zero1": ({"broadcast"}, "the parameters that each rank broadcasts after its update"),
        "fsdp1": ({"all_gather"}, f"{once} and again for backward"),
        "fsdp1[sharding=SHARD_GRAD_OP]": ({"all_gather"}, once),
        "fsdp2": ({"all_gather"}, f"{once} and again for backward"),
        "fsdp2[reshard_after_forward=false]": ({"all_gather"}, once),
    }
    strategies = runnable(told)
    for two, one in launcher.run(kinds_in_units, strategies, world_size=2, backend="gloo", device="cpu").values:
        assert two == {strategy: told[strategy] for strategy in strategies}
        again = {strategy: "again" in words for strategy, (_, words) in one.items()}
        assert again == {name: name not in {"fsdp1", "fsdp2"} and TORCH >= (2, 8) for name in IN_ONE}


def launched_without_room(ctx: RankView) -> RankLaunch:
    """What a launch reports where rank 1 reads that 400 bytes are available."""
    job = LaunchJob(workload(), resolve("ddp"), Settings(), Plan(warmup=2, steps=5))
    read = (lambda: 400) if ctx.rank == 1 else available_memory
    with patch("pytest_ddpperf.instruments.host.available_memory", read):
        return run_launch(ctx, job)


def told_by_a_made_up_clock(ctx: RankView) -> BlockTimes | None:
    """What a launch reports whose loss takes 5 ms and each collective 20 ms, and nothing else any time."""
    now = 0.0

    def lasts(seconds: float) -> None:
        nonlocal now
        now += seconds

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        lasts(0.005)
        return torch.nn.functional.mse_loss(outputs, targets)

    def delayed(module: torch.nn.Module, _ctx: RankView) -> Parallel:
        def synchronise() -> None:
            for parameter in module.parameters():
                lasts(0.02)
                torch.distributed.all_reduce(parameter.grad)

        return Parallel(module, synchronise)

    job = LaunchJob(workload(loss=loss), resolve(delayed), Settings(), Plan(warmup=1, steps=5))
    clock = replace(clocks.CPU_CLOCK, mark=lambda: now)
    with patch("pytest_ddpperf.training.timing.clock_for", lambda _device, **_marks: clock):
        return run_launch(ctx, job).communication


def own_step(ctx: RankView, offers: str) -> Any:
    """A step of DistributedDataParallel that offers to leave out its all-reduce, or something else."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    batch = torch.ones(2, 4) * ctx.rank

    def step() -> torch.Tensor:
        loss: torch.Tensor = model(batch).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's is not annotated here
        if offers == "part":
            torch.distributed.all_reduce(loss.detach())
        return loss.detach()

    def accumulating() -> torch.Tensor:
        with model.no_sync():
            loss: torch.Tensor = model(batch).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]  # torch's is not annotated here
        torch.distributed.all_reduce(loss.detach())
        return loss.detach()

    if offers == "every 100th":
        accumulating.unsynchronised = model.no_sync  # type: ignore[attr-defined]  # what a user may give to a function
        return accumulating
    offered = {"nothing": None, "part": model.no_sync, "all": model.no_sync, "useless": nullcontext, "wrong": 3}[offers]
    if offered is not None:
        step.unsynchronised = offered  # type: ignore[attr-defined]  # what a user may give to a function
    return step


def launched_own_steps(ctx: RankView) -> dict[str, RankLaunch]:
    """What launches report of steps that offer to leave out something, and what is said of no context."""
    given = LaunchJob(partial(own_step, offers="wrong"), None, Settings(), Plan(warmup=2, steps=5))
    said = r"step.unsynchronised of own_step \(.*\) must be a function without .* is a value of type"
    with pytest.raises(WorkloadError, match=said):
        run_launch(ctx, given)
    return {
        offers: run_launch(ctx, replace(given, subject=partial(own_step, offers=offers)))
        for offers in ("nothing", "part", "all", "useless", "every 100th")
    }


Found = tuple[tuple[RankLaunch, "BlockTimes | None", dict[str, RankLaunch]], ...]


def all_of_it(ctx: RankView) -> tuple[RankLaunch, BlockTimes | None, dict[str, RankLaunch]]:
    return launched_without_room(ctx), told_by_a_made_up_clock(ctx), launched_own_steps(ctx)


@pytest.fixture(scope="module")
def found(launcher: Launcher) -> Found:
    """What each of two ranks reports of all this, in one launch."""
    return launcher.run(all_of_it, world_size=2, backend="gloo", device="cpu").values


def test_if_one_rank_lacks_memory_no_rank_measures_exposed_communication(found: Found) -> None:
    """Parameters: 6 x 6 + 6 twice, and 12 of the normalisation: 96; its buffers 12 and a count of 8 bytes. AdamW keeps
    two for each parameter and a count of 4 bytes for each of the six tensors: 4 x (3 x 96 + 12 + 6) + 8 on each rank.
    """
    for rank, _, _ in found:
        assert rank.communication is None
        assert rank.no_headroom == MemoryHeadroom(needed=2 * 1232, free=300)  # of 400 a quarter is spared
        assert rank.phases is not None


def test_a_delay_of_collectives_that_nothing_hides_is_exposed(found: Found) -> None:
    """A collective for each of six parameters: 120 ms, no more and no less."""
    for _, times, _ in found:
        assert times is not None
        assert times.synchronised == pytest.approx([0.125] * 4)
        assert times.unsynchronised == pytest.approx([0.005] * 4)


def test_exposed_communication_of_a_custom_step_is_measured_if_it_has_unsynchronised(found: Found) -> None:
    """The last step averages gradients over many calls, and sends its loss in each."""
    for _, _, rank in found:
        assert rank["nothing"].communication is None
        for offers, sent in (("part", "1 of 2 collective calls"), ("all", "")):
            times = rank[offers].communication
            assert times is not None
            assert (len(times.synchronised), len(times.unsynchronised), times.still_sent) == (4, 4, sent)
        for offers in ("useless", "every 100th"):
            kept = rank[offers]
            assert kept.communication is None
            assert kept.phases is not None
            said = r"^unsynchronised\(\) skips no collective: a step of own_step .* makes 1 .* context, and 1 outside$"
            assert re.match(said, kept.kept)


def test_exposed_communication_can_be_switched_off_and_needs_a_workload(make_ctx: Any) -> None:
    single = LaunchJob(workload(), resolve("single"), Settings(), Plan(warmup=1, steps=5))
    assert run_launch(make_ctx(), single).communication is not None
    assert run_launch(make_ctx(), replace(single, settings=Settings(communication=False))).communication is None
    own = LaunchJob(lambda _ctx: lambda: None, None, Settings(), Plan(warmup=1, steps=5))
    assert run_launch(make_ctx(), own).communication is None
