"""Diagnoses a launch on one rank: divides a few more steps into phases, and times matrix products and copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.instruments.clock import clock_for, settle
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.memory import Reading, memory_reader
from pytest_ddpperf.instruments.phases.phase_hooks import PhaseHook, followed, optimizers_followed, torch_phase_hooks
from pytest_ddpperf.instruments.phases.recorder import Recorder, Trace
from pytest_ddpperf.instruments.torch_internals import compiled_frames, uncompiled
from pytest_ddpperf.records.launch import MachineRates
from pytest_ddpperf.records.phases import PHASES, MemoryKind, MemoryUse, PhaseTimes, SectionTimes

if TYPE_CHECKING:
    import torch

_ROWS = {"cpu": 512, "cuda": 4096}  # of square matrices
_COPIED = {"cpu": 32 << 20, "cuda": 256 << 20}  # bytes of a tensor: two of them exceed the caches
_LAYERS = 20  # of the small step
_OPERATORS = 6  # of each layer: two in forward, three in backward, and the sum of the weight's gradients
_LEAST_SECONDS = 0.02  # of each kind of work, and
_LEAST_TIMES = 3
_MOST_TIMES = 1000  # whatever the clock says
_TICK = 1e-9  # seconds: no work takes less


def break_down(trace: Trace, seconds: Sequence[float], memory: tuple[MemoryKind, Trace] | None = None) -> PhaseTimes:
    """Returns the seconds of each phase and section; ``seconds`` has the times between the marks of ``trace``.

    The time between two marks belongs to one phase, and to all sections around this phase. Phases add up to the step;
    sections (parts that the user names) may overlap. ``memory``: its kind, and a trace of it.
    """
    steps = len(trace.starts)
    phases: dict[str, list[float]] = {phase: [0.0] * steps for phase in PHASES}
    whole: dict[str, list[float]] = defaultdict(lambda: [0.0] * steps)
    own: dict[str, list[float]] = defaultdict(lambda: [0.0] * steps)
    for step, (first, end) in enumerate(pairwise((*trace.starts, len(trace.places)))):
        for place, duration in zip(trace.places[first:end], seconds[first:end], strict=True):
            phases[place.phase][step] += duration
            for path in place.sections:
                whole[path][step] += duration
            if place.sections:
                own[place.sections[-1]][step] += duration
    counts: dict[str, int] = defaultdict(int)  # of each section: how often it was entered from the node just outside
    for outside, place in pairwise(trace.places):
        if place.parent is outside and len(place.sections) > len(outside.sections):
            counts[place.sections[-1]] += 1
    of_phases, of_sections = ({}, {}) if memory is None else _memory_uses(*memory)
    return PhaseTimes(
        seconds={phase: tuple(times) for phase, times in phases.items()},
        sections=tuple(
            SectionTimes(
                path=path,
                count=counts[path] / steps,
                seconds=tuple(times),
                own_seconds=tuple(own[path]),
                memory=of_sections.get(path),
            )
            for path, times in whole.items()
        ),
        memory=of_phases,
    )


def _memory_uses(kind: MemoryKind, trace: Trace) -> tuple[dict[str, MemoryUse], dict[str, MemoryUse]]:
    """Returns the memory of phases (without nested phases), and of sections (with everything inside)."""
    phases: dict[str, MemoryUse] = {}
    sections: dict[str, MemoryUse] = {}
    readings: Sequence[Reading] = trace.marks
    for place, ((before, _), (after, peak)) in zip(trace.places, pairwise(readings), strict=True):
        for uses, name in ((phases, place.phase), *((sections, path) for path in place.sections)):
            use = uses.get(name, MemoryUse(kind=kind, change=0, peak=None))
            peaks = [known for known in (use.peak, peak) if known is not None]
            uses[name] = MemoryUse(kind=kind, change=use.change + after - before, peak=max(peaks, default=None))
    return phases, sections


def diagnose(
    run: Callable[[], object], steps: int, device: torch.device, hooks: Sequence[PhaseHook] = ()
) -> PhaseTimes:
    """Measures the time of a step by phases: calls ``run`` ``steps`` + 1 times, under instruments.

    The first step measures only memory, because reading memory is slow; the other steps measure time. Each moment of a
    step belongs to one phase only, so that the phases add up to the step:

    - ``data_wait``: the rank requests the next batch of a DataLoader, or a new epoch.
    - ``forward``: a call of a module that no other module called, including hooks such as FSDP's gathering of
      parameters. A loss function counts only if it is a module, or if ``hooks`` name it.
    - ``backward``: autograd runs. This phase includes recomputation, and communication that no timer can separate.
    - ``gradient_sync``: the rank begins or awaits any collective, outside of the other phases.
    - ``optimizer``: ``step`` and ``zero_grad`` of an optimizer, torch's gradient clipping and gradient scaler.
    - ``other``: everything else, and all code that torch.compile has taken into the graph of a whole step.

    On CUDA times are taken by events on the stream that is current at the start, and no step waits for an event. A
    phase lasts as long as this stream works on the phase, so the host's work costs nothing while the device is busy.
    Work in other threads belongs to the present phase of the main thread. If ``run`` raises, instruments are removed.
    """
    recorder = Recorder()
    reader = memory_reader(device)
    with followed(recorder, (*torch_phase_hooks(), *hooks)), ExitStack() as optimizers:
        optimizers.enter_context(optimizers_followed(recorder))
        frames = compiled_frames()
        first = recorder.record(run, 1, (lambda: None) if reader is None else reader[1])
        if compiled_frames() > frames:
            optimizers.close()  # they are part of the compiled step, which must stay the one that is timed
        clock = clock_for(device, marks=len(first.marks) * steps)

        @uncompiled
        def mark() -> Any:
            return clock.mark()

        clock.settle()
        trace = recorder.record(run, steps, mark)
    return break_down(trace, clock.seconds(trace.marks), None if reader is None else (reader[0], first))


def read_rates(device: torch.device, precision: str = "fp32") -> MachineRates | None:
    """Times matrix products, copies and small operators on this rank.

    All ranks call this function at the same time, so that they share the machine as in steps. ``precision`` is the
    precision of the products. The shortest of several times counts. No random number is drawn. The result is None if
    the tensors, less than 100 MB on the CPU, do not fit into memory.
    """
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    rows, copied = _ROWS[device.type], _COPIED[device.type]
    try:
        with torch.autocast(device.type, enabled=False), torch.no_grad():
            matrix = torch.ones((rows, rows), dtype=dtype, device=device)
            product = torch.empty_like(matrix)
            source = torch.ones(copied // 4, dtype=torch.float32, device=device)
            target = torch.empty_like(source)
            products = _shortest(lambda: torch.mm(matrix, matrix, out=product), device)
            copies = _shortest(lambda: target.copy_(source), device)
        small = _shortest(_small_step(device), device)
    except (MemoryError, torch.OutOfMemoryError, RuntimeError):  # the CPU's allocator raises a RuntimeError
        return None
    return MachineRates(
        products=2 * rows**3 / products, copies=2 * copied / copies, operator=small / (_OPERATORS * _LAYERS)
    )


def _small_step(device: torch.device) -> Callable[[], object]:
    import torch

    weight = torch.ones((4, 4), device=device, requires_grad=True)
    inputs = torch.ones((4, 4), device=device)

    def step() -> None:
        weight.grad = None
        with torch.enable_grad():
            outputs = inputs
            for _ in range(_LAYERS):
                outputs = torch.tanh(outputs @ weight)
            torch.autograd.backward(outputs.sum())

    return step


def _shortest(work: Callable[[], object], device: torch.device) -> float:
    work()
    settle(device)
    begun, times = time.perf_counter(), list[float]()
    while len(times) < _LEAST_TIMES or (len(times) < _MOST_TIMES and time.perf_counter() - begun < _LEAST_SECONDS):
        before = time.perf_counter()
        work()
        settle(device)
        times.append(time.perf_counter() - before)
    return max(_TICK, min(times))
