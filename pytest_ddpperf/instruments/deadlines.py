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


def late(message: T) -> T:
    """Prints the first line of ``message``, and the stacks of this process, to stderr; returns ``message``."""
    with contextlib.suppress(Exception), uncaptured():
        line = str(message).partition("\n")[0]
        os.write(2, f"\nddpperf: {line}; the stacks of process {os.getpid()}:\n".encode())
        faulthandler.dump_traceback(2)
    return message


@contextlib.contextmanager
def watched(message: str, seconds: float, end: Callable[[], None] = lambda: None) -> Iterator[threading.Event]:
    """Yields an event, which is set if this context lasts over ``seconds``.

    A thread sets the event, prints ``message`` and stacks, and calls ``end``, because code in the context may wait for
    ever. ``end`` is never called after the context.
    """
    done, ended, ending = threading.Event(), threading.Event(), threading.Lock()

    def watch() -> None:
        left = seconds
        while left > 0:  # in parts: a signal may stop this process for long
            if done.wait(min(left, _PART_SECONDS)):
                return
            left -= _PART_SECONDS
        late(message)
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
