"""What a rank still holds after each of a few steps, read in a pass of its own: a leak shows in it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_ddpperf.instruments.phases.memory import memory_reader

if TYPE_CHECKING:
    import torch

BLOCK_BYTES = 64
"""What a small Python object is taken for: Python has pages of its own for them and tells only how many there are."""


def held_after_steps(run: Callable[[], object], steps: int, device: torch.device) -> tuple[int, ...]:
    """The bytes that this process holds before the first of ``steps`` calls of ``run``, and after each of them.

    On CUDA those are the live tensors in the caching allocator's blocks; on CPU what malloc has given out, tensors and
    all else, and Python's small objects. Garbage is collected before each reading: what only waits for that is no leak.
    That is cheap on a rank, where all that comes from the process it was forked from is set aside.

    Args:
        run: one step, which all ranks do together; already warmed up.
        steps: how many; the same on all ranks.
        device: where the steps compute.

    Returns:
        One number more than ``steps``; none where the system does not tell. The steps are run in any case: the other
        ranks' are waiting in theirs.
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
