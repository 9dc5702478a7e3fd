"""Watches the machine from the start of a launch to its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from pytest_ddpperf.instruments.health.cpu import cpu_health, read_cpu
from pytest_ddpperf.records.health import GpuHealth, Health

Watch = Callable[[], Health]


def watch_health(ranks_parents: Collection[int | None], *, gpus: bool = False) -> Watch:
    """Starts to watch; call the result when the launch has ended.

    ``ranks_parents`` are the pids of the processes that fork the ranks and outlive them. None stands for a process that
    does not exist yet; then other processes' CPU time cannot be told from the ranks'.
    """
    pids = (os.getpid(), *(0 if pid is None else pid for pid in ranks_parents))  # no process has the number 0
    seen: Callable[[], tuple[GpuHealth, ...]] = tuple
    if gpus:
        from pytest_ddpperf.instruments.health.gpu import watch_gpus

        seen = watch_gpus()
    before = read_cpu(pids)
    return lambda: Health(cpu=cpu_health(before, read_cpu(pids)), gpus=seen())
