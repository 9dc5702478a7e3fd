"""Which phases steps of all kinds pass through, and their ranges in a profile: their order, told without any clock."""

from __future__ import annotations

import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo.utils
from torch import nn
from torch.nn.utils import clip_grad_norm_  # by name, as many import it
from torch.profiler import profile
from torch.utils.data import DataLoader, Dataset

from pytest_ddpperf.instruments.phases.phase_hooks import (
    RANGES,
    PhaseHook,
    Ranges,
    followed,
    named_ranges,
    optimizers_followed,
    torch_phase_hooks,
)
from pytest_ddpperf.instruments.phases.recorder import Recorder, Section
from pytest_ddpperf.launch.context import RankContext

Step = Callable[[], object]


def passed(run: Step, *hooks: PhaseHook, steps: int = 1) -> list[str]:
    """The phases that the steps pass through, without `other`; each only once where it is left and entered again."""
    recorder = Recorder()
    with followed(recorder, (*torch_phase_hooks(), *hooks)), optimizers_followed(recorder):
        trace = recorder.record(run, steps, lambda: None)
    phases = [place.phase for place in trace.places if place.phase != "other"]
    return phases[:1] + [after for before, after in pairwise(phases) if after != before]


class Net(nn.Module):
    """Of a class that torch.compile does not know: Sequential itself it would leave alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.layers(inputs)


class Training:
    """A model, an optimizer, and the loop that everybody writes."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = Net() if model is None else model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)

    def __call__(self) -> torch.Tensor:
        loss: torch.Tensor = self.model(torch.ones(2, 4)).mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


@pytest.fixture(autouse=True)
def hooks_as_before() -> Iterator[None]:
    """Whatever a test does, torch is left as it was."""
    hooks = (*torch_phase_hooks(), PhaseHook(Section, "__enter__", ""), PhaseHook(Section, "__exit__", ""))
    before = [vars(hook.owner).get(hook.name) for hook in hooks]
    yield
    assert [vars(hook.owner).get(hook.name) for hook in hooks] == before
    from torch.optim import optimizer

    assert not optimizer._global_optimizer_pre_hooks
    assert not optimizer._global_optimizer_post_hooks


def test_phases_of_a_hand_written_loop_are_found() -> None:
    assert passed(Training(), steps=2) == ["forward", "backward", "optimizer"] * 2


def test_calls_of_autograd_imported_under_other_names_are_phases() -> None:
    weight = torch.ones(3, requires_grad=True)
    grad = torch.autograd.grad

    def run() -> None:
        grad(weight.sum(), weight)
        clip_grad_norm_([weight], 1.0)
        torch.autograd.backward([weight.sum()])

    assert passed(run) == ["backward", "optimizer", "backward"]


def test_a_scaler_belongs_to_the_optimizer_also_if_it_skips_the_step() -> None:
    training, scaler = Training(), torch.amp.GradScaler("cpu")

    def run() -> None:
        scaler.scale(torch.inf * training.model(torch.ones(2, 4)).mean()).backward()
        scaler.unscale_(training.optimizer)
        training.model(torch.ones(2, 4))
        scaler.step(training.optimizer)

    assert passed(run) == ["forward", "backward", "optimizer", "forward", "optimizer"]


class Transformed(Dataset[torch.Tensor]):
    """Its samples go through a module, as torchvision's transforms are."""

    def __init__(self) -> None:
        self.transform = nn.Linear(4, 4)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return self.transform(torch.full((4,), float(index))).detach()


def test_the_wait_for_data_is_a_phase_whatever_the_dataset_does() -> None:
    training = Training()
    loader = DataLoader(Transformed(), batch_size=2)

    def epoch() -> None:
        for _ in loader:
            training()

    step = ["data_wait", "forward", "backward", "optimizer"]
    assert passed(epoch) == [*step * 3, "data_wait"]  # which finds the end
    assert passed(lambda: iter(loader)) == ["data_wait"]  # which may start workers


def test_phase_hooks_follow_custom_functions_of_the_user() -> None:
    owner = SimpleNamespace(load=lambda: nn.Linear(2, 2)(torch.ones(2)))

    def run() -> None:
        owner.load()

    before = owner.load
    assert passed(run) == ["forward"]
    assert passed(run, PhaseHook(owner, "load", "data_wait")) == ["data_wait"]
    assert owner.load is before


def test_sections_are_seen_by_the_thread_of_the_step_alone() -> None:
    model = nn.Linear(4, 1)

    def elsewhere() -> None:
        with Section("backward"):
            model(torch.ones(2, 4))

    def run() -> None:
        with Section("gradient_sync"):
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()

    assert passed(run) == ["gradient_sync"]


class Refuses(nn.Module):
    def forward(self) -> None:
        raise OSError("no more")


def test_a_step_that_raises_leaves_nothing_behind() -> None:
    """The fixture above looks at what is left."""

    def run() -> None:
        with Section("mine"):
            Refuses()()

    with pytest.raises(OSError, match="no more"):
        passed(run)


def test_an_error_that_the_step_handles_ends_its_phase() -> None:
    training, refuses = Training(), Refuses()

    def run() -> None:
        with pytest.raises(OSError, match="no more"):
            refuses()
        training.optimizer.step()

    assert passed(run) == ["forward", "optimizer"]


def test_the_phase_hooks_keep_no_trained_model_alive() -> None:
    training = Training()
    passed(training)
    kept = weakref.ref(training.model)
    del training
    assert kept() is None


def test_a_compiled_model_is_neither_compiled_again_nor_warned_of() -> None:
    torch._dynamo.reset()
    training = Training()
    training.model.compile(backend="eager")
    for _ in range(2):
        training()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert passed(training) == ["forward", "backward", "optimizer"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before > 0


def test_a_section_does_nothing_and_hides_no_error() -> None:
    ctx = RankContext(0, 1, 0, 1, torch.device("cpu"), "gloo", None)
    section = pickle.loads(pickle.dumps(ctx)).phase("mine")
    assert isinstance(section, Section)
    assert section.name == "mine"
    assert section.before is None
    with pytest.raises(OSError, match="mine"), section:
        raise OSError("mine")
    assert section.before is None


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


class ScaledTraining:
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


def test_each_part_of_a_step_has_a_separate_range() -> None:
    found, _ = nested(ScaledTraining())
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
    training = ScaledTraining()
    _, ranges = nested(lambda: [training() for _ in range(2)])  # type: ignore[func-returns-value]
    (notes,) = ranges.rates
    assert [rates for _, rates in notes] == [(0.5,), (0.25,)]
    assert notes[0][0] < notes[1][0]


def test_an_optimizer_that_another_one_steps_is_noted_once() -> None:
    training, ranges = ScaledTraining(), Ranges()
    ranges.note_rates(training.optimizer, (), {})
    ranges.note_rates(ScaledTraining().optimizer, (), {})
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
