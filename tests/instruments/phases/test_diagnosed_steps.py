"""Phases of real steps, the breakdown of traces, and the rates of a device in simple work."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from pytest_ddpperf.instruments.phases import diagnosed_steps
from pytest_ddpperf.instruments.phases.diagnosed_steps import break_down, diagnose
from pytest_ddpperf.instruments.phases.recorder import Recorder, Section
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.phases import PHASES, MemoryUse, PhaseTimes
from tests.factories import SHARDS_ON_CPU, runnable


def taken_apart(recorder: Recorder, run: Callable[[], None], times: Iterable[float], steps: int = 1) -> PhaseTimes:
    trace = recorder.record(run, steps, iter(times).__next__)
    return break_down(trace, [after - before for before, after in pairwise(trace.marks)])


def within(recorder: Recorder, phase: str, *inside: Callable[[], None]) -> None:
    before = recorder.enter(phase)
    for one in inside:
        one()
    if before is not None:
        recorder.go(before)


def section(recorder: Recorder, name: str, *inside: Callable[[], None]) -> None:
    before = recorder.enter_section(name)
    for one in inside:
        one()
    assert before is not None
    recorder.go(before)


def seconds(found: PhaseTimes, step: int = 0) -> dict[str, float]:
    """Of the phases that took any time."""
    return {phase: times[step] for phase, times in found.seconds.items() if times[step]}


def test_time_belongs_to_the_innermost_phase() -> None:
    """Marks: begin 0, forward 1 to 3, backward 7 to 15, end 31. Other: 1 + 4 + 16."""
    recorder = Recorder()

    def run() -> None:
        within(recorder, "forward")
        within(recorder, "backward")

    found = taken_apart(recorder, run, [0, 1, 3, 7, 15, 31])
    assert tuple(found.seconds) == PHASES
    assert seconds(found) == {"forward": 2, "backward": 8, "other": 21}
    assert found.step_times == (31,)
    assert found.sections == ()
    assert found.memory == {}


def test_steps_follow_each_other_without_a_gap() -> None:
    """Three marks a step, of which the first is the end of the one before: 1 + 3 + 0, 5 + 7 + 4."""
    recorder = Recorder()
    found = taken_apart(recorder, lambda: within(recorder, "optimizer"), [0, 1, 4, 4, 9, 16, 20], steps=2)
    assert found.step_times == (4, 16)
    assert seconds(found, 0) == {"optimizer": 3, "other": 1}
    assert seconds(found, 1) == {"optimizer": 7, "other": 9}


def test_a_phase_nested_in_its_own_phase_adds_no_mark() -> None:
    """A recomputed module and a bucket that is sent in backward: backward from 1 to 8, whole."""
    recorder = Recorder()

    def run() -> None:
        within(
            recorder,
            "backward",
            lambda: within(recorder, "forward"),
            lambda: within(recorder, "gradient_sync"),
            lambda: within(recorder, "backward"),
        )

    assert seconds(taken_apart(recorder, run, [0, 1, 8, 10])) == {"backward": 7, "other": 3}


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("forward", "data_wait"),
        ("forward", "backward"),  # a module that is a whole step
        ("forward", "optimizer"),
        ("optimizer", "forward"),
        ("optimizer", "backward"),
        ("backward", "optimizer"),
    ],
)
def test_the_inner_phase_has_the_time(outer: str, inner: str) -> None:
    """Outer 1 to 15, inner 3 to 7 in it: 4 of 14."""
    recorder = Recorder()
    found = taken_apart(
        recorder, lambda: within(recorder, outer, lambda: within(recorder, inner)), [0, 1, 3, 7, 15, 31]
    )
    assert seconds(found) == {outer: 10, inner: 4, "other": 17}


def test_sections_share_the_time_with_the_phases_around_them() -> None:
    """Marks: outer 1, inner 3, out of it 7, forward 15, inner 31, out of it 63, of forward 127, of outer 255, end 511.

    Inner is 4, then 32; outer is 254, of which 36 are inner's. Forward is 127 - 15, inner's 32 included.
    """
    recorder = Recorder()

    def inner() -> None:
        section(recorder, "inner")

    def run() -> None:
        section(recorder, "outer", inner, lambda: within(recorder, "forward", inner))

    found = taken_apart(recorder, run, [0, 1, 3, 7, 15, 31, 63, 127, 255, 511])
    assert [(section.path, section.count, section.seconds, section.own_seconds) for section in found.sections] == [
        ("outer", 1, (254,), (218,)),
        ("outer/inner", 2, (36,), (0 + 36,)),
    ]
    assert seconds(found) == {"forward": 112, "other": 399}


def test_a_section_counts_its_entries_per_step_and_not_the_returns_to_it() -> None:
    """Three entries of `outer` in two steps, each with one of `inner`: 1.5 a step."""
    recorder = Recorder()
    entries = iter([1, 2])

    def run() -> None:
        for _ in range(next(entries)):
            section(recorder, "outer", lambda: section(recorder, "inner"))

    found = taken_apart(recorder, run, range(15), steps=2)
    assert [(section.path, section.count, section.seconds) for section in found.sections] == [
        ("outer", 1.5, (3, 6)),
        ("outer/inner", 1.5, (1, 2)),
    ]


def test_a_section_named_like_a_phase_is_that_phase() -> None:
    """Backward, which would keep a module's forward, does not keep what the user calls so: 3 to 7."""
    recorder = Recorder()
    found = taken_apart(
        recorder, lambda: within(recorder, "backward", lambda: section(recorder, "forward")), [0, 1, 3, 7, 15, 31]
    )
    assert seconds(found) == {"forward": 4, "backward": 10, "other": 17}
    assert [(section.path, section.seconds) for section in found.sections] == [("forward", (4,))]


def test_an_open_phase_ends_with_the_section_around_it_or_with_the_step() -> None:
    """The optimizer of the section is left open from 3 to 7, where the section ends; the second one at 15 to 31."""
    recorder = Recorder()

    def run() -> None:
        section(recorder, "mine", lambda: (recorder.enter("optimizer"), None)[1])
        recorder.enter("optimizer")

    found = taken_apart(recorder, run, [0, 1, 3, 7, 15, 31, 32, 33, 34, 35, 36], steps=2)
    assert seconds(found, 0) == {"optimizer": 20, "other": 11}
    assert seconds(found, 1) == {"optimizer": 2, "other": 3}


def test_memory_of_a_phase_excludes_its_sections_and_memory_of_a_section_is_complete() -> None:
    """Readings: 100, forward 110, section 130, out of it 150, out of forward 120, end 121; then the peaks before each.

    Forward: 130 - 110 + 120 - 150 around the section, hence -10, and at most 190; other: 10 + 1.
    """
    recorder = Recorder()
    readings = [(100, 0), (110, 115), (130, 190), (150, 160), (120, 155), (121, 125)]
    trace = recorder.record(
        lambda: within(recorder, "forward", lambda: section(recorder, "mine")), 1, iter(readings).__next__
    )
    found = break_down(trace, [1.0] * 5, ("allocated", trace))
    assert found.memory == {
        "other": MemoryUse(kind="allocated", change=11, peak=125),
        "forward": MemoryUse(kind="allocated", change=10, peak=190),
    }
    assert [section.memory for section in found.sections] == [MemoryUse(kind="allocated", change=20, peak=160)]
    trace = recorder.record(lambda: None, 1, iter([(5, None), (5, None)]).__next__)
    assert break_down(trace, [1.0], ("heap", trace)).memory == {"other": MemoryUse(kind="heap", change=0, peak=None)}


CPU = torch.device("cpu")
MIB = 2**20
LATE = 0.05  # seconds
LATE_STEPS = 5  # of which one has to be let alone by whatever else the machine does


def test_the_phases_of_a_step_add_up_to_it() -> None:
    """To what a clock around the step says, within 2 %: in the middle of the steps, for any one may be interrupted.

    One step more runs than is timed.
    """
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
    assert median(ratios) == pytest.approx(1, abs=0.02)
    assert tuple(found.seconds) == PHASES
    for phase in ("data_wait", "forward", "backward", "optimizer", "other"):
        assert min(found.seconds[phase]) > 0
    assert found.seconds["gradient_sync"] == (0.0,) * 12
    assert max(found.seconds["other"]) < max(found.step_times)


def test_sections_of_the_user_have_their_time_and_the_memory_that_they_keep() -> None:
    kept: list[torch.Tensor] = []

    def run() -> None:
        with Section("outer"), Section("inner"):
            kept.append(torch.empty(4 * MIB, dtype=torch.uint8))

    outer, inner = diagnose(run, 3, CPU).sections
    assert (outer.path, outer.count, inner.path, inner.count) == ("outer", 1, "outer/inner", 1)
    assert all(0 < inside < whole for whole, inside in zip(outer.seconds, inner.seconds, strict=True))
    if inner.memory is not None:
        assert inner.memory.change == pytest.approx(4 * MIB, abs=MIB // 4)


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
        found = diagnose(run, 4, CPU)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs > 0
    assert min(found.seconds["backward"]) > 0
    assert not any(found.seconds["optimizer"])


def on_two_ranks(ctx: RankContext) -> dict[str, PhaseTimes]:
    """Steps of several kinds, all with the same group; rank 1 begins each of `late` 50 ms after rank 0."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    def trained(model: Any, *, synchronise: bool = False) -> PhaseTimes:
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
        **({"fsdp2": trained(fully_shard(nn.Linear(8, 8), mesh=mesh))} if SHARDS_ON_CPU else {}),
    }


def test_steps_of_two_ranks_are_divided_into_phases(launcher: Launcher) -> None:
    first, second = launcher.run(on_two_ranks, world_size=2, backend="gloo", device="cpu", timeout=60).values
    for rank in (first, second):
        assert min(rank["async"].seconds["gradient_sync"]) > 0
        for wrapped in runnable(["ddp", "fsdp1", "fsdp2"]):
            seconds: Any = rank[wrapped].seconds
            assert min(map(min, (seconds["forward"], seconds["backward"], seconds["optimizer"]))) > 0
            assert not any(seconds["gradient_sync"])  # it is sent in forward, in backward and by the optimizer
    # The one who comes early waits for the other: the wait is not of any phase that computes.
    assert max(first["late"].seconds["gradient_sync"]) > 0.8 * LATE
    assert min(second["late"].seconds["gradient_sync"]) < 0.8 * LATE
    assert min(second["late"].seconds["other"]) > 0.9 * LATE  # it slept for at least that, in each step


def test_rates_follow_from_the_shortest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosed_steps, "_shortest", lambda work, _device: [work(), 0.5][1])
    found = diagnosed_steps.read_rates(CPU)
    assert found is not None
    assert found.products == 2 * 512**3 / 0.5
    assert found.copies == 2 * (32 << 20) / 0.5
    assert found.operator == 0.5 / 120


def test_the_small_step_calls_as_many_operators_as_documented() -> None:
    step = diagnosed_steps._small_step(CPU)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profiler:
        step()
    names = Counter(event.name for event in profiler.events())
    computing = ("aten::mm", "aten::tanh", "aten::tanh_backward", "aten::add", "aten::add_")
    # The inputs of the first layer need no gradient, and its weight has no earlier gradient to add to.
    assert sum(names[name] for name in computing) == pytest.approx(
        diagnosed_steps._OPERATORS * diagnosed_steps._LAYERS, abs=2
    )


def test_without_enough_memory_there_are_no_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosed_steps, "_COPIED", {"cpu": 1 << 60})
    assert diagnosed_steps.read_rates(CPU) is None


def test_no_random_number_is_drawn() -> None:
    state = torch.random.get_rng_state()
    assert diagnosed_steps.read_rates(CPU, "bf16") is not None
    assert torch.equal(torch.random.get_rng_state(), state)
