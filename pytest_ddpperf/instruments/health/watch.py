"""Watching the machine from the start of a launch to its end."""

from __future__ import annotations

import os
from collections.abc import Callable

from pytest_ddpperf.health import Health
from pytest_ddpperf.instruments.health.cpu import cpu_health, read_cpu
from pytest_ddpperf.instruments.health.gpu import watch_gpus

Watch = Callable[[], Health]


def watch_health(ranks_parent: int | None, *, gpus: bool = False) -> Watch:
    """Start to watch; call what comes back when the launch has ended.

    Args:
        ranks_parent: pid of the process that ranks are children of, and which outlives them; None where there is none
            yet: then what others used cannot be told from what the ranks did.
        gpus: whether to watch those too.
    """
    pids = (os.getpid(), ranks_parent if ranks_parent is not None else 0)  # no process has the number 0
    seen = watch_gpus() if gpus else tuple
    before = read_cpu(pids)
    return lambda: Health(cpu_health(before, read_cpu(pids)), seen())
