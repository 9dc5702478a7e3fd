"""The counted pass: a few warm steps under the counters, and what one of them does."""

from __future__ import annotations

import gc
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._guards import detect_fake_mode
from torch.profiler import ProfilerActivity, profile, record_function

from pytest_ddpperf.errors import TrainingEnded
from pytest_ddpperf.instruments.clock import collector_paused
from pytest_ddpperf.instruments.counting.dispatch import OperatorCounter, loading_left_out
from pytest_ddpperf.instruments.counting.module_tracker import ModuleTracker, ddp_buckets, gradients_of
from pytest_ddpperf.instruments.counting.python import BatchRows, calls_counted
from pytest_ddpperf.instruments.counting.sites import Place, break_sites, call_sites, compiled_sites
from pytest_ddpperf.instruments.counting.steps import (
    Details,
    Seen,
    counts_of,
    per_step,
    total_of,
    unplaced,
    usual_steps,
)
from pytest_ddpperf.instruments.counting.tensors import KEPT, PASSING, TensorTracker
from pytest_ddpperf.instruments.torch_internals import activity_of, discard_first_profile, eagerly, unsampled
from pytest_ddpperf.records.counts import COUNTS, Counts
from pytest_ddpperf.records.finding import Finding

STEP = "ddpperf_counted_step"

_ANONYMOUS = "(anonymous namespace)::"
_ARGUMENTS = re.compile(r"[<(].*", re.DOTALL)
_COPIES = frozenset({"gpu_memcpy", "gpu_memset"})
_RUNTIME = re.compile(r"(?:cuda|hip)[A-Z]")
# Calls that return when the device has done its work: copies in one go, and memory that changes hands. Their names may
# end in the version of the call.
_WAITS = re.compile(
    r"((?:cuda|hip)(?:(?:Device|Stream|Event)Synchronize|Memcpy(?:2D|3D|HtoD|DtoH|WithStream|ToSymbol|FromSymbol)?"
    r"|Free(?:Host)?|HostFree|HostAlloc|HostMalloc|MallocHost))(?:_ptsz|_v\d+)*"
)


class Recorded(NamedTuple):
    """One event of a profile: kineto's word for what it is, its name, start and end in nanoseconds."""

    activity: str
    name: str
    start: int = 0
    end: int = 0


def device_work(run: Callable[[], object]) -> dict[str, dict[str, float]]:
    """The details of ``kernel_launches``, ``device_copies`` and ``device_synchronisations`` of one step on a GPU.

    What the profiler cannot see is left out.
    """
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        with record_function(STEP):
            run()
        torch.cuda.synchronize()
    results = profiler.profiler.kineto_results if profiler.profiler is not None else None
    if results is None:
        return {}
    return work_in(
        [Recorded(activity_of(event), event.name(), event.start_ns(), event.end_ns()) for event in results.events()]
    )


def work_in(events: Sequence[Recorded]) -> dict[str, dict[str, float]]:
    """Counts kernels by name without arguments, copies by kind (``Memcpy HtoD``), and waits by the CUDA call.

    Only waits during the event ``STEP`` count, the time that the host was in the step: those before or after it are
    ours or the profiler's. An ``.item()`` is a wait. Without any kernel nothing is known of the device, and without the
    name of any call nothing of waits: such metrics are left out.
    """
    kernels, copies, waits = Counter[str](), Counter[str](), Counter[str]()
    steps = [event for event in events if event.name == STEP and event.activity == "user_annotation"]
    for event in events:
        short = _ARGUMENTS.sub("", event.name.removeprefix("void ").replace(_ANONYMOUS, "")).strip()
        wait = _WAITS.fullmatch(event.name)
        if event.activity == "kernel":
            kernels[short] += 1
        elif event.activity in _COPIES:
            copies[short] += 1
        elif wait is not None and any(step.start <= event.start < step.end for step in steps):
            waits[wait[1]] += 1
    if not kernels:
        return {}
    counted = {"kernel_launches": kernels, "device_copies": copies}
    if any(_RUNTIME.match(event.name) for event in events):
        counted["device_synchronisations"] = waits
    return {metric: {name: float(times) for name, times in found.items()} for metric, found in counted.items()}


def not_counted(counts: Counts, device: torch.device) -> list[Finding]:
    """A finding where the profiler could not count what the device does."""
    missing = tuple(metric for metric, row in COUNTS.items() if row.profiled and metric not in counts.totals)
    return [Finding("no_device_counts", {"counts": missing})] if missing and device.type == "cuda" else []


_LEARNING_STEPS = 2  # steps after which tensors that outlive a step are known
_WHOLE_STEPS = 2  # that are counted with all that there is to count, at least
SEEN_STEPS = 20  # that are looked at in all: two periods of 10, and what comes in each 10th step twice
_SECONDS = 10.0  # that a survey may take, or as long as counting took if that is more


@dataclass(frozen=True, kw_only=True, slots=True)
class Countable:
    """What is known of a step before it runs."""

    device: torch.device
    modules: Sequence[nn.Module] = ()  # other models are found as they run
    size: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # details of the whole model, where known
    optimizers: Sequence[torch.optim.Optimizer] = ()  # others are found as they step
    period: int = 1  # steps after which it does the same again, if it is known not to do so in each
    roots: tuple[str, ...] = ()  # of the project; the lines of code that counts come from are told relative to them
    strategy: str = ""  # of the plugin that it trains with


def count_warm_step(
    run: Callable[[], Any],
    subject: Countable,
    plain: Details,
    *,
    steps: int = SEEN_STEPS,
    on_any_rank: Callable[[bool], bool] = lambda _here: False,
) -> Counts:
    """Counts what one call of a warm ``run`` does on this rank: collectives, FLOPs, operators, memory.

    A collective, called with the same numbers on all ranks. After some steps that show which tensors outlive a step,
    two count whole, or the known period of the work. A survey follows: of ``steps`` in all it counts what operators
    show and what takes little time. Such counts are means of all these steps. On CUDA as many steps as were counted
    whole then run under the profiler, if training goes on. Memory and the like are those of the steps counted whole
    that do what most steps do: of a known period the most, else they are named in ``unstable`` if two such steps
    differ. Steps that torch.compile has compiled are counted as they run without it, but for ``graph_breaks`` and
    ``recompiles``: these are among what ``plain`` steps have shown, as ``warmed_up`` finds it, and objects that they
    left behind. ``on_any_rank`` says whether a fact holds on one rank at least: the survey ends when training has ended
    there or the survey takes too long.
    """
    learning, whole = max(_LEARNING_STEPS, subject.period), max(_WHOLE_STEPS, subject.period)
    pass_, begun = _Pass(subject), time.monotonic()
    with collector_paused(), eagerly(), pass_.counting():
        for _ in range(learning):
            pass_.step(run)
        counted = [pass_.step(run) for _ in range(whole)]
        # No other step comes between: what has a rhythm is seen in steps that follow each other.
        took, more = time.monotonic() - begun, max(steps, 2 * subject.period) - learning - whole
        goes_on = pass_.survey(run, more, max(took, _SECONDS), on_any_rank)
    profiled: list[Details] = []
    if subject.device.type == "cuda" and goes_on:
        discard_first_profile()
        with unsampled(pass_.used.roots):
            profiled = [device_work(run) for _ in range(whole)]
    if len(pass_.rows) > 1 or 0.0 in pass_.rows:  # not sure, or not the same in each step
        counted = [{metric: found for metric, found in each.items() if metric != "batch_rows"} for each in counted]
    same = {"ddp_buckets": ddp_buckets(pass_.used.roots), **subject.size, **plain}
    usual = [counted] if subject.period > 1 else usual_steps(counted, pass_.seen[learning:], pass_.seen)
    alike = [{**per_step(steps), **same} for steps in usual or [[step] for step in counted]]
    of_device = [per_step(profiled)] if subject.period > 1 else profiled
    found = counts_of(alike, of_device, pass_.seen, unusual=not usual)
    sites = call_sites(pass_.sites, subject.roots, subject.strategy)
    of_compiler = {"graph_breaks": break_sites(), "recompiles": compiled_sites(plain.get("recompiles", {}))}
    breaks = call_sites([of_compiler], subject.roots)
    return replace(found, sites={**sites, **breaks})


class _Pass:
    """The counters of one pass, and what they found in the step that is running."""

    def __init__(self, subject: Countable) -> None:
        self._batches = BatchRows()
        self.used = ModuleTracker(
            self._gradients_complete,
            self._stepped,
            lambda model, given: self._batches.forwarded(model, given, self._operators.joined),
        )
        for module in subject.modules:
            self.used.add(module)
        self.used.optimizers += subject.optimizers
        device, fake = subject.device.type, detect_fake_mode() is not None
        self._tracker = TensorTracker(device, fake=fake)
        self._operators = OperatorCounter(self._tracker, device, lambda: self.used.running, fake=fake)
        self.seen: list[Seen] = []  # of each step, what takes little time
        self.sites: list[dict[str, Mapping[tuple[str, Place], float]]] = []  # the same, if its place is known
        self.rows: set[float] = set()  # of the batches of a step, in any of them; 0 if they are not sure
        self._state: dict[str, float] = {}

    @contextmanager
    def counting(self) -> Iterator[None]:
        left_out = loading_left_out(self._operators.paused, self._batches.loaded)
        calls = calls_counted(self._operators.add)
        with self.used.watching(), self._tracker.resizes_seen(), left_out, calls, self._operators:
            yield

    def step(self, run: Callable[[], Any]) -> Details:
        """Counts a step whole; returns what takes time to count."""
        with self._operators.paused():
            self._file_known()
            self._tracker.begin_step()
            before, made = dict(self._tracker.live), self._tracker.passing()
        self._state = {}
        self._see(run)
        rows = self._batches.rows(total_of(self._operators.details()["backward_passes"]))
        self.rows.add(total_of(rows))
        with self._operators.paused():
            state = self._state or self.used.state_bytes()
            peak = self._tracker.peak()
            self._file_known()
            gc.collect()  # garbage is not kept
            self._tracker.settle()
            after = self._tracker.live
            kept = self._tracker.passing()
            kept.subtract(made)
        self.sites[-1] = {**self.sites[-1], "retained_bytes": kept}
        return {
            "operator_bytes": self._operators.details()["operator_bytes"],
            "batch_rows": rows,
            "peak_tensor_bytes": _named(peak),
            "model_state_bytes": state,
            "retained_bytes": _named(_kept(before, after)),
        }

    def survey(self, run: Callable[[], Any], steps: int, seconds: float, on_any_rank: Callable[[bool], bool]) -> bool:
        """Looks at so many steps more, or until their seconds or training are over on any rank.

        Returns:
            Whether training goes on, on all ranks.
        """
        self._operators.whole, begun, ended = False, time.monotonic(), False
        for _ in range(steps):
            with self._operators.paused():  # of numbers that an optimizer reads, some may be new
                self._tracker.mark((state for state in self.used.optimizer_state if not state.dim()), "optimizer_state")
            try:
                self._see(run)
            except (TrainingEnded, StopIteration):
                ended = True
            with self._operators.paused():
                if on_any_rank(ended or time.monotonic() - begun > seconds) or ended:
                    return not (on_any_rank(ended) or ended)
        return True

    def _see(self, run: Callable[[], Any]) -> None:
        self._operators.begin_step()
        self._batches.begin_step()
        run()
        shown, sites = self._operators.details(), self._operators.sites()
        del shown["operator_bytes"]
        placed = shown.keys() & sites.keys() - {"operators"}
        self.seen.append({each: sites[each] if each in placed else unplaced(shown[each]) for each in shown})
        left_out = {"collective_send_bytes", *(() if self._operators.whole else ("operators",))}  # lines of calls
        self.sites.append({metric: found for metric, found in sites.items() if metric not in left_out})

    def _file_known(self) -> None:
        tracker, used = self._tracker, self.used
        parameters = used.parameters
        tracker.mark(used.buffers, "buffers")
        tracker.mark(used.optimizer_state, "optimizer_state")
        tracker.mark(gradients_of(parameters), "gradients")
        tracker.mark(parameters, "parameters")

    def _gradients_complete(self, parameters: list[torch.Tensor]) -> None:
        if not self._operators.whole:
            return
        with self._operators.paused():
            self._tracker.mark(gradients_of(parameters), "gradients")
            self._tracker.mark(self.used.optimizer_state, "optimizer_state")

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        self._operators.add("optimizer_steps", type(optimizer).__name__)
        if not self._operators.whole:
            return
        with self._operators.paused():
            self._tracker.mark(self.used.optimizer_state, "optimizer_state")
            state = self.used.state_bytes()
        if sum(state.values()) > sum(self._state.values()):
            self._state = state


def _kept(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """What a step has left behind, by category; its own tensors that are still there are activations no more."""
    growth = {category: after[category] - before[category] for category in after}
    growth[KEPT] = sum(growth.pop(category) for category in PASSING)
    return growth


def _named(sizes: Mapping[str, int]) -> dict[str, float]:
    return {category: float(size) for category, size in sizes.items() if size}
