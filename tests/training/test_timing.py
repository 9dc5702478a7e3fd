"""Untimed steps of a warm-up, and blocks of timed steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch

from pytest_ddpperf.instruments.clock import Clock, clock_for
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training import timing
from pytest_ddpperf.training.jobs import LaunchJob, PrepareJob
from pytest_ddpperf.training.loop import run_launch
from pytest_ddpperf.training.preparing import prepare_launch
from pytest_ddpperf.training.timing import device_sizes, turn_sizes


def between(marks: Any) -> tuple[float, ...]:
    return tuple(after - before for before, after in pairwise(marks))


def test_a_block_is_marked_before_the_first_step_and_after_each() -> None:
    """The marks tell the number of steps done so far, squared: 0, 1, 4, 9. Their differences are 1, 3, 5."""
    events: list[str] = []

    def run() -> int:
        events.append("step")
        return events.count("step")

    def mark() -> float:
        events.append("mark")
        return float(events.count("step") ** 2)

    clock = Clock(settle=lambda: events.append("settle"), mark=mark, seconds=between)
    assert timing.timed_block(run, 3, clock) == ((1.0, 3.0, 5.0), 3)
    assert events == ["settle", "mark", "step", "mark", "step", "mark", "step", "mark"]


def test_losses_are_kept_without_their_graphs_and_tensors() -> None:
    weight = torch.ones(1, requires_grad=True)
    clock = Clock(settle=lambda: None, mark=lambda: 0.0, seconds=between)
    losses: list[Any] = []
    view_of_much = torch.full((100, 100), 5.0)[0, 0]
    results = iter([weight * 2, view_of_much, 3.0, None])
    timing.timed_block(lambda: next(results), 4, clock, losses)
    assert losses == [2.0, 5.0, 3.0, None]
    assert [type(loss) for loss in losses] == [float, float, float, type(None)]
    refused = iter([weight.expand(2) * 2])
    timing.timed_block(lambda: next(refused), 1, clock, losses)
    assert (losses[-1].shape, losses[-1].requires_grad) == ((2,), False)


def test_the_time_of_one_step_in_a_period_is_divided_among_its_steps() -> None:
    """1, 1, 4 twice is 2 twice; the seventh step begins a period that does not end."""
    assert timing.by_period((1, 1, 4, 1, 1, 4, 9), 3) == (2, 2)
    assert timing.by_period((1, 3), 3) == (2,)


@pytest.mark.parametrize(
    ("divide", "steps", "period", "sizes"),
    [
        pytest.param(turn_sizes, 184, 1, (4,) * 41 + (5,) * 4, id="a second of 5 ms steps"),
        pytest.param(turn_sizes, 15, 1, (2,) * 6 + (3,), id="a second of 70 ms steps: blocks of two or more"),
        pytest.param(turn_sizes, 3, 1, (3,), id="not divided"),
        pytest.param(turn_sizes, 40, 4, (8,) * 5, id="blocks are whole periods"),
        pytest.param(turn_sizes, 4, 4, (4,), id="one period"),
        pytest.param(device_sizes, 1003, 1, (100,) * 7 + (101,) * 3, id="ten blocks of a long launch on a device"),
        pytest.param(device_sizes, 23, 1, (5, 6, 6, 6), id="five steps or more, so that it falls behind"),
        pytest.param(device_sizes, 4, 1, (4,), id="one block on a device"),
        pytest.param(device_sizes, 64, 8, (8,) * 8, id="whole periods on a device"),
        pytest.param(device_sizes, 60, 2, (6,) * 10, id="periods of two on a device"),
    ],
)
def test_steps_are_timed_in_blocks(
    divide: Callable[[int, int], tuple[int, ...]], steps: int, period: int, sizes: tuple[int, ...]
) -> None:
    blocks = divide(steps, period)
    assert sorted(blocks) == list(sizes)
    assert sum(blocks) == steps


def test_every_block_waits_until_it_may_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still but for the steps, of which the n-th takes n seconds."""
    events: list[str] = []
    steps, now = count(), [0.0]

    def run() -> int:
        number = next(steps)
        events.append(str(number))
        now[0] += number
        return number

    clock = Clock(settle=lambda: None, mark=lambda: now[0], seconds=between)
    at_work = iter([1.0, 1.5, 10.0, 10.25])  # before and after each block
    monkeypatch.setattr(timing, "time", SimpleNamespace(process_time=lambda: next(at_work)))
    timed = timing.timed_blocks(run, (2, 1), clock, lambda part: events.append(f"begin {part}"))
    assert (timed.seconds, timed.loss) == ((0.0, 1.0, 2.0), 2)
    assert timed.cpu == (0.5 + 0.25) / 3
    assert timed.cpu_blocks == (0.5 / 2, 0.25 / 1)
    assert events == ["begin 0.0", "0", "1", "begin 0.5", "2"]


def test_ranks_synchronise_before_a_block_after_their_devices_have_finished_the_leading_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    clock = Clock(settle=lambda: events.append("settle"), mark=lambda: 0.0, seconds=between)
    monkeypatch.setattr(timing, "clock_for", lambda *_, **__: clock)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: events.append("meet"))
    timing._block(lambda: events.append("step"), 2, 1, torch.device("cpu"))
    assert events == ["step", "settle", "meet", "settle", "step", "step"]


class Device:
    """A clock whose marks see a part of the work only, and steps of a second of wall time."""

    def __init__(self, seen: float, step: float = 1.0) -> None:
        self.now, self.seen, self.step = 0.0, seen, step
        self.events: list[str] = []
        self.clock = Clock(
            settle=lambda: self.events.append("settle"), mark=self.mark, seconds=self.seconds, wall=self.wall
        )

    def mark(self) -> float:
        self.events.append("mark")
        return self.now * self.seen

    def wall(self) -> float:
        self.events.append("wall")
        return self.now

    def seconds(self, marks: Any) -> tuple[float, ...]:
        self.events.append("read")
        return between(marks)

    def run(self) -> None:
        self.now += self.step
        self.step *= 1.5


@pytest.mark.parametrize(
    ("seen", "step", "seconds", "missed"),
    [
        pytest.param(1.0, 1.0, (1.0, 1.5), [], id="all"),
        pytest.param(0.96, 1.0, (0.96, 1.44), [], id="4 % less are the host's way to the device"),
        pytest.param(0.9, 1.0, (1.25, 1.25), [0.1], id="10 % less: of another stream"),
        pytest.param(1.1, 1.0, (1.25, 1.25), [0.1], id="10 % more: events that were not recorded"),
        pytest.param(0.5, 0.0004, (0.0002, 0.0003), [], id="half a millisecond of a short block"),
    ],
)
def test_if_events_miss_work_of_a_block_its_wall_time_counts(
    seen: float, step: float, seconds: tuple[float, ...], missed: list[float]
) -> None:
    """The wall time is read at the borders alone, where the device has done its work."""
    device = Device(seen, step)
    times, _ = timing.timed_block(device.run, 2, device.clock)
    assert times == pytest.approx(seconds)
    assert device.clock.missed == pytest.approx(missed)
    assert device.events == ["settle", "wall", "mark", "mark", "mark", "settle", "wall", "read"]


def test_events_of_a_script_are_compared_with_wall_time_too() -> None:
    """Its own thread makes the marks."""
    device = Device(seen=0.0)

    def marked(steps: int, mark: Any) -> list[Any]:
        marks = [mark()]
        for _ in range(steps):
            device.run()
            marks.append(mark())
        return marks

    run: Any = type("Steps", (), {"marked": staticmethod(marked)})()
    assert timing.timed_block(run, 2, device.clock) == ((1.25, 1.25), None)
    assert device.clock.missed == [1.0]


@pytest.mark.gpu
def test_events_of_a_gpu_miss_the_work_of_a_stream_that_nothing_waits_for() -> None:
    """20 million cycles are 10 ms, on its current stream or on another one."""
    device, cuda = torch.device("cuda", 0), cast("Any", torch.cuda)  # torch leaves some of it untyped
    other = cuda.Stream(device)

    def aside() -> None:
        with cuda.stream(other):
            cuda._sleep(20_000_000)

    for run, missed in ((aside, True), (lambda: cuda._sleep(20_000_000), False)):
        clock = clock_for(device, marks=6)
        seconds, _ = timing.timed_block(run, 5, clock)
        assert min(seconds) > 0.001
        assert bool(clock.missed) is missed


Launch = Callable[[RankContext, LaunchJob], RankLaunch]


def warmed_up_for_half_a_second(ctx: RankContext, steps: int, launch: Launch) -> tuple[int, float | None, int]:
    """The steps of a warm-up of 12 and half a second, the loss that is told, and the timed steps.

    A step's loss is its number. It takes 0.1 s on rank 0, and 0.02 s on rank 1.
    """
    now, timed, length = 0.0, [], (0.1, 0.02)[ctx.rank]
    numbers = itertools.count(1)

    def step() -> torch.Tensor:
        nonlocal now
        now += length
        timed.append(next(numbers))
        return torch.tensor(float(timed[-1]))

    job = LaunchJob(lambda _ctx: step, None, Settings(), Plan(warmup=12, steps=steps), growth=False, diagnosed=False)
    with (
        patch.object(timing, "time", SimpleNamespace(monotonic=lambda: now, process_time=lambda: now)),
        patch.object(timing, "warmup_seconds", lambda *_: 0.5),
    ):
        report = launch(ctx, job)
    return timed[-1] - steps, report.loss, len(report.step_times)


def prepared(ctx: RankContext, job: LaunchJob) -> RankLaunch:
    timed = prepare_launch(ctx, PrepareJob(job, timed=True)).timed
    assert timed is not None
    return timed


def warm_ups(ctx: RankContext) -> list[tuple[int, float | None, int]]:
    return [warmed_up_for_half_a_second(ctx, *case) for case in ((5, run_launch), (40, run_launch), (5, prepared))]


def test_ranks_agree_on_the_end_of_the_warm_up_and_report_the_loss_of_the_planned_step(launcher: Launcher) -> None:
    """Rank 1 has done 26 steps 0.5 s after its first one; the warm-up goes on by five steps, from 12 to 27.

    The loss is that of step 12 + 5, which was one of the warm-up, or of 12 + 40, which was timed: so losses of launches
    are comparable, however long their warm-ups are. Nobody reads the loss of a launch that prepares: it is of its last
    step.
    """
    for rank in launcher.run(warm_ups, world_size=2, backend="gloo", device="cpu").values:
        assert rank == [(27, 17.0, 5), (27, 52.0, 40), (27, 32.0, 5)]


def test_only_launches_on_cuda_whose_times_matter_are_warmed_up_for_long() -> None:
    job = LaunchJob(lambda _ctx: print, None, Settings(), Plan(warmup=1, steps=1))
    probe = LaunchJob(lambda _ctx: print, None, Settings(), Plan(warmup=1, steps=1), times_matter=False)
    cuda, cpu = torch.device("cuda", 0), torch.device("cpu")
    assert [timing.warmup_seconds(*case) for case in ((cuda, job), (cuda, probe), (cpu, job))] == [0.5, 0.0, 0.0]


def test_the_loss_that_is_kept_outlives_a_step_that_overwrites_it() -> None:
    """As a CUDA graph does, which has one place for the loss of all steps."""
    place, kept = torch.zeros((), requires_grad=True), list[Any]()
    numbers = itertools.count(1)
    run = timing.keeping_loss(lambda: place.data.fill_(next(numbers)) * 1 and place, 2, kept)
    for _ in range(4):
        run()
    assert (kept, kept[0].requires_grad) == ([torch.tensor(2.0)], False)
    timing.keeping_loss(lambda: 0.5, 1, kept)()
    timing.keeping_loss(lambda: None, 1, kept)()
    assert kept[1:] == [0.5, None]
