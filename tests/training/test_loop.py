"""The life of a launch on a rank, with steps that write down when they are called."""

from __future__ import annotations

import gc
import importlib
import itertools
import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.instruments.clock import Clock, tracers
from pytest_ddpperf.instruments.memory import memory_reader, read_resident
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.interleaving import TurnSlot, run_interleaved
from pytest_ddpperf.launch.launch_run import LaunchResult
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.preloading.imports import ImportWatch
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.phases import MemoryHeadroom
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.strategy import Parallel, Strategy
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.jobs import MIN_GROWTH_STEPS, LaunchJob
from pytest_ddpperf.training.loop import begin_together, headroom_for, met_by_hosts, run_launch, time_steps
from pytest_ddpperf.training.step import Step
from pytest_ddpperf.training.timing import loss_value
from tests.training.workloads import weights_of, workload


def job(step: Any, warmup: int = 2, steps: int = 3) -> LaunchJob:
    return LaunchJob(lambda _ctx: step, None, Settings(), Plan(warmup=warmup, steps=steps))


@pytest.mark.parametrize("threads", [1, 2])
def test_an_interleaved_block_ends_with_a_rest_if_ranks_use_several_threads(
    make_ctx: Any, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    class StopError(Exception):
        pass

    def client(_connection: None, **settings: bool) -> None:
        raise StopError(settings)

    monkeypatch.setattr("pytest_ddpperf.training.loop.TurnClient", client)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    with pytest.raises(StopError, match=f"'threads': {threads > 1}"):
        run_launch(make_ctx(), replace(job(lambda: 0.0), turns=True))


def test_a_launch_reports_its_measurements(make_ctx: Any) -> None:
    losses = iter([9.0, 8.0, 7.0, 6.0, 5.0, *[4.0] * 20])  # two of warm-up, three timed, and those of later passes
    before = time.monotonic()
    report = run_launch(make_ctx(), job(lambda: next(losses)))
    assert report.window is not None
    assert before <= report.window[0] <= report.window[1] - sum(report.step_times)
    assert report.window[1] <= time.monotonic()
    assert report.rank == 0
    assert len(report.step_times) == 3
    assert all(0 < seconds < 1 for seconds in report.step_times)
    assert report.loss == 5.0  # 2 warm-up steps, then the third timed one
    assert report.mean_loss == 6.0
    assert report.learning_rate is None  # nobody knows its optimizer
    assert report.cpu_time is not None
    assert 0 < report.cpu_time < 1
    assert report.memory.keys() == ({"peak_resident"} if read_resident() else set())
    assert len(report.held) == (0 if memory_reader(torch.device("cpu")) is None else MIN_GROWTH_STEPS + 1)
    assert (report.blocks, report.cpu_blocks, report.unseen) == ((), (), None)  # it takes no turns


def test_the_collector_rests_in_timed_steps_only(make_ctx: Any) -> None:
    enabled: list[bool] = []
    assert gc.isenabled()
    run_launch(make_ctx(), job(lambda: enabled.append(gc.isenabled())))
    assert enabled == [True, True, *[False] * (len(enabled) - 2)]
    assert len(enabled) > 5
    assert gc.isenabled()


def test_imports_are_watched_up_to_the_first_timed_step(make_ctx: Any) -> None:
    numbers = itertools.count(1)

    def step() -> None:
        with suppress(ModuleNotFoundError):
            importlib.import_module(f"no_such_module_of_step_{next(numbers)}")

    with ImportWatch() as watch:
        run_launch(make_ctx(), job(step))
    noted = [one.module for one in watch.outer if one.module.startswith("no_such_module_of_step_")]
    assert noted == ["no_such_module_of_step_1", "no_such_module_of_step_2"]
    assert next(numbers) > 5


def trace(*_: object) -> None:
    """Called by Python for each call."""


@pytest.mark.parametrize("begin", [sys.settrace, sys.setprofile, threading.settrace, threading.setprofile])
def test_a_tool_that_traces_timed_steps_is_reported(make_ctx: Any, begin: Callable[[Any], None]) -> None:
    calls = itertools.count()

    def step() -> None:
        if next(calls) == 0:
            begin(trace)

    try:
        report = run_launch(make_ctx(), job(step))
    finally:
        begin(None)
    assert report.tracers == (__name__.partition(".")[0],)


def test_monitoring_tools_count_if_they_ask_for_events() -> None:
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is None:
        pytest.skip("Python 3.12 has it")
    monitoring.use_tool_id(3, "looks on")
    try:
        assert "looks on" not in tracers()
        monitoring.set_events(3, monitoring.events.PY_START)
        assert "looks on" in tracers()
    finally:
        monitoring.set_events(3, 0)
        monitoring.free_tool_id(3)


def test_ranks_meet_when_their_devices_have_done_their_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo's barrier waits for hosts alone, and a launch that waits for its turn must not disturb another one's."""
    events: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append(f"{device} settles"))
    monkeypatch.setattr(torch.distributed, "barrier", lambda **_group: events.append("meet"))
    turns: Any = SimpleNamespace(
        rest=lambda: events.append("threads rest"), wait=lambda part: events.append(f"turn at {part}")
    )
    step: Any = SimpleNamespace(group=None)
    begin_together(torch.device("cuda", 1), turns, step, 0.5)
    begin_together(torch.device("cpu"), None, step)
    assert events == ["cuda:1 settles", "threads rest", "meet", "turn at 0.5", "meet", "meet"]


def test_a_loss_that_is_not_finite_stops_the_warm_up(make_ctx: Any) -> None:
    losses = iter([1.0, 1.0, math.nan])
    with pytest.raises(WorkloadError, match=r"^loss is nan at warm-up step 3 on rank 1, .* learning rate"):
        run_launch(make_ctx(rank=1, world_size=2), job(lambda: torch.tensor(next(losses)), warmup=5))


def test_a_step_is_closed_if_it_fails(make_ctx: Any) -> None:
    closed: list[int] = []

    def step() -> str:
        return "done"

    step.close = lambda: closed.append(1)  # type: ignore[attr-defined]  # what a user may give to a function
    with pytest.raises(
        WorkloadError, match="the step returned a value of type str at warm-up step 1 on rank 0: return"
    ):
        run_launch(make_ctx(), job(step))
    assert closed == [1]


@pytest.mark.parametrize(
    ("loss", "value"), [(None, None), (2, 2.0), (0.25, 0.25), (torch.tensor(0.5), 0.5), (torch.tensor([[3]]), 3.0)]
)
def test_losses_are_numbers_scalar_tensors_or_none(loss: Any, value: float | None) -> None:
    assert loss_value(loss, "now") == value
    with pytest.raises(WorkloadError, match=r"a value of type Tensor and shape \(2, 3\) now"):
        loss_value(torch.ones(2, 3), "now")


def test_two_ranks_measure_a_workload(launcher: Launcher) -> None:
    given = LaunchJob(workload(tokens_per_step=32), resolve("naive"), Settings(), Plan(warmup=2, steps=4))
    reports = launcher.run(run_launch, given, world_size=2, backend="gloo", device="cpu").values
    assert [(report.rank, len(report.step_times)) for report in reports] == [(0, 4), (1, 4)]
    assert [(report.samples_per_step, report.tokens_per_step) for report in reports] == [(4, 32), (4, 32)]
    assert [report.learning_rate for report in reports] == [0.1, 0.1]
    assert reports[0].loss != reports[1].loss  # each has data of its own
    assert all(report.loss is not None and 0 < report.loss < 1 for report in reports)


def test_interleaved_ranks_wait_for_each_other_on_their_hosts(make_ctx: Any) -> None:
    alone = Step(run=lambda: None, samples_per_step=None, tokens_per_step=None, close=lambda: None)
    assert met_by_hosts(make_ctx(), alone) is alone
    group = met_by_hosts(replace(make_ctx(), backend="nccl"), alone).group
    assert group is not None
    assert dist.get_backend(group) == "gloo"


def overflowing(*numbers: float, **plan: int) -> LaunchJob:
    """Two steps of warm-up and three timed ones on these numbers, in fp16."""
    steps = {"warmup": 2, "steps": 3, **plan}
    return LaunchJob(weights_of(*numbers), resolve("single"), Settings(precision="fp16"), Plan(**steps))


def test_timed_steps_that_overflowed_are_omitted_and_counted(make_ctx: Any) -> None:
    """The first number is of the warm-up, so only the fourth counts."""
    report = run_launch(make_ctx(), overflowing(1e35, 1, 1, 1e35, 1))
    assert (len(report.step_times), report.skipped_steps) == (2, (1,))
    with pytest.raises(WorkloadError, match=r"^fp16 gradients overflowed in 3 of 3 timed steps, so.*raise the warm-up"):
        run_launch(make_ctx(), overflowing(1, 1, 1e35, 1e35, 1e35))


def in_turn(launcher: Launcher, given: LaunchJob, world_size: int) -> list[RankLaunch]:
    """What the ranks of a launch report that asks for turns, and is given each of them at once."""

    def launch(turns: TurnSlot) -> LaunchResult[RankLaunch]:
        beside = replace(given, turns=True)
        return launcher.run(run_launch, beside, world_size=world_size, backend="gloo", device="cpu", turns=turns)

    (result,) = run_interleaved([launch], launcher.abort)
    return list(result.values)


def test_interleaved_steps_are_timed_in_blocks(launcher: Launcher) -> None:
    """A step's loss is its number: two of warm-up, and 13 in six blocks."""

    def build(_ctx: RankContext) -> Any:
        number = itertools.count(1)
        return lambda: next(number)

    reports = in_turn(launcher, LaunchJob(build, None, Settings(), Plan(warmup=2, steps=13)), 2)
    assert [(len(report.step_times), report.loss) for report in reports] == [(13, 2 + 13)] * 2
    for report in reports:
        assert sorted(report.blocks) == [2, 2, 2, 2, 2, 3]
        assert len(report.cpu_blocks) == 6
        assert report.cpu_time is not None
        work = sum(one * size for one, size in zip(report.cpu_blocks, report.blocks, strict=True))
        assert work == pytest.approx(13 * report.cpu_time)


def on_a_device(
    ctx: RankContext, monkeypatch: pytest.MonkeyPatch, *, seen: float, skipped: tuple[int, ...] = ()
) -> RankLaunch:
    """What is told of 13 steps of a second on a device whose events see a part of each; 12 steps of warm-up."""
    now = 0.0
    clock = Clock(
        settle=lambda: None,
        mark=lambda: now * seen,
        seconds=lambda marks: tuple(after - before for before, after in itertools.pairwise(marks)),
        wall=lambda: now,
    )
    monkeypatch.setattr("pytest_ddpperf.training.loop.clock_for", lambda *_, **__: clock)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)

    def run() -> float:
        nonlocal now
        now += 1.0
        return 0.5

    step = Step(
        run=run,
        samples_per_step=None,
        tokens_per_step=None,
        close=lambda: None,
        skipped_steps=[12 + n for n in skipped],
    )
    on_gpu = replace(ctx, device=torch.device("cuda", 0))
    return time_steps(on_gpu, job(run, warmup=12, steps=13), step, warmup=12, turns=None)


def test_steps_on_a_device_are_reported_in_blocks(make_ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five steps or more. One that overflowed is left out of its block."""
    seeing = on_a_device(make_ctx(), monkeypatch, seen=1.0)
    assert (seeing.step_times, seeing.blocks, seeing.unseen) == ((1.0,) * 13, (6, 7), 0.0)
    assert (seeing.loss, seeing.mean_loss) == (0.5, None)
    skipping = on_a_device(make_ctx(), monkeypatch, seen=1.0, skipped=(0, 7, 8))
    assert (skipping.step_times, skipping.blocks) == ((1.0,) * 10, (5, 5))
    blind = on_a_device(make_ctx(), monkeypatch, seen=0.25)  # its events miss work
    assert (blind.step_times, blind.unseen) == ((1.0,) * 13, 0.75)


def test_memory_of_a_launch_includes_the_objects_sent_with_its_function(launcher: Launcher) -> None:
    """96 MiB that are there before the step is built, so that its peak is not above them."""
    brought = bytes(96 * 2**20)

    def build(_ctx: RankContext) -> Any:
        return lambda: float(brought[0])

    given = LaunchJob(build, None, Settings(), Plan(warmup=1, steps=5), growth=False, diagnosed=False)
    (report,) = launcher.run(run_launch, given, world_size=1, backend="gloo", device="cpu").values
    assert report.taken is not None
    assert report.taken > 96 * 2**20
    assert report.memory["peak_resident"] < 48 * 2**20


def test_ranks_with_background_threads_or_processes_report_them(launcher: Launcher) -> None:
    """A thread on one rank, a process that loads data on another; the third has none."""

    def build(ctx: RankContext) -> Any:
        if ctx.rank == 0:
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        data = torch.utils.data.TensorDataset(torch.zeros(100, 1))
        batches = iter(torch.utils.data.DataLoader(data, num_workers=int(ctx.rank == 1)))
        return lambda: len(next(batches))

    given = LaunchJob(build, None, Settings(), Plan(warmup=1, steps=2))
    reports = launcher.run(run_launch, given, world_size=3, backend="gloo", device="cpu").values
    assert [report.background for report in reports] == [True, True, False]


def test_skipped_steps_are_numbered_over_all_blocks(launcher: Launcher) -> None:
    """Two steps of warm-up and two blocks of two timed ones: the first of the second block overflows.

    Blocks that lost steps have no partners in the other launch, so none is told.
    """
    given = overflowing(1e35, 1, 1, 1, 1e35, 1, steps=4)
    (report,) = in_turn(launcher, given, 1)
    assert len(report.step_times) == 3
    assert report.skipped_steps == (2,)
    assert (report.blocks, report.cpu_time, report.cpu_blocks) == ((), None, ())


def steps_of_a_diagnosis(make_ctx: Any, **changed: Any) -> tuple[int, RankLaunch]:
    """How many steps a launch calls besides the warm-up and the timed ones, and what it reports."""
    calls: list[int] = []
    given = replace(job(lambda: calls.append(1)), **changed)
    report = run_launch(make_ctx(), given)
    return len(calls) - given.plan.warmup - given.plan.steps, report


def test_a_diagnosing_launch_times_one_step_and_follows_the_plan_of_the_launches_it_stands_for(make_ctx: Any) -> None:
    """Twenty steps for memory, as beside launches of many, and five that are taken apart after one that leads in.

    One that stands for itself has seven, the fewest, and takes apart the three that it times.
    """
    beside, report = steps_of_a_diagnosis(make_ctx, plan=Plan(warmup=2, steps=1), stands_for=40)
    assert len(report.step_times) == 1
    assert report.phases is not None
    assert {len(times) for times in report.phases.seconds.values()} == {5}
    own, alone = steps_of_a_diagnosis(make_ctx, plan=Plan(warmup=2, steps=3))
    assert alone.phases is not None
    assert {len(times) for times in alone.phases.seconds.values()} == {3}
    assert beside - own == (20 - 7) + (5 - 3)


def test_a_diagnosing_launch_accepts_a_step_that_overflows(make_ctx: Any) -> None:
    """The launches that it stands for do without the first of their steps, which overflows; so may it."""
    given = replace(overflowing(1, 1, BIG, *ROOM, steps=10), growth=False)
    assert len(run_launch(make_ctx(), given).step_times) == 9
    run_launch(make_ctx(), replace(given, plan=Plan(warmup=2, steps=1), stands_for=10))


def test_scheduling_is_a_section_of_the_optimizers_phase(make_ctx: Any) -> None:
    constant = workload(scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0))
    for subject, sections in ((workload(), []), (constant, [("lr_scheduling", 1.0)])):
        given = LaunchJob(subject, Strategy("single"), Settings(), Plan(warmup=1, steps=3), growth=False)
        phases = run_launch(make_ctx(), given).phases
        assert phases is not None
        assert [(section.path, section.count) for section in phases.sections] == sections
        for section in phases.sections:
            assert all(0 < own < whole for own, whole in zip(section.seconds, phases.seconds["optimizer"], strict=True))


BIG = 1e35
ROOM = [1.0] * 40


def in_periods(*numbers: float, steps: int) -> LaunchJob:
    """The same by a strategy that does something every second step only."""

    def every_second(module: torch.nn.Module, _ctx: Any) -> Parallel:
        return Parallel(module, period=2)

    return replace(overflowing(*numbers, *ROOM, steps=steps), strategy=Strategy(every_second))


def test_a_period_with_an_overflowed_step_is_omitted_as_a_whole(make_ctx: Any) -> None:
    """Of three pairs the second: its other step would be in a pair with one of the third."""
    report = run_launch(make_ctx(), in_periods(1, 1, 1, 1, 1, BIG, 1, 1, steps=6))
    assert len(report.step_times) == 2
    assert report.skipped_steps == (3,)
    with pytest.raises(WorkloadError, match="in 2 of 4 timed steps, at least one in each update of 2 steps, so"):
        run_launch(make_ctx(), in_periods(1, 1, BIG, 1, 1, BIG, steps=4))


def test_a_step_that_overflowed_is_not_divided_into_phases(make_ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of warm-up and three timed ones; of the next four, the first of which is for memory, one overflows."""
    seen: list[Any] = []
    diagnosis = importlib.import_module("pytest_ddpperf.instruments.phases.diagnosed_steps")
    real = diagnosis.diagnose

    def seen_too(*args: Any) -> Any:
        seen.append(real(*args))
        return seen[-1]

    monkeypatch.setattr(diagnosis, "diagnose", seen_too)
    given = replace(overflowing(1, 1, 1, 1, 1, 1, 1, BIG, *ROOM), growth=False)
    assert run_launch(make_ctx(), given).phases is seen[-1]
    assert len(seen) == 2


def test_compiling_inside_the_timed_steps_is_refused(make_ctx: Any) -> None:
    """The fourth step, a timed one, has a shape of its own."""

    def build(_ctx: Any) -> Any:
        twice = torch.compile(lambda tensor: tensor * 2, backend="eager", dynamic=False)
        sizes = iter([3, 3, 3, 5, 3])
        return lambda: twice(torch.ones(next(sizes))).sum()

    torch._dynamo.reset()
    with pytest.raises(WorkloadError, match=r"compiled 1 graph inside the timed steps.*raise the warm-up"):
        run_launch(make_ctx(), LaunchJob(build, None, Settings(), Plan(warmup=2, steps=3)))


def test_if_free_memory_is_unknown_it_is_assumed_to_suffice(make_ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ddpperf.instruments.host.available_memory", lambda: None)
    assert headroom_for(2**50, make_ctx()).enough
    assert MemoryHeadroom(needed=75, free=75).enough
    assert not MemoryHeadroom(needed=76, free=75).enough
