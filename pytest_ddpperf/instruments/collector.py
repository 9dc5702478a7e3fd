"""Keeps the garbage collector out of measurements."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
