"""Control steps: they alternate with blocks of timed steps, and nothing else of a launch sees them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_ddpperf import Script
from pytest_ddpperf.instruments.clock import CPU_CLOCK
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.control import PRODUCTS, ControlStep
from pytest_ddpperf.training.jobs import RUN_LAUNCH, ControlPlan, LaunchJob, control_plan
from pytest_ddpperf.training.loop import run_launch
from tests.training.workloads import linear_workload


@pytest.mark.parametrize(
    ("steps", "length", "plan"),
    [
        pytest.param(1000, 0.1, ControlPlan(20, 1), id="50 short steps in a block"),
        pytest.param(100, 2.0, ControlPlan(40, 1), id="two or three steps in a block"),
        pytest.param(10, 20.0, ControlPlan(10, 4), id="long steps, each beside as much control as short ones"),
        pytest.param(5, 0.01, ControlPlan(1, 1), id="one block at least"),
    ],
)
def test_a_control_step_comes_with_every_five_times_its_time(steps: int, length: float, plan: ControlPlan) -> None:
    assert control_plan(steps, length) == plan


def job(step: Callable[[], Any], steps: int, control: ControlPlan | None) -> LaunchJob:
    return LaunchJob(lambda _ctx: step, None, Settings(), Plan(warmup=2, steps=steps), control=control)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One word for each step and each part of a control step, in order."""
    seen: list[str] = []
    multiply = ControlStep._multiply

    def watched(control: ControlStep, times: int) -> None:
        seen.append({1: "lead in", PRODUCTS: "control"}[times])
        assert not gc.isenabled()
        multiply(control, times)

    monkeypatch.setattr(ControlStep, "_multiply", watched)
    return seen


def test_blocks_of_steps_alternate_with_control_steps(make_ctx: Any, events: list[str]) -> None:
    report = run_launch(make_ctx(), job(lambda: events.append("step"), 5, ControlPlan(blocks=3, steps=2)))
    block = ["lead in", "control", "control"]
    timed = [*block, "step", *block, "step", "step", *block, "step", "step"]
    assert events[: 2 + len(timed)] == ["step", "step", *timed]
    assert set(events[2 + len(timed) :]) == {"step"}  # what diagnoses has no control
    assert (len(report.step_times), len(report.control_times)) == (5, 6)
    assert all(seconds > 0 for seconds in report.control_times)
    assert report.blocks == ()


def test_steps_do_not_have_the_time_of_the_control(make_ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that of the clock, nor that of the processor."""
    now = [0.0]

    def takes(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(ControlStep, "_multiply", lambda _control, times: takes(times))
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "process_time", lambda: now[0])
    clock = replace(CPU_CLOCK, mark=lambda: now[0])
    monkeypatch.setattr("pytest_ddpperf.training.loop.clock_for", lambda *_, **__: clock)
    monkeypatch.setattr("pytest_ddpperf.training.control.CPU_CLOCK", clock)
    report = run_launch(make_ctx(), job(lambda: takes(0.25), 4, ControlPlan(blocks=2, steps=1)))
    assert report.step_times == (0.25,) * 4
    assert report.cpu_time == 0.25
    assert report.control_times == (PRODUCTS,) * 2


def test_control_is_the_same_whatever_a_training_sets(make_ctx: Any) -> None:
    """It draws none of its random numbers, and its products keep their precision under autocast."""
    make_ctx()  # makes the group
    state = torch.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        controls = [ControlStep(), ControlStep()]
        for control in controls:
            control.run(1, None, 0.0)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(controls[0]._product, controls[1]._product)
    assert torch.equal(controls[0]._product, controls[0]._left @ controls[0]._right)
    assert not controls[0]._product.requires_grad


def test_ranks_train_the_same_beside_control_steps(launcher: Launcher) -> None:
    plain = LaunchJob(linear_workload(), resolve("ddp"), Settings(), Plan(warmup=2, steps=6))
    controlled = replace(plain, control=ControlPlan(blocks=3, steps=1))
    ways = [
        launcher.run(RUN_LAUNCH, each, world_size=2, backend="gloo", device="cpu").values
        for each in (plain, controlled)
    ]
    assert [[len(rank.control_times) for rank in way] for way in ways] == [[0, 0], [3, 3]]
    assert [rank.loss for rank in ways[0]] == [rank.loss for rank in ways[1]]
    assert all(seconds < 1 for rank in ways[1] for seconds in rank.control_times)


def train() -> None:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


def test_a_script_waits_between_its_steps_for_the_control(launcher: Launcher) -> None:
    """The control's sum is of the group of those who measure, so that the script may end its own."""
    job = LaunchJob(Script(train), None, Settings(), Plan(warmup=2, steps=4), control=ControlPlan(blocks=4, steps=2))
    ranks = launcher.run(RUN_LAUNCH, job, world_size=2, backend="gloo", device="cpu", own_group=True).values
    assert [(len(rank.step_times), len(rank.control_times)) for rank in ranks] == [(4, 8)] * 2
