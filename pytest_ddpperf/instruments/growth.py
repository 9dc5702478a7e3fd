"""What a rank still holds after each of a few steps, in a pass of its own: a leak shows there."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_ddpperf.instruments.live_memory import memory_reader

if TYPE_CHECKING:
    import torch

BLOCK_BYTES = 64
"""The assumed size of a small Python object: Python has pages of its own for them, and tells only their number."""


def held_after_steps(run: Callable[[], object], steps: int, device: torch.device) -> tuple[int, ...]:
    """The bytes that this process holds before the first of ``steps`` calls of ``run``, and after each of them.

    On CUDA these are the live tensors in the caching allocator's blocks; on CPU everything that malloc has given out,
    and Python's small objects. Garbage is collected before each reading, because garbage is no leak. That is cheap on a
    rank, where objects of the process it was forked from are set aside. If the system does not report memory, the
    result is empty, but the steps run, because other ranks wait in theirs.
    """
    reader = memory_reader(device)
    if reader is None:
        for _ in range(steps):
            run()
        return ()
    kind, read = reader
    block = BLOCK_BYTES if kind == "heap" else 0

    def held() -> int:
        gc.collect()
        return read()[0] + block * sys.getallocatedblocks()

    readings = [held()]
    for _ in range(steps):
        run()
        readings.append(held())
    return tuple(readings)
