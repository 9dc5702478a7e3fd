"""The counted pass over steps of one process, of which nothing is known but how to call them."""

from __future__ import annotations

import copy
import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.utils import rnn
from torch.overrides import BaseTorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from pytest_ddpperf.instruments.counting import counting, device_work
from pytest_ddpperf.instruments.counting import steps as watching
from pytest_ddpperf.instruments.counting.copies import CopyWatch
from pytest_ddpperf.instruments.counting.counting import Countable, count_warm_step
from pytest_ddpperf.instruments.counting.dispatch import OperatorCounter
from pytest_ddpperf.instruments.counting.module_tracker import OUTSIDE, Running
from pytest_ddpperf.instruments.counting.sites import digest
from pytest_ddpperf.instruments.counting.tensors import TensorTracker
from pytest_ddpperf.judge.counts import change_of
from pytest_ddpperf.judge.decision import decide_count
from pytest_ddpperf.records.counts import COUNTS, Counts
from pytest_ddpperf.records.sites import SETTINGS
from pytest_ddpperf.records.verdict import Verdict
from tests.counted import count_step

CPU = torch.device("cpu")


def users_step(extra: Callable[[Tensor], object] = lambda _loss: None) -> Callable[[], Tensor]:
    """Two linear layers, 8 x 4 + 8 and 2 x 8 + 2 parameters, 58 in all, with Adam; it keeps them to itself."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> Tensor:
        loss: Tensor = model(torch.ones(3, 4)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch
        extra(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def count(run: Callable[[], Any], **how: Any) -> Counts:
    return count_step(run, Countable(device=CPU, **how), warmup=1)


def every(number: int, extra: Callable[[Tensor], object], before: int = 0) -> Callable[[Tensor], None]:
    """Do ``extra`` in each call whose number is a multiple, as if there had been some calls ``before``."""
    calls = itertools.count(before + 1)

    def sometimes(values: Tensor) -> None:
        if next(calls) % number == 0:
            extra(values)

    return sometimes


def exponentials(values: Tensor) -> None:
    values.detach().expand(1000).exp()


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a rank that has compiled nothing, whatever tests before have compiled."""
    monkeypatch.setattr(counting, "compiled_graphs", lambda: 0)


@pytest.fixture
def lone_rank() -> Iterator[None]:
    """A process group of one rank."""
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]  # torch
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_a_step_of_which_nothing_is_known_is_counted_in_full() -> None:
    found = count(users_step())
    assert found.unstable == {}
    assert found.totals["optimizer_steps"] == 1
    assert found.details["model_state_bytes"] == {
        "parameters": 4 * 58,
        "gradients": 4 * 58,  # though they are gone when the step ends
        "optimizer_state": 8 * 58,
    }
    assert found.details["flops_forward"] == {"0": 2.0 * 3 * 4 * 8, "2": 2.0 * 3 * 8 * 2}
    assert found.details["operators"]["aten.addmm"] == 2
    assert found.totals["synchronisations"] == 0  # Adam's own count of steps is on the host
    assert found.totals["collective_calls"] == 0
    assert found.totals["allocator_calls"] == 0  # the collections of the counted pass itself are none of the step's
    assert found.totals["retained_bytes"] == 0
    of_devices = {"kernel_launches", "device_copies", "device_synchronisations"}
    of_loaders = {name for name in COUNTS if "loaders" in name} | {"workers_restarted"}
    told = {"parameters", "model_size", "python_objects", "graphs_kept", "collector_paused"} | of_loaders
    assert found.totals.keys() == COUNTS.keys() - of_devices - told


def test_asking_for_shapes_is_not_counted() -> None:
    """As DTensor does to learn what comes out of an operator."""

    def ask(_loss: Tensor) -> None:
        with FakeTensorMode():
            assert (torch.empty(3) + 1).shape == (3,)

    assert count(users_step(ask)).totals == count(users_step()).totals


def test_a_thread_that_loads_batches_pauses_no_count() -> None:
    """The loader makes a batch from the first operator of the step to the last one."""
    begun, ended = threading.Event(), threading.Event()

    def slowly(items: list[int]) -> list[int]:
        begun.set()
        ended.wait()
        return items

    def step(loads: bool) -> Callable[[], Tensor]:  # noqa: FBT001
        train = users_step()

        def beside() -> Tensor:
            begun.clear()
            ended.clear()
            loader: Any = DataLoader([0], collate_fn=slowly)  # type: ignore[arg-type]  # a list is enough
            loading = threading.Thread(target=lambda: next(iter(loader)))
            loading.start()
            begun.wait()
            loss = train()
            ended.set()
            loading.join()
            return loss

        return beside if loads else train

    alone, beside = count(step(loads=False)), count(step(loads=True))
    for metric in ("operators", "flops", "backward_passes", "optimizer_steps"):
        assert beside.totals[metric] == alone.totals[metric]


def test_an_optimizer_step_that_an_error_ends_does_not_hide_the_next_one() -> None:
    layer, calls = nn.Linear(4, 2), itertools.count(1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = layer(torch.ones(3, 4)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch
        if next(calls) % 2:
            raise FloatingPointError
        return loss

    def step() -> None:
        with suppress(FloatingPointError):
            optimizer.step(closure)
        optimizer.step(closure)

    assert count(step).details["optimizer_steps"] == {"SGD": 1.0}


def test_a_step_that_calls_the_step_of_its_class_above_counts_once() -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    layer = nn.Linear(4, 2)
    torch.optim.SGD(layer.parameters(), lr=0.01)  # torch hooks the step of a class when it makes its first object
    optimizer = Own(layer.parameters(), lr=0.01)

    def step() -> None:
        layer(torch.ones(3, 4)).sum().backward()
        optimizer.step()

    assert count(step).details["optimizer_steps"] == {"Own": 1.0}


def test_objects_that_a_step_makes_are_not_kept_alive() -> None:
    """A loss with 100 weights, and a copy of the model with an optimizer, as in meta-learning."""
    model, watch = nn.Linear(4, 100), CopyWatch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        inner = copy.deepcopy(model)
        inner_optimizer = torch.optim.Adam(inner.parameters())
        for each, its in ((inner, inner_optimizer), (model, optimizer)):
            loss = nn.CrossEntropyLoss(weight=torch.ones(100))(each(torch.ones(3, 4)), torch.arange(3))
            loss.backward()
            its.step()
        optimizer.zero_grad()

    found = count(step, called=watch.called)
    assert (found.totals["retained_bytes"], found.unstable) == (0.0, {})
    assert found.details["optimizer_steps"] == {"SGD": 1.0, "Adam": 1.0}
    kept = [each for each in gc.get_objects() if isinstance(each, nn.Linear) and each.out_features == 100]
    assert kept == [model]


def test_states_in_lists_are_states_of_the_optimizer() -> None:
    """L-BFGS keeps its direction, the gradient before, and two steps with their changes of gradients: 6 x 5 numbers."""
    layer = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(layer.parameters(), lr=0.01, max_iter=3, history_size=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = (layer(torch.eye(4)) - 1).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch
        return loss

    step: Any = optimizer.step
    found = count(lambda: step(closure))
    assert found.details["model_state_bytes"] == {"parameters": 20, "gradients": 20, "optimizer_state": 6 * 20}


def test_on_a_gpu_a_number_of_an_optimizer_is_waited_for_if_it_lies_there() -> None:
    """As an Adam's count of steps that was moved there; on a CPU nothing tells the two apart."""
    with FakeTensorMode():
        number = torch.zeros((), device="cuda")
    tracker = TensorTracker("cuda", fake=True)
    tracker.mark([number], "optimizer_state")
    counter = OperatorCounter(tracker, "cuda", lambda: Running(OUTSIDE), fake=True)
    counter._count_waits(torch.ops.aten._local_scalar_dense.default, (number,), {})
    counter.waited("print(tensor)", number)
    assert counter.details()["synchronisations"] == {"item": 1.0, "print(tensor)": 1.0}


@contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("cpu")
    try:
        yield
    finally:
        torch.set_default_device(None)


def around(mode: Callable[[], AbstractContextManager[object]]) -> Iterator[Tensor]:
    """Trains in a mode that each step leaves after it has begun, and enters before it ends."""
    model = nn.Linear(4, 2)
    while True:
        with mode():
            loss = model(torch.ones(3, 4)).sum()
            loss.backward()
            yield loss


@pytest.mark.parametrize(
    "mode",
    [partial(FlopCounterMode, display=False), partial(torch.device, "cpu"), BaseTorchFunctionMode, default_device],
)
def test_modes_that_a_step_leaves_and_enters_change_no_count(
    mode: Callable[[], AbstractContextManager[object]],
) -> None:
    plain, found = (count(partial(next, around(each))) for each in (nullcontext, mode))
    assert found.totals == plain.totals
    assert found.totals["flops"] == 2 * 2 * 3 * 4 * 2
    left = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    assert left == _get_current_dispatch_mode_stack() == []


def test_the_garbage_collector_does_not_show() -> None:
    """A cycle with a tensor in each step; with the collector as it likes, and called in the middle of each."""

    class Holder:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor
            self.itself = self

    def litter(loss: Tensor) -> None:
        Holder(loss.detach().expand(1000).clone())

    thresholds = gc.get_threshold()
    gc.set_threshold(10)
    try:
        often = count(users_step(litter))
    finally:
        gc.set_threshold(*thresholds)
    assert often == count(users_step(litter))
    assert often.totals["retained_bytes"] == 0
    assert gc.isenabled()


@pytest.mark.parametrize("phase", [1, 2])
def test_work_of_each_third_step_counts_as_a_third_whatever_its_phase(phase: int) -> None:
    """Memory is that of the usual steps, though the other one is among the two that tell it."""
    found, plain = count(users_step(every(3, exponentials, phase))), count(users_step())
    assert (found.unstable, found.steps) == ({}, 20)
    assert found.details["operators"]["aten.exp"] == 1 / 3
    assert found.totals["operators"] == plain.totals["operators"] + 1 / 3
    assert found.varying["operators"][""] == ((1.0, 0.0, 0.0) * 2,)
    assert found.totals["peak_tensor_bytes"] == plain.totals["peak_tensor_bytes"]


def test_work_of_two_periods_has_both_though_their_sum_has_none() -> None:
    """1 in each 5th step and 2 in each 9th: 45 steps would be a period of both."""
    fifth, ninth = every(5, Tensor.item), every(9, lambda loss: (loss.item(), loss.item()))
    found = count(users_step(lambda loss: (fifth(loss), ninth(loss))))
    assert found.totals["synchronisations"] == pytest.approx(1 / 5 + 2 / 9)
    assert sorted(map(sum, found.varying["synchronisations"][""])) == [2, 4]  # in two periods of each
    assert found.unstable == {"operators": "aten._local_scalar_dense from 4 to 6"}  # whose lines are not looked at


def test_the_steps_that_were_counted_whole_may_be_unusual() -> None:
    """After a step of warm-up and two that learn, two of each six do more."""
    fourth, fifth = every(6, torch.exp, 2), every(6, torch.exp, 1)
    unusual = "most steps do other work than the steps that were counted in full"
    names = ("peak_tensor_bytes", "model_state_bytes", "retained_bytes")
    assert count(users_step(lambda loss: (fourth(loss), fifth(loss)))).unstable == dict.fromkeys(names, unusual)


def test_training_that_ends_is_counted_until_its_end() -> None:
    left = iter(range(12))  # one step of warm-up
    step = users_step()

    def ending() -> Tensor:
        next(left)
        return step()

    assert count(ending).steps == 11


@pytest.mark.usefixtures("uncompiled")
def test_steps_are_watched_no_longer_if_that_takes_too_long_on_any_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is two seconds later."""
    seconds = itertools.count(0, 2)
    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    late: list[bool] = []

    def on_any_rank(here: bool) -> bool:  # noqa: FBT001  as its own
        late.append(here)
        return here

    warm = users_step()
    warm()
    assert count_warm_step(warm, Countable(device=CPU), {}, on_any_rank=on_any_rank).steps == 4 + 6
    before = [False]  # whether the steps counted whole differ
    assert late == before + [False] * 5 + [True, False, False], "the last: whether training ended, or a step differs"


def counted_steps(run: Callable[[], Any], **how: Any) -> tuple[Counts, list[bool]]:
    """Counts a step; of each step that ran, whether its operators were counted."""
    modes: list[bool] = []

    def step() -> None:
        modes.append(any(isinstance(mode, OperatorCounter) for mode in _get_current_dispatch_mode_stack()))
        run()

    return count(step, **how), modes


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("how", [{}, {"called": CopyWatch().called}], ids=["alone", "with the watch of copies"])
def test_steps_that_are_the_same_are_watched_and_not_counted(how: dict[str, Any]) -> None:
    """The watch of copies looks at some batches only, and is no part of a step."""
    found, counted = counted_steps(users_step(), **how)
    assert (found.steps, found.varying) == (20, {})
    assert counted == [False] + [True] * 4 + [False] * 16, "one step of warm-up"


def test_steps_are_not_watched_once_torch_has_compiled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile would compile the watch, too."""
    monkeypatch.setattr(counting, "compiled_graphs", lambda: 1)
    found, counted = counted_steps(users_step())
    assert found.steps == 20
    assert counted == [False] + [True] * 20


SOMETIMES: dict[str, Callable[[Tensor], object]] = {
    "without gradients": lambda values: values.detach().exp(),
    "of another shape": lambda values: torch.ones(len(values)).exp(),
    "in place": lambda values: values.detach().clone().exp_().mean(),
    "on several tensors": lambda values: torch._foreach_exp([values.detach()]),
    "in inference": torch.inference_mode()(lambda values: values.exp()),
    "with a graph that nothing needs": lambda values: (values * values).exp(),
    "in a batch function": lambda values: torch.vmap(torch.exp)(values.detach()),
    "by its operator": lambda values: torch.ops.aten.exp.default(values.detach()),
}


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    ("where", "extra"),
    [*(("forward", extra) for extra in SOMETIMES), ("backward", "without gradients"), ("backward", "in inference")],
)
def test_work_of_each_tenth_step_is_found_wherever_python_calls_it(where: str, extra: str) -> None:
    model, sometimes = nn.Linear(4, 4), every(10, SOMETIMES[extra])

    def step() -> None:
        out = model(torch.ones(3, 4))
        if where == "backward":
            out.register_hook(sometimes)
        else:
            sometimes(out)
        out.sum().backward()

    found, counted = counted_steps(step)
    assert found.steps == 20
    assert 0 < sum(counted) - 4 <= 20, "a survey came"
    assert sum(value for name, value in found.details["operators"].items() if "exp" in name) == 0.1


@pytest.mark.usefixtures("uncompiled")
def test_a_step_whose_batches_have_another_shape_sometimes_is_found() -> None:
    model, calls = nn.Linear(4, 4), itertools.count()

    def step() -> None:
        model(torch.ones(2 if next(calls) % 10 else 12, 4)).sum().backward()

    # Forward has 2 x 4 x 4 FLOPs for a row: 2 rows in nine steps, 12 in the tenth, 3 in the mean.
    assert count(step).totals["flops_forward"] == 3 * 2 * 4 * 4


@pytest.mark.usefixtures("uncompiled")
def test_if_a_step_of_another_rank_differs_this_rank_surveys_as_many_steps() -> None:
    """Else the ranks would not call the same collectives."""
    asked, ran = itertools.count(1), list[Tensor]()

    def on_any_rank(here: bool) -> bool:  # noqa: FBT001  as its own
        # The third watched step differs there. Then the rank is asked whether training has ended, and what differs.
        return next(asked) in {4, 6} or here

    warm = users_step(lambda loss: ran.append(loss.detach()))
    warm()
    assert count_warm_step(warm, Countable(device=CPU), {}, on_any_rank=on_any_rank).steps == 20
    assert len(ran) == 1 + 4 + 3 + 20


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(("left", "sure"), [(7, False), (8, True)])
def test_counts_that_differ_between_steps_are_not_compared_if_few_steps_remain(left: int, *, sure: bool) -> None:
    """The sixth watched step, the eleventh of all, does more; after it the script ends."""
    calls, plain = iter(range(1, 12 + left)), users_step()

    def step() -> None:
        call = next(calls)
        loss = plain()
        if call in {11, 13}:
            loss.item()

    found = count(step)
    assert found.steps == (8 if left == 8 else 9)
    assert ("synchronisations" in found.unstable) is not sure


def busy_tenth(kinds: str, extra: Callable[[Tensor], object] = lambda _loss: None) -> Callable[[int], Counts]:
    """Counts a script that ends after so many steps; each tenth one does more, which the watch sees by ``exp``."""

    def counts(steps: int) -> Counts:
        calls, plain = iter(range(1, steps + 1)), users_step(extra)

        def step() -> None:
            loss, odd = plain(), next(calls) % 10 == 0
            if odd:
                loss.detach().exp()
            if odd and "wait" in kinds:
                loss.item()
            if odd and "collect" in kinds:
                gc.collect(0)

        return count(step)

    return counts


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("left", [1, 3, 5, 7])
def test_a_script_is_no_regression_of_itself_if_one_run_ends_soon_after_a_step_with_other_work(left: int) -> None:
    """No step counts the operators of the odd step; the collections are seen in it."""
    counts = busy_tenth("wait, collect")
    short, whole = counts(10 + left), counts(40)
    assert whole.totals["synchronisations"] == whole.totals["allocator_calls"] == 0.1
    for metric in short.totals.keys() & whole.totals.keys():
        for then, now in ((short, whole), (whole, short)):
            gated, _ = change_of(metric, then, now)
            assert not gated or decide_count(metric, then, now) is Verdict.UNCHANGED, metric


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("metric", ["allocator_calls", "synchronisations"])
@pytest.mark.parametrize("odd", ["", "wait, collect"])
@pytest.mark.parametrize(("left", "gated"), [(1, False), (2, True), (7, True)])
def test_work_of_each_step_is_compared_although_few_steps_follow_another_one(
    metric: str, odd: str, left: int, *, gated: bool
) -> None:
    """Whatever the odd step does. One step does not show whether the script does the same on."""
    more = {"allocator_calls": lambda _loss: gc.collect(0), "synchronisations": Tensor.item}[metric]
    before, now = busy_tenth(odd)(10 + left), busy_tenth(odd, more)(10 + left)
    judged, found = change_of(metric, before, now)
    assert (judged, found and found.code) == (gated, "count_changed" if gated else "unsteady_count")


@pytest.mark.usefixtures("uncompiled", "lone_rank")
@pytest.mark.parametrize("odd", [0, 1])
def test_collectives_are_compared_whether_or_not_the_step_with_other_work_has_more(odd: int) -> None:
    def counts(more: int) -> Counts:
        numbers, plain = itertools.count(1), users_step()

        def step() -> None:
            if (number := next(numbers)) > 15:
                raise StopIteration
            loss = plain().detach()
            for _ in range(1 + more + odd * (number == 10)):
                torch.distributed.all_reduce(loss)
            if number == 10:
                loss.exp()

        return count(step)

    gated, found = change_of("collective_calls", counts(0), counts(1))
    assert (gated, found and found.code) == (True, "count_changed")


class Strict(Tensor):
    """A tensor that takes no function but those that it knows."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.exp:
            raise NotImplementedError(func)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("uncompiled")
def test_the_watch_calls_no_function_of_tensor_subclasses() -> None:
    strict, lazy = torch.ones(3).as_subclass(Strict), iter([nn.LazyLinear(4) for _ in range(40)])

    def step() -> None:
        torch.exp(strict)
        next(lazy)(torch.ones(2, 3))

    assert count(step).steps == 20


@pytest.mark.usefixtures("uncompiled")
def test_a_type_of_each_tenth_step_is_seen() -> None:
    values, calls = torch.ones(4), itertools.count(1)

    def step() -> None:
        values.to(torch.float32 if next(calls) % 10 else torch.float16)

    assert count(step).details["operators"] == {"aten._to_copy": 0.1}


def test_a_learning_rate_in_a_tensor_is_no_wait_and_a_value_that_the_step_reads_is_one() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))

    def step(*, read: bool = False) -> None:
        loss = model(torch.ones(3, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if read:
            loss.item()

    assert count(step).totals["synchronisations"] == 0
    assert count(partial(step, read=True)).details["synchronisations"] == {"item": 1.0}


def test_an_optimizer_that_a_step_makes_is_counted_at_its_line_and_its_own_number_is_no_wait() -> None:
    model = nn.Linear(4, 4)

    def step() -> None:
        model(torch.randn(2, 4)).sum().backward()
        torch.optim.AdamW(model.parameters(), foreach=False).step()

    counts = count_step(step, Countable(device=CPU, modules=[model]))
    assert counts.totals["synchronisations"] == 0
    assert counts.details["optimizers_made"] == {"torch.optim.Optimizer.__init__": 1.0}
    (site,) = counts.sites["optimizers_made"]
    assert (Path(site.file).name, site.function) == ("test_counting.py", "step")


@pytest.mark.parametrize(
    ("train", "recorded", "trained", "passes"), [(0, 1, 1, 1), (1, 1, 1, 0), (0, 0, 1, 0), (0, 1, 0, 0)]
)
def test_a_model_that_trains_in_eval_mode_is_counted(train: int, recorded: int, trained: int, passes: int) -> None:
    model = nn.Linear(4, 4).train(bool(train)).requires_grad_(bool(trained))

    def step() -> None:
        with torch.set_grad_enabled(bool(recorded)):
            model(torch.ones(3, 4))

    counts = count(step)
    assert counts.totals["eval_passes"] == passes


def test_micro_batches_that_drop_the_gradients_of_the_last_one_are_counted_at_their_line() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(*, each: bool) -> None:
        for number in range(3):
            if each or not number:
                optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
        optimizer.step()

    assert count(partial(step, each=False)).totals["gradients_dropped"] == 0
    counts = count_step(partial(step, each=True), Countable(device=CPU, modules=[model]))
    assert counts.totals["gradients_dropped"] == 2
    (site,) = counts.sites["gradients_dropped"]
    assert (Path(site.file).name, site.function) == ("test_counting.py", "step")


def test_a_value_that_a_function_of_the_user_reads_in_backward_is_a_wait() -> None:
    class Read(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, values: Tensor) -> Tensor:
            return values * 1

        @staticmethod
        def backward(_ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * float(gradient.sum())

    parameter = nn.Parameter(torch.ones(3))

    def step() -> None:
        Read.apply(parameter).sum().backward()  # type: ignore[no-untyped-call]  # torch
        parameter.grad = None

    assert count(step).details["synchronisations"] == {"float(tensor)": 1.0}


def test_a_wait_for_a_number_has_the_name_of_the_code_that_waits() -> None:
    def read(loss: Tensor) -> None:
        if loss.detach() > -1:
            int(loss.detach())
        f"{loss.detach():.1f}"
        loss.detach().item()

    waits = count(users_step(read)).details["synchronisations"]
    assert waits == {"bool(tensor)": 1.0, "int(tensor)": 1.0, "format(tensor)": 1.0, "item": 1.0}


def test_a_copy_to_the_host_is_one_wait_however_often_it_is_read() -> None:
    def read(loss: Tensor) -> None:
        loss.cpu().item()
        copied = (loss.detach() * torch.ones(3)).cpu()
        copied.tolist()
        copied.nonzero()
        float(copied[0] + copied.sum())

    assert count(users_step(read)).details["synchronisations"] == {"tensor.cpu": 2.0}


def test_values_that_only_a_cpu_checks_or_that_stay_on_the_host_are_no_waits() -> None:
    classes, lengths, layer = torch.tensor([1, 2]), torch.tensor([2, 4]), nn.GRU(8, 8, batch_first=True)

    def use(_loss: Tensor) -> None:
        nn.functional.one_hot(classes, 3)
        packed = rnn.pack_padded_sequence(torch.ones(2, 4, 8), lengths, batch_first=True, enforce_sorted=False)
        int(layer(packed)[0].batch_sizes[0])

    assert count(users_step(use)).totals["synchronisations"] == 0
    read = count(users_step(lambda loss: max(loss.detach() * classes)))  # C code of Python computes and asks
    assert read.details["synchronisations"] == {"bool(tensor)": 1.0}


def test_filling_by_a_mask_with_a_computed_number_waits_and_with_a_number_of_python_does_not() -> None:
    def fill(loss: Tensor) -> None:
        values = torch.ones(4)
        values[values > 0] = 2.0
        values[values > 0] = loss.detach()

    assert count(users_step(fill)).details["synchronisations"] == {"index by mask": 1.0}


def test_operators_that_autograd_records_show_a_lost_no_grad() -> None:
    """In each fifth step there are a layer, its activation and a mean; autograd records no place of a maximum."""

    def evaluating(grad: bool) -> Counts:  # noqa: FBT001 - of a test
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh())

        def evaluate(_loss: Tensor) -> None:
            with torch.set_grad_enabled(grad):
                model(torch.ones(3, 4)).mean().argmax().float()

        return count(users_step(every(5, evaluate)))

    then, now = evaluating(grad=False), evaluating(grad=True)
    assert now.totals["operators"] == then.totals["operators"]
    assert now.totals["recorded_operators"] - then.totals["recorded_operators"] == pytest.approx(3 / 5)


@pytest.mark.usefixtures("lone_rank")
def test_operators_of_sharded_tensors_are_recorded_as_others_are() -> None:
    """A DTensor takes each operator apart after autograd has recorded it."""
    mesh = init_device_mesh("cpu", (1,))
    weight = nn.Parameter(DTensor.from_local(torch.ones(4, 4), mesh, [Shard(0)]))
    assert count(lambda: torch.exp(weight.tanh() * 2)).totals["recorded_operators"] == 3


@pytest.mark.usefixtures("lone_rank")
def test_groups_that_a_step_makes_are_counted_with_collectives() -> None:
    """All ranks meet in the call, and nothing ends such a group."""
    found = count(lambda: torch.distributed.new_group([0]))
    assert found.details["collective_calls"] == {"torch.distributed.new_group": 1.0}


def test_operators_of_other_threads_are_recorded_like_operators_of_this_one() -> None:
    """As in backward on a GPU, or in a script, whose steps run in another thread: each has its own numbers of nodes."""
    weight = nn.Parameter(torch.ones(3))
    counter = OperatorCounter(TensorTracker("cpu"), "cpu", lambda: Running(OUTSIDE))

    def step() -> None:
        weight.exp()  # before the step begins
        with counter:
            torch.ones(3).exp()
            weight.tanh().exp()

    with counter:
        counter.begin_step()
        weight.exp()
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
        torch.ones(3).exp()
    assert counter.details()["recorded_operators"] == {"operators recorded for backward": 3}


def test_a_loss_that_another_thread_reads_first_in_a_step_is_not_recorded() -> None:
    """A script's thread stays in the mode while steps begin elsewhere, and reads the loss after the optimizer step."""
    counter = OperatorCounter(TensorTracker("cpu"), "cpu", lambda: Running(OUTSIDE))
    begin, done = SimpleQueue[bool](), SimpleQueue[float]()

    def script() -> None:
        loss = nn.Parameter(torch.ones(3)).exp().sum()
        with counter:
            while begin.get(timeout=60):
                read, loss = loss.item(), loss.tanh()
                done.put(read)

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(script)
        try:
            for _ in range(3):
                counter.begin_step()
                begin.put(True)  # noqa: FBT003
                done.get(timeout=60)
                assert counter.details()["recorded_operators"] == {"operators recorded for backward": 1}
        finally:
            begin.put(False)  # noqa: FBT003
        ended.result(60)


def test_the_backward_passes_of_a_step_are_its_micro_batches() -> None:
    """A checkpoint runs backward inside of backward, and a penalty asks for gradients of its own: neither is a pass."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        for _ in range(4):
            inputs = torch.ones(3, 4, requires_grad=True)
            loss = checkpoint(model, inputs, use_reentrant=True).square().mean()
            (gradient,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
            (loss + gradient.square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    found = count(step)
    assert found.totals["backward_passes"] == 4
    assert "backward_passes" not in found.unstable


@pytest.mark.parametrize("turn", [0, 1])
def test_steps_that_alternate_between_optimizers_show_both_whichever_is_the_last(turn: int) -> None:
    """As many steps of another optimizer: the baseline may know but one of them."""
    parameter = nn.Parameter(torch.ones(3))
    optimizers = torch.optim.SGD([parameter], lr=0.1), torch.optim.Adam([parameter])
    turns = itertools.cycle(optimizers[turn:] + optimizers[:turn])

    def step() -> None:
        parameter.square().sum().backward()  # type: ignore[no-untyped-call]  # torch
        next(turns).step()
        parameter.grad = None

    found = count(step)
    assert found.totals["optimizer_steps"] == 1
    assert found.details["optimizer_steps"] == {"SGD": 0.5, "Adam": 0.5}


def test_a_period_of_steps_counts_as_their_mean_and_memory_as_their_most() -> None:
    plain, found = count(users_step()), count(users_step(every(4, exponentials)), period=4)
    assert found.unstable == {}
    assert found.details["operators"]["aten.exp"] == 0.25
    assert found.details["operators"]["aten.addmm"] == 2
    assert found.totals["retained_bytes"] == 0
    assert found.totals["peak_tensor_bytes"] > plain.totals["peak_tensor_bytes"]
    assert found.details["model_state_bytes"] == plain.details["model_state_bytes"]


def test_a_count_that_differs_in_each_step_is_reported_by_its_least_and_most() -> None:
    left = iter(range(29, 0, -1))

    def ever_less(loss: Tensor) -> None:
        for _ in range(next(left)):
            loss.exp()

    # After one step of warm-up 28, 27 ... 9, which are 18.5 in the mean.
    found = count(users_step(ever_less))
    recorded = "operators recorded for backward from 14 to 33"  # with the five of the step
    assert found.unstable == {"operators": "aten.exp from 9 to 28", "recorded_operators": recorded}
    assert found.details["operators"]["aten.exp"] == 18.5


def test_an_optimizer_inside_of_another_steps_once() -> None:
    class Outer(torch.optim.SGD):
        inner: torch.optim.Optimizer

        def step(self, closure: Any = None) -> Any:
            return self.inner.step(closure)

    parameter = nn.Parameter(torch.ones(3))
    outer = Outer([parameter], lr=0.1)
    outer.inner = torch.optim.Adam([parameter])

    def step() -> None:
        parameter.square().sum().backward()  # type: ignore[no-untyped-call]  # torch
        outer.step()
        parameter.grad = None

    found = count(step)
    assert found.details["optimizer_steps"] == {"Outer": 1.0}
    assert found.details["model_state_bytes"] == {"parameters": 12.0, "gradients": 12.0, "optimizer_state": 24.0}


def test_an_optimizer_that_steps_rarely_counts_with_its_state_and_its_settings() -> None:
    inner, outer = nn.Linear(4, 2), nn.Linear(4, 2)
    usual, rare = torch.optim.SGD(inner.parameters(), lr=0.1), torch.optim.SGD(outer.parameters(), lr=0.1, momentum=0.9)
    number = itertools.count()

    def step() -> None:
        usual.zero_grad()
        inner(torch.ones(4)).sum().backward()
        usual.step()
        if next(number) % 5 == 4:
            for theirs, mine in zip(outer.parameters(), inner.parameters(), strict=True):
                theirs.grad = theirs.detach() - mine.detach()
            rare.step()
            rare.zero_grad()

    found = count(step)
    assert found.details["optimizer_steps"] == {"SGD": 1.2}
    assert found.details["model_state_bytes"] == {"parameters": 80.0, "gradients": 80.0, "optimizer_state": 40.0}
    assert "momentum" in repr([site.part for site in found.sites[SETTINGS]])


def test_further_models_and_a_loss_have_their_class_as_prefix() -> None:
    """The first model has none; of two models of a class the second one has a number."""
    first, second, loss = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4)), nn.MSELoss()
    third = nn.DataParallel(nn.ReLU())  # which computes nothing in threads on a CPU
    third.module.add_module("head", nn.Linear(4, 4))
    third.module.forward = third.module.get_submodule("head").forward  # type: ignore[method-assign, unused-ignore]
    inputs = torch.ones(3, 4)
    found = count(lambda: loss(third(second(first(inputs))), inputs).backward())
    assert found.details["flops_forward"] == {"0": 96.0, "Sequential2.0": 96.0, "ReLU": 96.0}


def test_flops_belong_to_the_line_that_calls_the_model() -> None:
    """Also those of backward, and of the modules inside; calls on no model have their own line."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    inputs, weight = torch.ones(3, 4), nn.Parameter(torch.ones(4, 4))

    def step() -> None:
        model(inputs).sum().backward()
        with torch.no_grad():
            model(inputs)
        (inputs @ weight).sum().backward()  # type: ignore[no-untyped-call]  # torch

    first = step.__code__.co_firstlineno
    sites = [(each.part, each.line - first, each.function, each.value) for each in count(step).sites["flops"]]
    twice = 192.0  # of forward and the gradient of the weight, 96 each
    assert sites == [("0", 1, "step", twice), ("0", 3, "step", 96.0), ("outside of modules", 4, "step", twice)]


def test_buffers_and_parameters_are_distinguished_at_the_peak() -> None:
    model = nn.BatchNorm1d(16)  # 2 x 16 parameters; buffers: 2 x 16 floats and a counter of 8 bytes
    inputs = torch.ones(4, 16)
    at_peak = count(lambda: model(inputs).sum().backward()).details["peak_tensor_bytes"]
    assert (at_peak["parameters"], at_peak["buffers"]) == (128.0, 136.0)


def test_a_tensor_that_outlives_a_step_is_part_of_the_peak_of_all() -> None:
    """The average of the parameters is never made while it could be seen."""
    parameter = nn.Parameter(torch.ones(1000))
    average = torch.zeros(1000)

    def step() -> None:
        with torch.no_grad():
            average.lerp_(parameter, 0.1)

    found = count(step)
    assert found.details["peak_tensor_bytes"] == {"parameters": 4000.0, "temporaries": 4000.0}
    assert found.unstable == {}


@pytest.mark.parametrize("line", ["torch._dynamo.graph_break()", "elif inputs.sum() > 0:"])
def test_compiled_code_is_counted_as_it_was_written_and_a_graph_break_has_its_line(line: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh())

    torch._dynamo.utils.counters.clear()  # a rank is a fresh process, this one is not
    torch._dynamo.utils.graph_break_reasons.clear()

    @torch.compile(backend="eager")
    def forward(inputs: Tensor) -> Any:
        if line.startswith("torch"):
            torch._dynamo.graph_break()
        elif inputs.sum() > 0:
            inputs = inputs * 1.0
        return model(inputs).sum()

    found = count_step(lambda: forward(torch.ones(3, 4)).backward(), Countable(device=CPU), warmup=2)
    assert found.totals["graph_breaks"] == 1
    (site,) = found.sites["graph_breaks"]
    assert (site.function, site.source) == ("forward", digest(line))
    assert found.totals["recompiles"] == 0
    assert found.details["flops_forward"] == {"0": 192.0}


def branch(layer: nn.Module, inputs: Tensor) -> Tensor:
    found: Tensor = torch.cond(inputs.sum() > 0, lambda x: layer(x).relu(), lambda x: layer(x).tanh(), (inputs,))
    return found


def scan_rows(layer: nn.Module, inputs: Tensor) -> Tensor:
    found: Tensor = scan(lambda state, row: (layer(row) + state, state * 1.0), torch.zeros(4), inputs)[0]
    return found


@pytest.mark.skipif(torch.__version__ < "2.11", reason="torch 2.6 refuses these operators in a counting mode")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch itself
@pytest.mark.parametrize("higher_order", [branch, scan_rows])
def test_functions_of_higher_order_operators_train_the_parameters_of_their_closures(
    higher_order: Callable[[nn.Module, Tensor], Tensor],
) -> None:
    layer, found = nn.Linear(4, 4), list[Tensor | None]()

    def step() -> None:
        layer.weight.grad = None
        higher_order(layer, torch.ones(3, 4)).sum().backward()  # type: ignore[no-untyped-call]  # torch
        found.append(layer.weight.grad)

    count_step(step, Countable(device=CPU, modules=[layer]), warmup=2)
    plain, *counted = found
    assert plain is not None
    assert len(counted) > 4
    assert all(each is not None and torch.equal(each, plain) for each in counted)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which the compiler looks at
def test_operators_of_forward_count_as_compiled_inside_functions_of_which_something_is() -> None:
    """The loss and backward are not compiled, nor is anything of the second function."""

    @torch.compile(backend="eager")
    def compiled(inputs: Tensor) -> Tensor:
        return inputs.tanh()

    @torch.compile(backend="eager")
    def interpreted(inputs: Tensor) -> Any:
        torch._dynamo.graph_break()
        return apart(inputs)

    apart: Any = torch.compiler.disable(torch.exp)  # type: ignore[no-untyped-call]  # torch

    torch._dynamo.utils.counters.clear()  # a rank is a fresh process, this one is not
    torch._dynamo.utils.clear_compilation_metrics()
    inputs = torch.ones(3, requires_grad=True)
    found = count_step(lambda: interpreted(compiled(inputs)).sum().backward(), Countable(device=CPU), warmup=2)
    assert found.totals["compiled_operators"] == 1
    assert found.totals["operators"] > 3


def test_a_step_that_fails_leaves_nothing_behind() -> None:
    calls = itertools.count(1)

    def fails() -> None:
        if next(calls) == 2:
            raise ValueError("no more data")

    resize = torch.UntypedStorage.resize_
    with pytest.raises(ValueError, match="no more data"):
        count(fails)
    assert torch.UntypedStorage.resize_ is resize
    assert gc.isenabled()
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.parametrize("seeing", [2, 1])
def test_on_cuda_two_more_steps_are_profiled_and_count_if_both_profiles_see_the_device(
    monkeypatch: pytest.MonkeyPatch, seeing: int
) -> None:
    order: list[str] = []

    def profiled(run: Callable[[], object]) -> dict[str, dict[str, float]]:
        run()
        order.append("profiled")
        return {"kernel_launches": {"gemm": 2.0}} if order.count("profiled") <= seeing else {}

    monkeypatch.setattr(device_work, "device_work", profiled)
    monkeypatch.setattr(counting, "discard_first_profile", lambda: order.append("discarded"))
    found = count_step(users_step(), Countable(device=torch.device("cuda", 0)))
    assert order == ["discarded", "profiled", "profiled"]
    assert found.totals.get("kernel_launches") == (2.0 if seeing == 2 else None)
    assert found.totals["optimizer_steps"] == 1
