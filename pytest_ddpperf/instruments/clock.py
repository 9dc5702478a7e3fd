"""Clocks that mark the borders of steps, and no garbage collection between them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Clock:
    """How time is marked, and how marks become seconds.

    Attributes:
        settle: returns when all queued work is done, so that the first mark does not time earlier work.
        mark: returns the moment now, for ``seconds``; cheap, and never waits for the device.
        seconds: the seconds between consecutive marks, one number less than there are marks.
    """

    settle: Callable[[], None]
    mark: Callable[[], Any]
    seconds: Callable[[Sequence[Any]], tuple[float, ...]]


def clock_for(device: torch.device, marks: int) -> Clock:
    """The clock of a device; more marks than ``marks`` cost the creation of an event each.

    On CUDA it is the clock of the stream that is current now: a mark made while another stream is current, in a
    prefetcher for instance, is still this stream's.
    """
    return _event_clock(device, marks) if device.type == "cuda" else CPU_CLOCK


def _nothing_queued() -> None:
    """An operator on CPU has done its work when it returns."""


def _differences(marks: Sequence[float]) -> tuple[float, ...]:
    return tuple(after - before for before, after in pairwise(marks))


CPU_CLOCK = Clock(settle=_nothing_queued, mark=time.perf_counter, seconds=_differences)


def _event_clock(device: torch.device, marks: int) -> Clock:
    """Events on one stream: the host never waits inside the block, only when the times are read."""
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

    def settle() -> None:
        torch.cuda.synchronize(device)

    def seconds(marked: Sequence[torch.cuda.Event]) -> tuple[float, ...]:
        settle()
        return tuple(before.elapsed_time(after) / 1e3 for before, after in pairwise(marked))  # from ms

    return Clock(settle=settle, mark=mark, seconds=seconds)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Within, there is no garbage collection; what is due is collected before.

    The objects that ranks inherit from the process they were forked from are frozen, so this takes no time. They must
    stay frozen: a collection of them would copy all of that process's memory.
    """
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
