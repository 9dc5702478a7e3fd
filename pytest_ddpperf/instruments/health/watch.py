"""Watching the machine from the start of a launch to its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from pytest_ddpperf.instruments.health.cpu import cpu_health, read_cpu
from pytest_ddpperf.instruments.health.gpu import watch_gpus
from pytest_ddpperf.records.health import Health

Watch = Callable[[], Health]


def watch_health(ranks_parents: Collection[int | None], *, gpus: bool = False) -> Watch:
    """Start to watch; call what comes back when the launch has ended.

    Args:
        ranks_parents: pids of the processes that ranks are children of, and which outlive them; None for one that is
            not there yet: then what others used cannot be told from what the ranks did.
        gpus: whether to watch those too.
    """
    pids = (os.getpid(), *(0 if pid is None else pid for pid in ranks_parents))  # no process has the number 0
    seen = watch_gpus() if gpus else tuple
    before = read_cpu(pids)
    return lambda: Health(cpu=cpu_health(before, read_cpu(pids)), gpus=seen())
