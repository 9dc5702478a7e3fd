"""Clocks that time steps. Also pauses Python's garbage collector, and finds tools that slow Python down."""

from __future__ import annotations

import gc
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    import torch

_TOOLS = 6  # of sys.monitoring
_time: Any = importlib.util.module_from_spec(cast("ModuleSpec", importlib.util.find_spec("time")))
_time.__spec__.loader.exec_module(_time)


class system_time:  # noqa: N801  it takes the place of the module ``time``
    """The clocks of our own copy of the module ``time``, because users' code may freeze or mock the module's clocks."""

    monotonic: Callable[[], float] = _time.monotonic
    perf_counter: Callable[[], float] = _time.perf_counter
    process_time: Callable[[], float] = _time.process_time
    sleep: Callable[[float], None] = _time.sleep
    time: Callable[[], float] = _time.time
    time_ns: Callable[[], int] = _time.time_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """The functions that time steps on a device: ``mark`` records a moment, ``seconds`` returns times between marks."""

    settle: Callable[[], None]  # waits until all queued work is done, so that the first mark does not time earlier work
    mark: Callable[[], Any]  # the moment now, for ``seconds``; cheap, and never waits for the device
    seconds: Callable[[Sequence[Any]], tuple[float, ...]]  # between consecutive marks, one fewer than there are marks
    wall: Callable[[], float] | None = None  # the host's clock, if marks may miss work of other streams; else None
    missed: list[float] = field(default_factory=list)  # the share of each block's wall time that its marks missed


def clock_for(device: torch.device, marks: int) -> Clock:
    """Returns a clock for a device; on CUDA with ``marks`` events for the current stream, created in advance."""
    return _event_clock(device, marks) if device.type == "cuda" else CPU_CLOCK


def settle(device: torch.device) -> None:
    """Waits until a GPU has done all queued work; does nothing for a CPU, whose operators return when done."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


CPU_CLOCK = Clock(
    settle=lambda: None,
    mark=system_time.perf_counter,
    seconds=lambda marks: tuple(after - before for before, after in pairwise(marks)),
)


def _event_clock(device: torch.device, marks: int) -> Clock:
    """Returns a clock that uses CUDA events on one stream: ``mark`` never waits for the GPU, only ``seconds`` does."""
    import torch

    make_event: Callable[..., torch.cuda.Event] = torch.cuda.Event  # torch leaves it untyped
    stream = torch.cuda.current_stream(device)
    events = [make_event(enable_timing=True) for _ in range(marks)]
    for event in events:
        event.record(stream)  # the driver creates an event at its first record, which must not be timed
    unused = iter(events)

    def mark() -> torch.cuda.Event:
        event = next(unused, None) or make_event(enable_timing=True)
        event.record(stream)
        return event

    def seconds(marked: Sequence[torch.cuda.Event]) -> tuple[float, ...]:
        settle(device)
        return tuple(before.elapsed_time(after) / 1e3 for before, after in pairwise(marked))  # from ms

    return Clock(settle=partial(settle, device), mark=mark, seconds=seconds, wall=system_time.perf_counter)


@contextmanager
def uncollected() -> Iterator[None]:
    """Switches garbage collection off, in this context."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Collects garbage, except objects that a fork inherited; then pauses the garbage collector in this context."""
    gc.collect()
    with uncollected():
        yield


def tracers() -> tuple[str, ...]:
    """Returns the names of tools, such as ``coverage``, that trace Python in this or new threads and so slow it."""
    functions = [sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()]
    modules = [getattr(each, "__module__", None) or type(each).__module__ for each in functions if each is not None]
    found = [str(module).partition(".")[0] for module in modules]
    monitoring = getattr(sys, "monitoring", None)  # of Python 3.12 and newer
    if monitoring is not None:
        tools = [number for number in range(_TOOLS) if monitoring.get_tool(number) is not None]
        found += [str(monitoring.get_tool(number)) for number in tools if monitoring.get_events(number)]
    return tuple(dict.fromkeys(found))
