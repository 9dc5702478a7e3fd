"""Shows the stacks of this process when a deadline passes: on standard error, also if pytest captures it."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T", str, Exception)

_PART_SECONDS = 5.0
uncaptured: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
"""Returns a context in which pytest does not capture standard error."""


def late(told: T) -> T:
    """Shows the stacks of this process, after the first line of ``told``, a text or an error; returns ``told``."""
    with contextlib.suppress(Exception), uncaptured():
        line = str(told).partition("\n")[0]
        os.write(2, f"\nddpperf: {line}; the stacks of process {os.getpid()}:\n".encode())
        faulthandler.dump_traceback(2)
    return told


@contextlib.contextmanager
def watched(told: str, seconds: float, end: Callable[[], None] = lambda: None) -> Iterator[threading.Event]:
    """Yields an event. If this context lasts over ``seconds``, shows stacks, sets the event and calls ``end``.

    A thread does this, because code in the context may wait for ever. ``end`` is never called after the context.
    """
    done, ended, ending = threading.Event(), threading.Event(), threading.Lock()

    def watch() -> None:
        left = seconds
        while left > 0:  # in parts: a signal may stop this process for long
            if done.wait(min(left, _PART_SECONDS)):
                return
            left -= _PART_SECONDS
        late(told)
        with ending:
            if not done.is_set():
                ended.set()
                end()

    threading.Thread(target=watch, name="ddpperf-overdue", daemon=True).start()
    try:
        yield ended
    finally:
        with ending:
            done.set()
