"""The counted pass: a few warm steps under the counters, and what one of them does."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._guards import detect_fake_mode
from torch.profiler import ProfilerActivity, profile, record_function

from pytest_ddpperf.instruments.clock import collector_paused
from pytest_ddpperf.instruments.counting.dispatch import OperatorCounter, loading_left_out
from pytest_ddpperf.instruments.counting.module_tracker import ModuleTracker, ddp_buckets, gradients_of
from pytest_ddpperf.instruments.counting.python import BatchRows, calls_counted
from pytest_ddpperf.instruments.counting.sites import SiteCounts, break_sites, call_sites, compiled_sites
from pytest_ddpperf.instruments.counting.tensors import KEPT, PASSING, TensorTracker
from pytest_ddpperf.instruments.torch_internals import activity_of, discard_first_profile, eagerly, unsampled, warmed_up
from pytest_ddpperf.records.counts import COUNTS, Counts, count_row
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.units import format_number

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
_LEVELS = frozenset({"peak_tensor_bytes", "model_state_bytes"})  # of several steps the largest counts, not the mean

Details = dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Countable:
    """What is known of a step before it runs."""

    device: torch.device
    modules: Sequence[nn.Module] = ()  # other models are found as they run
    size: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # details of the whole model, where known
    optimizers: Sequence[torch.optim.Optimizer] = ()  # others are found as they step
    period: int = 1  # steps after which it does the same again
    roots: tuple[str, ...] = ()  # of the project; the lines of code that counts come from are told relative to them
    strategy: str = ""  # of the plugin that it trains with


def count_step(run: Callable[[], Any], subject: Countable, *, warmup: int = 2, periods: int = 2) -> Counts:
    """Counts what one call of ``run`` does on this rank after ``warmup`` steps."""
    return count_warm_step(run, subject, warmed_up(run, warmup), periods=periods)


def count_warm_step(run: Callable[[], Any], subject: Countable, plain: Details, *, periods: int = 2) -> Counts:
    """Counts what one call of a warm ``run`` does on this rank: collectives, FLOPs, operators, memory.

    A collective, called with the same numbers on all ranks. After some steps that show which tensors outlive a step,
    ``periods`` count, each of as many steps as it takes until the work repeats; on CUDA as many again run under the
    profiler. A period counts with the mean of its steps. A metric in which periods differ is named in ``unstable``, and
    the period with the most counts. Steps that torch.compile has compiled are counted as they run without it, but for
    ``graph_breaks`` and ``recompiles``: these are among what ``plain`` steps have shown, as ``warmed_up`` finds it, and
    objects that they left behind. Workers that each epoch starts come on top of the processes of a step.
    """
    pass_, learning = _Pass(subject), max(_LEARNING_STEPS, subject.period)

    def period(count: Callable[[], Details]) -> Details:
        return _per_step([count() for _ in range(subject.period)])

    with collector_paused(), eagerly(), pass_.counting():
        for _ in range(learning):
            pass_.step(run)
        counted = [period(partial(pass_.step, run)) for _ in range(periods)]
    if len(pass_.rows) > 1 or 0.0 in pass_.rows:  # not sure, or not the same in each step
        counted = [{metric: found for metric, found in each.items() if metric != "batch_rows"} for each in counted]
    if subject.device.type == "cuda":
        discard_first_profile()
        with unsampled(pass_.used.roots):
            counted = [{**details, **period(partial(device_work, run))} for details in counted]
    buckets = ddp_buckets(pass_.used.roots)
    known = {metric: dict(parts) for metric, parts in subject.size.items()}
    same, metric = {"ddp_buckets": buckets, **known, **plain}, "processes_started"
    started = [{metric: {**details[metric], **plain.get(metric, {})}} for details in counted]
    found = _counts([{**each, **same, **more} for each, more in zip(counted, started, strict=True)], subject.period)
    sites = call_sites(pass_.sites[learning:], subject.period, subject.roots, subject.strategy)
    of_compiler = {"graph_breaks": break_sites(), "recompiles": compiled_sites(plain.get("recompiles", {}))}
    breaks = call_sites([of_compiler], 1, subject.roots)
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
        self.sites: list[SiteCounts] = []  # of each step
        self.rows: set[float] = set()  # of the batches of a step, in any of them; 0 if they are not sure
        self._state: dict[str, float] = {}

    @contextmanager
    def counting(self) -> Iterator[None]:
        left_out = loading_left_out(self._operators.paused, self._batches.loaded)
        calls = calls_counted(self._operators.add)
        with self.used.watching(), self._tracker.resizes_seen(), left_out, calls, self._operators:
            yield

    def step(self, run: Callable[[], Any]) -> Details:
        with self._operators.paused():
            self._file_known()
            self._tracker.begin_step()
            before, made = dict(self._tracker.live), self._tracker.passing()
        self._operators.begin_step()
        self._batches.begin_step()
        self._state = {}
        run()
        rows = self._batches.rows(_total(self._operators.details()["backward_passes"]))
        self.rows.add(_total(rows))
        with self._operators.paused():
            state = self._state or self.used.state_bytes()
            peak = self._tracker.peak()
            self._file_known()
            gc.collect()  # garbage is not kept
            self._tracker.settle()
            after = self._tracker.live
            kept = self._tracker.passing()
            kept.subtract(made)
        self.sites.append({**self._operators.sites(), "retained_bytes": kept})
        return {
            **self._operators.details(),
            "batch_rows": rows,
            "peak_tensor_bytes": _named(peak),
            "model_state_bytes": state,
            "retained_bytes": _named(_kept(before, after)),
        }

    def _file_known(self) -> None:
        tracker, used = self._tracker, self.used
        parameters = used.parameters
        tracker.mark(used.buffers, "buffers")
        tracker.mark(used.optimizer_state, "optimizer_state")
        tracker.mark(gradients_of(parameters), "gradients")
        tracker.mark(parameters, "parameters")

    def _gradients_complete(self, parameters: list[torch.Tensor]) -> None:
        with self._operators.paused():
            self._tracker.mark(gradients_of(parameters), "gradients")

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        self._operators.add("optimizer_steps", type(optimizer).__name__)
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


def _per_step(steps: Sequence[Details]) -> Details:
    """What a step does, from the steps of a period: of levels the largest, of all else the mean."""
    return {
        metric: max((step[metric] for step in steps), key=_total)
        if metric in _LEVELS
        else _by_name([step[metric] for step in steps], lambda values: sum(values) / len(values))
        for metric in _common(steps)
    }


def _common(found: Sequence[Details]) -> list[str]:
    """The metrics that each has; a profile may have seen nothing of the device."""
    return [metric for metric in found[0] if all(metric in details for details in found)]


def _by_name(found: Sequence[Mapping[str, float]], combined: Callable[[Sequence[float]], float]) -> dict[str, float]:
    names = dict.fromkeys(name for parts in found for name in parts)
    return {name: combined([parts.get(name, 0.0) for parts in found]) for name in names}


def _counts(periods: Sequence[Details], steps: int) -> Counts:
    """The counts of a step, metric by metric of the period with the most, and what the periods differ in."""
    last = {metric: periods[-1][metric] for metric in _common(periods)}
    most = {metric: max((found[metric] for found in reversed(periods)), key=_total) for metric in last}
    totals = {metric: _total(found) for metric, found in most.items()}
    # Metrics whose parts are gated have the parts of all periods: a single period could match the baseline by chance.
    made_up = {
        metric: _by_name([found[metric] for found in periods], max) for metric in last if count_row(metric).made_up
    }
    details = {metric: made_up.get(metric, parts) for metric, parts in most.items()}
    totals["ddp_buckets"] = float(len(details["ddp_buckets"]))
    unstable = {}
    for metric, found in last.items():
        if not count_row(metric).gated:
            continue
        for other in periods[:-1]:
            difference = _difference(other[metric], found, steps)
            if difference:
                unstable[metric] = difference
    return Counts(totals=totals, details=details, unstable=unstable)


def _difference(first: Mapping[str, float], following: Mapping[str, float], steps: int) -> str:
    """What two periods differ in most; empty if they are alike."""
    sizes = {name: abs(following.get(name, 0.0) - first.get(name, 0.0)) for name in {**following, **first}}
    name = max(sizes, key=sizes.__getitem__, default="")
    if not sizes.get(name):
        return ""
    before, after = (format_number(parts.get(name, 0.0)) for parts in (first, following))
    if steps == 1:
        return f"{name} {before} in one step, {after} in the next"
    return f"{name} {before} per step in {steps} steps, {after} in the next {steps}"


def _total(parts: Mapping[str, float]) -> float:
    return float(sum(parts.values()))
