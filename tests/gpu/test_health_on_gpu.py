"""The health of a GPU by the real driver, while a rank computes on it."""

from __future__ import annotations

import time

import pytest

from pytest_ddpperf.instruments.health import INTERVAL, watch_gpus
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher

READINGS = 8


def multiplies(ctx: RankContext) -> None:
    """Keeps a GPU busy for some readings of the driver."""
    import torch

    matrix = torch.ones(4096, 4096, device=ctx.device)
    until = time.monotonic() + READINGS * INTERVAL
    while time.monotonic() < until:
        matrix = matrix @ matrix / 4096
        torch.cuda.synchronize()


@pytest.mark.gpu
def test_a_busy_gpu_is_seen(launcher: Launcher) -> None:
    """On MIG the driver tells clocks and memory, and no utilisation."""
    pytest.importorskip("pynvml", reason="the library of the driver is in the extra gpu")
    first = launcher.machine().gpus.pci[0]
    assert first is not None
    stop = watch_gpus([first])
    launcher.run(multiplies, world_size=1, device="cuda", backend="nccl", timeout=60)
    seen, unread = stop(None)
    assert ([gpu.device for gpu in seen], unread) == ([first], ())
    assert max(gpu.readings for gpu in seen) > 1
    clocks = [gpu.sm_clock for gpu in seen if gpu.sm_clock is not None]
    assert 1e8 < max(clocks) < 1e10
    shares = [gpu.utilisation for gpu in seen if gpu.utilisation is not None]
    assert not shares or 0.1 < max(shares) <= 1
