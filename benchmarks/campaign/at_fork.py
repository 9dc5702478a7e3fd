"""Faults at the start of a rank and while it joins the group: the zygote imports this module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

SCRATCH = "DDPPERF_CAMPAIGN"
_zygote = os.getpid()
_forks: dict[str, int] = {}
_rank = -1


def _before() -> None:
    """Count the forks of a case: ranks are forked in order."""
    global _rank
    try:
        text = Path(os.environ[SCRATCH], "at_fork.json").read_text(encoding="utf-8")
    except (KeyError, OSError):
        _forks.clear()
        return
    if os.getpid() == _zygote:
        _rank = _forks[text] = _forks.get(text, -1) + 1


def _in_child() -> None:
    if os.getppid() != _zygote:
        return
    scratch = os.environ.get(SCRATCH, "")
    try:
        text = Path(scratch, "at_fork.json").read_text(encoding="utf-8")
    except OSError:
        return
    from benchmarks.campaign.training import reach, read

    case, rank = read(text), _rank
    reach(case, rank, "start", scratch)
    if case.phase == "join":
        import torch.distributed as dist

        joined: Any = dist.init_process_group

        def join(*arguments: Any, **options: Any) -> None:
            reach(case, rank, "join", scratch)
            joined(*arguments, **options)

        dist.init_process_group = join


os.register_at_fork(before=_before, after_in_child=_in_child)
