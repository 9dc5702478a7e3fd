"""A step of a simulated rank as computing between its collectives, whatever way it trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.planner.predictions import replayed
from pytest_ddpperf.planner.simulate.timeline import RecordedStep, of_fsdp, streamed
from pytest_ddpperf.records.predictions import Moment, Timeline, Transfer
from pytest_ddpperf.training.jobs import TIMELINE_LAUNCH, LaunchJob
from tests.planner.simulate.test_launch import WORKLOAD, job, of_one_rank

Record: TypeAlias = "Callable[..., Timeline]"  # job, world size, accelerator
ROUND = 4


@pytest.fixture
def recorded(launcher: Launcher) -> Record:
    """What the only rank of a launch tells of a simulated step."""

    def record(one: LaunchJob, world_size: int = 4, accelerator: str | None = None) -> Any:
        return of_one_rank(launcher, TIMELINE_LAUNCH, on(accelerator, one), world_size, False)  # noqa: FBT003  a launch takes no names

    return record


def on(accelerator: str | None, one: LaunchJob) -> LaunchJob:
    return replace(one, settings=replace(one.settings, accelerator=accelerator))


def events(timeline: Timeline) -> str:
    """Which transfers are handed over, and which are waited for: ``0 1 w0 w1``."""
    return " ".join(f"{'w' if moment.waits else ''}{moment.transfer}" for moment in timeline.moments)


def sizes(timeline: Timeline) -> list[tuple[str, int, int]]:
    return [(transfer.name, transfer.nbytes, transfer.ranks) for transfer in timeline.transfers]


PARAMETERS = 8147  # of the workload that are trained, of four bytes each


def fitting(strategy: str, model: Callable[[], nn.Module], *shape: int, **fields: Any) -> LaunchJob:
    """A model that is fitted to random numbers of a shape."""

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(shape), torch.randn(shape)

    return job(strategy, subject=replace(WORKLOAD, model=model, batch=batch, loss=nn.functional.mse_loss, **fields))


def test_a_flat_buffer_is_sent_after_backward_and_waited_for(recorded: Record) -> None:
    found = recorded(job("flat"))
    assert sizes(found) == [("all_reduce", 4 * PARAMETERS, 4)]
    assert events(found) == "0 w0"
    assert found.samples == 4
    first, waiting = found.moments
    assert first.computed > waiting.computed > 0
    assert found.rest > 0


def test_overlap_waits_after_all_gradients_are_sent(recorded: Record) -> None:
    timeline = recorded(job("overlap"))
    number = len(timeline.transfers)
    assert events(timeline) == " ".join([*map(str, range(number)), *(f"w{i}" for i in range(number))])


def test_ddp_waits_for_all_buckets_when_the_last_one_is_sent(recorded: Record) -> None:
    """DDP's C++ waits, which no code of Python tells; the broadcast of a buffer before forward blocks."""
    timeline = recorded(job("ddp[bucket_cap_mb=0.005]"))
    names = [transfer.name for transfer in timeline.transfers]
    assert names[0] == "broadcast"
    assert set(names[1:]) == {"all_reduce"}
    buckets = range(1, len(names))
    assert len(buckets) > 1
    assert events(timeline) == " ".join(["0", "w0", *map(str, buckets), *(f"w{i}" for i in buckets)])
    assert sum(transfer.nbytes for transfer in timeline.transfers[1:]) == 4 * PARAMETERS
    step = replayed(timeline, [0.0] * len(names))  # without cost it is its computing
    assert step.seconds == pytest.approx(timeline.computing)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["bucketed", "zero1", "fsdp1", "fsdp2"])
def test_each_transfer_is_waited_for_once(recorded: Record, strategy: str) -> None:
    timeline = recorded(job(strategy))
    numbers = list(range(len(timeline.transfers)))
    assert [moment.transfer for moment in timeline.moments if not moment.waits] == numbers
    assert sorted(moment.transfer for moment in timeline.moments if moment.waits) == numbers
    assert all(moment.computed >= 0 for moment in timeline.moments)


@pytest.mark.slow
def test_fsdp_sends_to_all_ranks_of_any_number(recorded: Record) -> None:
    small, large = (recorded(job("fsdp2"), world_size) for world_size in (4, 64))
    assert {transfer.ranks for transfer in large.transfers} == {64}
    assert [transfer.name for transfer in small.transfers] == [transfer.name for transfer in large.transfers]


def test_groups_of_a_mesh_have_the_distance_of_their_ranks(recorded: Record) -> None:
    timeline = recorded(job("fsdp2[replicas=2]"), 8)
    shapes = {(transfer.name, transfer.ranks, transfer.stride) for transfer in timeline.transfers}
    assert shapes == {("all_gather", 4, 1), ("reduce_scatter", 4, 1), ("all_reduce", 2, 4)}


@pytest.mark.parametrize(
    "strategy", ["ddp", *(pytest.param(each, marks=pytest.mark.slow) for each in ("fsdp2", "fsdp1", "zero1"))]
)
def test_a_simulated_accelerator_sends_the_same(recorded: Record, strategy: str) -> None:
    here, there = (recorded(job(strategy), 8, accelerator) for accelerator in (None, "h100"))
    assert sizes(there) == sizes(here)
    assert (events(there) == events(here)) == (not strategy.startswith("fsdp"))  # which has streams there
    assert sorted(events(there).split()) == sorted(events(here).split())
    assert there.scatter == 0
    assert there.computing > 0


def computing(launcher: Launcher, *steps: tuple[LaunchJob, bool]) -> list[float]:
    """Seconds of computing of several steps on an H100, with or without TF32, which one process simulates."""

    def each(ctx: RankContext) -> list[float]:
        from pytest_ddpperf.planner.simulate.launch import timeline_launch

        return [timeline_launch(ctx, on("h100", one), 4, tf32).computing for one, tf32 in steps]

    found: list[float] = of_one_rank(launcher, each)
    return found


def test_products_in_tf32_take_less_time(launcher: Launcher) -> None:
    one = fitting("flat", lambda: nn.Linear(4096, 4096), 4096, 4096)
    seconds = computing(launcher, (one, False), (one, True))
    # Forward and the gradient of the weight: 2 x 4096^3 operations each. The input needs no gradient.
    assert seconds[0] - seconds[1] == pytest.approx(4 * 4096**3 * (1 / 66.9e12 - 1 / 494.7e12))


def test_an_accelerator_takes_no_memory_for_the_model(recorded: Record) -> None:
    """A layer of 64 GB does not fit into this machine."""
    width = 128 * 2**10
    one = fitting("flat", lambda: nn.Sequential(nn.Linear(width, width, bias=False)), 2, width)
    timeline = recorded(one, 16, "h100")
    assert sizes(timeline) == [("all_reduce", 4 * 2**34, 16)]
    # Forward and the gradient of the weight read or write it, and the optimizer does so several times.
    assert timeline.computing > 4 * 2**34 * 6 / 3.35e12


@pytest.mark.parametrize("strategy", [pytest.param("fsdp1", marks=pytest.mark.slow), "fsdp2"])
def test_fsdp_gathers_ahead_on_an_accelerator(recorded: Record, strategy: str) -> None:
    def layers() -> nn.Module:
        return nn.Sequential(*[nn.Sequential(nn.Linear(512, 512)) for _ in range(4)])

    timeline = recorded(fitting(strategy, layers, 64, 512), 8, "h100")
    cost = timeline.computing / 100
    costs = [cost] * len(timeline.transfers)
    # The first gathering and the last reduction are exposed; hardly any other is.
    assert cost < replayed(timeline, costs).exposed < 0.5 * sum(costs)


def test_the_optimizer_of_an_accelerator_takes_all_tensors_at_once_with_fsdp2(launcher: Launcher) -> None:
    """On GPUs an operator of the optimizer is one kernel for many tensors, whose time is not that of many kernels."""

    def layers() -> nn.Module:
        return nn.Sequential(*[nn.Linear(8, 8) for _ in range(25)])

    optimizers = (partial(optimizer, lr=1e-3) for optimizer in (torch.optim.SGD, torch.optim.AdamW))
    jobs = (fitting("fsdp2", layers, 2, 8, optimizer=optimizer) for optimizer in optimizers)
    simple, adam = computing(launcher, *((one, False) for one in jobs))
    assert 0 < adam - simple < 20 * 3e-6  # a dozen operators, and not one for each of 50 tensors


def own_step(ctx: RankContext) -> Callable[[], None]:
    """A step of the user's own: a functional collective, one that blocks and one that is waited for later."""
    from torch.distributed import _functional_collectives as functional

    first, second, third = (torch.ones(size) for size in (256, 512, 1024))
    world: Any = dist.group.WORLD

    def step() -> None:
        reduced = functional.all_reduce(first, "sum", world)
        dist.broadcast(second, 0)
        work = dist.all_reduce(third, async_op=True)
        reduced.sum()
        assert work is not None
        work.wait()

    return step


def test_a_step_of_the_users_own_is_recorded(recorded: Record) -> None:
    timeline = recorded(job(None, subject=own_step))
    assert sizes(timeline) == [("all_reduce", 1024, 4), ("broadcast", 2048, 4), ("all_reduce", 4096, 4)]
    assert events(timeline) == "0 1 w1 2 w0 w2"


def test_functional_collectives_of_a_step_that_reads_values_are_recorded(recorded: Record) -> None:
    """Such a step takes real tensors also where its accelerator is not there."""

    def build(ctx: RankContext) -> Callable[[], None]:
        from torch.distributed import _functional_collectives as functional

        mine = torch.ones(256)
        world: Any = dist.group.WORLD

        def step() -> None:
            functional.all_reduce(mine, "sum", world).sum().item()
            dist.all_reduce(torch.ones(512))

        return step

    timeline = recorded(job(None, subject=build), accelerator="h100")
    assert sizes(timeline) == [("all_reduce", 1024, 4), ("all_reduce", 2048, 4)]
    assert events(timeline) == "0 w0 1 w1"


def test_steps_that_send_different_things_are_refused(recorded: Record) -> None:
    def build(ctx: RankContext) -> Callable[[], None]:
        numbers = iter(range(1000))

        def step() -> None:
            dist.all_reduce(torch.ones(1 + next(numbers) % 5))

        return step

    with pytest.raises(WorkloadError, match="steps send different collectives"):
        recorded(job(None, subject=build))


def test_gradients_under_accumulation_are_sent_once(recorded: Record) -> None:
    found = recorded(job("ddp", accumulation_steps=ROUND))
    reduced = [transfer for transfer in found.transfers if transfer.name == "all_reduce"]
    assert sum(transfer.nbytes for transfer in reduced) == 4 * PARAMETERS
    assert found.samples == 4 * ROUND


def blocking(*parts: tuple[float, int]) -> list[Moment]:
    """Seconds of computing before each transfer, which is waited for at once."""
    return [
        moment
        for computed, transfer in parts
        for moment in (
            Moment(computed=computed, transfer=transfer, waits=False),
            Moment(computed=0.0, transfer=transfer, waits=True),
        )
    ]


def told(moments: tuple[Moment, ...]) -> str:
    """Such as ``0 w0 1 2+w1``: seconds of computing, if any, before handing over and waiting."""
    return " ".join(
        f"{f'{moment.computed:g}+' if moment.computed else ''}{'w' if moment.waits else ''}{moment.transfer}"
        for moment in moments
    )


def sharded(*kinds: str) -> RecordedStep:
    """FSDP's transfers 0, 1, 2 ... by words: ``f`` gathers in forward, ``b`` gathers in backward, ``r`` reduces."""
    names = ["reduce_scatter" if kind == "r" else "all_gather" for kind in kinds]
    transfers = [Transfer(name=name, nbytes=1, ranks=2) for name in names]
    backward = [-1 if kind == "f" else 0 for kind in kinds]
    return RecordedStep(transfers=transfers, backward=backward, sharded=set(range(len(kinds))))


FSDP, C10D = "torch.distributed.fsdp._made_up", "torch.distributed.distributed_c10d"
STEP = blocking((0, 0), (1, 1), (1, 2), (2, 3), (0, 4), (2, 5))  # two layers: f f b r b r
KINDS = sharded("f", "f", "b", "r", "b", "r")


def test_gathering_overlaps_the_layer_before_and_reducing_the_layer_after() -> None:
    assert told(streamed(STEP, KINDS)) == "0 w0 1 1+w1 2 1+w2 4 2+3 w4 2+w3 5 w5"


def test_overlapping_streams_hide_communication_of_a_step() -> None:
    transfers = tuple(Transfer(name="any", nbytes=1, ranks=2) for _ in STEP[::2])
    at_once, overlapped = (
        replayed(Timeline(transfers=transfers, moments=tuple(moments), rest=0.5), [0.5] * 6)
        for moments in (STEP, streamed(STEP, KINDS))
    )
    assert at_once.exposed == 3.0
    # The first gathering has nothing to hide behind; nor has the last reduction. Computing is the same.
    assert overlapped.exposed == 1.0
    assert overlapped.computing == at_once.computing == 6.5


def test_the_next_forward_gathers_after_the_optimizer() -> None:
    moments = blocking((0, 0), (1, 1), (1, 2), (3, 3))
    assert told(streamed(moments, sharded("f", "b", "r", "f"))) == "0 w0 1 1+w1 1+2 w2 3+3 w3"


def test_transfers_that_begin_early_enough_are_not_moved() -> None:
    moments = [
        Moment(computed=0, transfer=0, waits=False),
        Moment(computed=0, transfer=1, waits=False),
        Moment(computed=1, transfer=0, waits=True),
        Moment(computed=1, transfer=1, waits=True),
    ]
    assert streamed(moments, sharded("f", "f")) == tuple(moments)


def test_transfers_that_are_not_of_fsdp_are_not_moved() -> None:
    assert streamed(STEP, sharded()) == tuple(STEP)


def test_only_collectives_called_by_fsdp_belong_to_it() -> None:
    assert not of_fsdp()
    fsdp, c10d, model = ({"__name__": name, "of_fsdp": of_fsdp} for name in (FSDP, C10D, "model"))
    for module in (fsdp, c10d, model):
        exec("def call(inner=of_fsdp): return inner()", module)  # noqa: S102  as a module of that name
    assert fsdp["call"]()  # type: ignore[operator]
    assert fsdp["call"](c10d["call"])  # type: ignore[operator]
    assert not fsdp["call"](model["call"])  # type: ignore[operator]  # of a model that it wraps
