"""Phases and their parts as named ranges of a profile, in the order in which a step comes to them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import profile

from pytest_ddpperf.instruments.phases.phase_hooks import PhaseHook
from pytest_ddpperf.instruments.phases.ranges import RANGES, Ranges, named_ranges
from pytest_ddpperf.instruments.phases.recorder import Section

PARTS = {*RANGES.values(), "zero_grad", "gradient_clipping", "lr_scheduling", "loss_scaling"}


def nested(run: Callable[[], object], *hooks: PhaseHook, others: tuple[str, ...] = ()) -> tuple[list[str], Ranges]:
    """The ranges of one call, each behind those around it."""
    with named_ranges(lambda: None, hooks) as ranges, profile(acc_events=True) as profiled:
        run()
    found = []
    events = [event for event in profiled.events() or () if event.name in PARTS | {*others}]
    for event in sorted(events, key=lambda event: (event.time_range.start, -event.time_range.end)):
        around = [
            other.name
            for other in events
            if other is not event
            and other.time_range.start <= event.time_range.start
            and event.time_range.end <= other.time_range.end
        ]
        found.append("/".join([*around, event.name]))
    return found, ranges


class Training:
    """A loop written by hand, with a scaled loss, clipping and a schedule."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.5**step)
        self.scaler = torch.amp.GradScaler("cpu")

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.scaler.scale(self.model(torch.ones(2, 4)).sum()).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()


def test_each_part_of_a_step_has_a_range_of_its_own() -> None:
    found, _ = nested(Training())
    assert found == [
        "zero_grad",
        "forward_pass",
        "backward_pass",
        "loss_scaling",
        "gradient_clipping",
        "optimizer_step",
        "loss_scaling",
        "lr_scheduling",
    ]


def test_the_learning_rate_of_each_step_is_noted() -> None:
    training = Training()
    _, ranges = nested(lambda: [training() for _ in range(2)])  # type: ignore[func-returns-value]
    (notes,) = ranges.rates
    assert [rates for _, rates in notes] == [(0.5,), (0.25,)]
    assert notes[0][0] < notes[1][0]


def test_an_optimizer_that_another_one_steps_is_noted_once() -> None:
    training, ranges = Training(), Ranges()
    ranges.note_rates(training.optimizer, (), {})
    ranges.note_rates(Training().optimizer, (), {})
    assert [[rates for _, rates in notes] for notes in ranges.rates] == [[(0.5,)]]


def test_a_part_of_an_optimizer_lies_within_its_range_and_a_collective_within_backward() -> None:
    ranges = Ranges()
    assert ranges.enter("optimizer") == 0
    assert ranges.enter("optimizer") is None
    assert ranges.enter("optimizer", "gradient_clipping") == 1
    assert ranges.enter("gradient_sync") is None
    ranges.go(0)
    assert ranges.enter("backward") == 0
    assert ranges.enter("forward") is None
    assert ranges.enter("gradient_sync") == 1
    ranges.go(0)


def test_sections_of_the_user_are_ranges_and_those_with_the_name_of_a_phase_are_that_phase() -> None:
    def run() -> None:
        with Section("mine"), Section("forward"), Section("forward_pass"):
            pass
        with Section("lr_scheduling"):
            pass

    assert nested(run, others=("mine",))[0] == ["mine", "mine/forward_pass", "lr_scheduling"]
