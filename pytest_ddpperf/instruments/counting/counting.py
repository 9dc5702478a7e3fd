"""Counts the work of a step (collectives, operators, FLOPs, memory ...) by running a few steps after the warm-up."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._guards import detect_fake_mode
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpperf.instruments.clock import collector_paused
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.counting import module_tracker
from pytest_ddpperf.instruments.counting import steps as of_steps
from pytest_ddpperf.instruments.counting.dispatch import CALLS, OperatorCounter
from pytest_ddpperf.instruments.counting.loaders import loading_left_out
from pytest_ddpperf.instruments.counting.python import BatchRows, calls_counted, drops_seen, mark_used, rows_by_shape
from pytest_ddpperf.instruments.counting.setup import checkpoints_seen, settings_of
from pytest_ddpperf.instruments.counting.sites import Place, SiteCounts, Stack, break_sites, call_sites, compiled_sites
from pytest_ddpperf.instruments.counting.tensors import KEPT, PASSING, TensorTracker
from pytest_ddpperf.instruments.torch_internals import compiled_graphs, discard_first_profile, eagerly, unsampled
from pytest_ddpperf.records.counts import Counts, count_row
from pytest_ddpperf.records.sites import SETTINGS
from pytest_ddpperf.units import format_count

# Counts that steps are compared by without lines of code, because some of these calls have no line.
_OF_MODEL = ("operators", "compiled_operators", "recorded_operators", "flops", "full_precision_flops")
_LEARNING_STEPS = 2  # steps after which tensors that outlive a step are known
_WHOLE_STEPS = 2  # that are counted in full, at least
SEEN_STEPS = 20  # that are looked at in all: two periods of 10, so that work of each 10th step comes twice
_FEW = 8  # steps of a survey that follow a gap: fewer do not show how often a step does something else
_COLLECTED = 4  # steps after which garbage is collected
_SECONDS = 10.0  # that ``SEEN_STEPS`` may take, or as long as the steps counted in full took if that is more


@dataclass(frozen=True, kw_only=True, slots=True)
class Countable:
    """The facts about a step that are known before it runs."""

    device: torch.device
    modules: Sequence[nn.Module] = ()  # other models are found as they run
    size: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # details of the whole model, if known
    called: Callable[[nn.Module, Any, bool], None] = lambda *_: None  # as ``ModuleTracker`` calls it
    period: int = 1  # steps after which it does the same again, if it is known not to do so in each
    roots: tuple[str, ...] = ()  # of the project; the lines of code that counts come from are relative to them
    strategy: str = ""  # of the plugin that it trains with


def count_warm_step(
    run: Callable[[], Any],
    subject: Countable,
    plain: of_steps.Details,
    *,
    steps: int = SEEN_STEPS,
    seconds: float = math.inf,
    on_any_rank: Callable[[bool], bool] = bool,
) -> Counts:
    """Counts the collectives, FLOPs, operators and memory of a call of ``run`` on this rank, after the warm-up.

    All ranks call this function together. A few steps are counted in full. If the next steps call the same functions of
    torch, the full counts hold for them. Otherwise about ``steps`` steps are counted without memory, and their mean
    counts are used. Compiled code runs uncompiled in all these steps.

    ``plain`` has counts of earlier steps, such as graph breaks. The steps after the full counts take at most about
    twice ``seconds``. ``on_any_rank(x)`` returns whether x is True on any rank.
    """
    learning, whole = max(_LEARNING_STEPS, subject.period), max(_WHOLE_STEPS, subject.period)
    pass_, begun, steps = _Pass(subject), time.monotonic(), max(steps, 2 * subject.period if steps else 0)
    with collector_paused(), eagerly(), pass_.hooked():
        with pass_.counting():
            for _ in range(learning):
                pass_.step(run)
            counted = [pass_.step(run) for _ in range(whole)]
        most = min(seconds, max(time.monotonic() - begun, _SECONDS * max(1, steps / SEEN_STEPS)))
        shown, others = pass_.seen[learning:], of_steps.OtherSteps(run, on_any_rank, most)
        if not pass_.watch(others, steps - learning - whole):
            with pass_.counting():
                pass_.survey(others, steps, counted=learning + whole)
    profiled: list[of_steps.Details] = []
    if subject.device.type == "cuda" and not others.ended:
        from pytest_ddpperf.instruments.counting.device_work import device_work

        discard_first_profile()
        with unsampled():
            profiled = [device_work(run) for _ in range(whole)]
    rows = pass_.rows[: learning + whole]
    for each in counted:
        each["model_state_bytes"] = max(each["model_state_bytes"], pass_.state, key=of_steps.total_of)
        each["batch_rows"] = rows_by_shape(each["batch_rows"], pass_.rows)
        if not all(rows) or len(set(map(of_steps.total_of, rows))) > 1:  # not sure, or not the same in each step
            del each["batch_rows"]
    same = {"ddp_buckets": module_tracker.ddp_buckets(pass_.used.roots), **subject.size, **plain}
    usual = [counted] if subject.period > 1 else of_steps.usual_steps(counted, shown, pass_.seen)
    alike = [{**of_steps.per_step(steps), **same} for steps in usual or [[step] for step in counted]]
    of_device = [of_steps.per_step(profiled)] if subject.period > 1 else profiled
    found = of_steps.counts_of(alike, of_device, pass_.seen, unusual=not usual)
    if pass_.after is not None:
        few, usually = format_count(len(pass_.after), "step"), pass_.seen[-1]
        reason = f"one step did other work than earlier steps, and only {few} followed, too few to show how often"
        told = len(pass_.after) >= _WHOLE_STEPS  # else no step shows whether the usual work follows
        again = {each for each in usually if told and all(step[each] == usually[each] for step in pass_.after)}
        unstable = {each: reason for each in usually if each not in again & pass_.alike and count_row(each).gated}
        varying = {each: {"": ()} for each in again & unstable.keys()}  # only in the one step, which nothing counted
        found = replace(found, unstable={**unstable, **found.unstable}, varying={**varying, **found.varying})
    sites = call_sites(pass_.sites, subject.roots, subject.strategy)
    of_compiler = {"graph_breaks": break_sites(), "recompiles": compiled_sites(plain.get("recompiles", {}))}
    settings = pass_.settings | settings_of(pass_.used.roots, pass_.used.optimizers)  # some optimizers step rarely
    last = call_sites([{**of_compiler, **pass_.last, SETTINGS: settings}], subject.roots, subject.strategy)
    return replace(found, sites={**sites, **last})


class _Pass:
    def __init__(self, subject: Countable) -> None:
        self._batches = BatchRows()
        self.used = module_tracker.ModuleTracker(self._gradients_complete, self._stepped, self._module_called)
        for module in subject.modules:
            self.used.add(module)
        self._device, fake = subject.device.type, detect_fake_mode() is not None
        self._tracker = TensorTracker(self._device, fake=fake)
        self._operators = OperatorCounter(self._tracker, self._device, lambda: self.used.running, fake=fake)
        self.seen: list[of_steps.Seen] = []  # of each step, the counts that take little time
        self.sites: list[SiteCounts] = []  # of each step, the counts by line of code, if the line is known
        self._graphs: list[tuple[int, int]] = []  # of each step, by how much it raises ``graph_so_far``
        self._subject = subject
        self._gap = False  # whether a watched step did something else, on any rank
        self.after: list[of_steps.Seen] | None = None  # the steps after it, if these are too few for a pattern
        self.alike = set[str]()  # counts that the last watched step shares with the steps before it
        self.rows: list[dict[str, float]] = []  # of each step, as of ``BatchRows.rows``
        self.state: dict[str, float] = {}  # the most bytes since the last step counted in full began, as it steps
        self._stack = Stack()
        self.settings = Counter[tuple[str, Place]]()  # of the last step counted in full
        self.last: SiteCounts = {}  # counts by line that only a step counted in full has, of the last such step

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Observes modules, optimizers, batches and costly functions in this context, but not inside DataLoaders."""
        left_out = loading_left_out(self._operators.paused, self._batches.loaded)
        calls = calls_counted(self._called, self._device, self._operators.waited)
        drops = drops_seen(partial(self._operators.add, "gradients_dropped", "zero_grad"))
        checkpoints, questions = checkpoints_seen(self._called), self._operators.questions_named()
        with self.used.watching(), left_out, calls, drops, checkpoints, questions:
            yield

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts operators, and observes storages that change their size, in this context."""
        with self._tracker.resizes_seen(), self._operators:
            yield

    def _called(self, metric: str, name: str, place: Place | None = None) -> None:
        if metric != SETTINGS:
            self._operators.add(metric, name)
        elif self._operators.whole and not self._operators.is_paused:
            self.settings[name, place or self._stack.place()] += 1

    def step(self, run: Callable[[], Any]) -> of_steps.Details:
        """Counts a step in full; returns the counts that are too slow to take in every step."""
        self.settings.clear()
        with self._operators.paused():
            self._file_known()
            self._tracker.begin_step()
            before, made = dict(self._tracker.live), self._tracker.passing()
        self.state = {}
        shown, sites = self._look(run)
        self.seen.append(shown)
        with self._operators.paused():
            state = self.state or self.used.state_bytes()
            peak, places = self._tracker.peak(), self._tracker.peak_places()
            self._file_known()
            gc.collect()  # garbage is not kept
            self._tracker.settle()
            after = self._tracker.live
            kept = self._tracker.passing()
            kept.subtract(made)
        self.sites.append({**sites, "retained_bytes": kept})
        self.settings.update(settings_of(self.used.roots, self.used.optimizers))
        self.last = {"peak_tensor_bytes": places}
        return {
            "operator_bytes": self._operators.details()["operator_bytes"],
            "batch_rows": self.rows[-1],
            "peak_tensor_bytes": _named(peak),
            "model_state_bytes": state,
            "retained_bytes": _named(_kept(before, after)),
        }

    def watch(self, others: of_steps.OtherSteps, steps: int) -> bool:
        """Runs up to ``steps`` of ``others``; returns whether they call the same torch functions as earlier steps."""
        period, watched = self._subject.period, list[int]()
        calls = of_steps.CallWatch(lambda: self._operators.is_paused)
        if steps <= 0:
            return True
        # torch.compile would compile the watch. Futures of hooks call what follows in this thread, or in another one.
        modules = (each for root in self.used.roots for each in root.modules())
        hooked = any(isinstance(each, DistributedDataParallel) and each._comm_hooks for each in modules)  # noqa: SLF001
        unwatched = compiled_graphs() > 0 or hooked
        if others.any(unwatched or _differ(self.seen, period)):
            return False

        def look(run: Callable[[], Any]) -> bool:
            with calls.watching():
                shown, sites = self._look(run)
            watched.append(calls.calls)
            self.alike = {metric for metric in CALLS if shown[metric] == self.seen[-period][metric]}
            self.alike |= {"collective_calls"} if self._graphs[-1][1] == self._graphs[-1 - period][1] else set()
            differs = _differ(self._graphs, period) or _differ(watched, period)
            if not differs:
                self.seen.append({**self.seen[-period], **{metric: shown[metric] for metric in CALLS}})
                self.sites.append({metric: sites[metric] for metric in CALLS})
            return differs

        self._operators.whole = False
        self._gap = any(others.run_one(look) for _ in range(steps) if not others.over)  # the same on all ranks
        return not self._gap

    def survey(self, others: of_steps.OtherSteps, steps: int, *, counted: int) -> None:
        """Counts ``steps - counted`` further steps, but not their memory; ``counted`` is the number of earlier steps.

        If ``watch`` found a step that differs from earlier steps, this method counts ``steps`` new steps, whose counts
        replace the earlier counts. If training or the time limit ends before 8 new steps, the earlier counts stay, and
        the attribute ``after`` gets the new counts.
        """
        before, wanted = (self.seen, self.sites), steps if self._gap else steps - counted
        if self._gap:
            self.seen, self.sites = [], []
        others.begin_anew()

        def look(run: Callable[[], Any]) -> bool:
            with self._operators.paused():  # of numbers that an optimizer reads, some may be new
                self._tracker.mark((state for state in self.used.optimizer_state if not state.dim()), "optimizer_state")
            shown, sites = self._look(run)
            self.seen.append(shown)
            self.sites.append(sites)
            return False

        self._operators.whole = False
        for _ in range(wanted):
            if not others.over:
                others.run_one(look)
        if self._gap and others.any(len(self.seen) < _FEW):
            self.after, (self.seen, self.sites) = self.seen, before
        elif self._gap:
            self.sites += [{"retained_bytes": each["retained_bytes"]} for each in before[1] if "retained_bytes" in each]

    def _look(self, run: Callable[[], Any]) -> tuple[of_steps.Seen, SiteCounts]:
        with self._operators.paused():
            if len(self._graphs) % _COLLECTED == 0:
                gc.collect()  # the collector is paused, and steps may leave cycles with large tensors
        self._operators.begin_step()
        self._batches.begin_step()
        nodes, collectives = of_steps.graph_so_far()
        run()
        after = of_steps.graph_so_far()
        self._graphs.append((after[0] - nodes, after[1] - collectives))
        shown, sites = self._operators.details(), self._operators.sites()
        del shown["operator_bytes"]
        self.rows.append(self._batches.rows(of_steps.total_of(shown["backward_passes"])))
        placed = shown.keys() & sites.keys() - {*_OF_MODEL}
        without = {each: {(part, None): value for part, value in parts.items()} for each, parts in shown.items()}
        return {**without, **self._operators.lines(placed)}, sites

    def _file_known(self) -> None:
        tracker, used = self._tracker, self.used
        parameters = used.parameters
        tracker.mark(used.buffers, "buffers")
        tracker.mark(used.optimizer_state, "optimizer_state")
        tracker.mark(module_tracker.gradients_of(parameters), "gradients")
        tracker.mark(parameters, "parameters")

    def _module_called(self, module: nn.Module, given: Any, outermost: bool) -> None:  # noqa: FBT001 - as it is called
        self._subject.called(module, given, outermost)
        if outermost and self._batches.forwarded(module, given, self._operators.joined) and not module.training:
            self._operators.add("eval_passes", type(module).__name__)

    def _gradients_complete(self, parameters: list[torch.Tensor]) -> None:
        if not self._operators.whole:
            return
        with self._operators.paused():
            self._tracker.mark(module_tracker.gradients_of(parameters), "gradients")
            self._tracker.mark(self.used.optimizer_state, "optimizer_state")

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        mark_used(module_tracker.gradients_of_optimizer(optimizer))
        self._operators.add("optimizer_steps", type(optimizer).__name__)
        with self._operators.paused():
            if self._operators.whole:
                self._tracker.mark(self.used.optimizer_state, "optimizer_state")
            self.state = max(self.state, self.used.state_bytes(), key=of_steps.total_of)


def _differ(steps: Sequence[object], period: int) -> bool:
    return any(one != other for one, other in zip(steps, steps[period:], strict=False))


def _kept(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Returns the bytes of live tensors that a step adds, by category; ``KEPT`` has activations and temporaries."""
    growth = {category: after[category] - before[category] for category in after}
    growth[KEPT] = sum(growth.pop(category) for category in PASSING)
    return growth


def _named(sizes: Mapping[str, int]) -> dict[str, float]:
    return {category: float(size) for category, size in sizes.items() if size}
