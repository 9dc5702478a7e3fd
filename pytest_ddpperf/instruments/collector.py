"""The garbage collector out of the way of what is measured."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection inside: what is due is collected before.

    What ranks have from the process that they were forked from is frozen, so that this takes no time; it must stay so:
    to look through it would copy all of its memory.
    """
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
