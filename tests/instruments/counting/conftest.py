"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pytest_ddpperf.launch import Launcher


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Counts do not depend on it, but many tests beside each other are the faster for it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def counting_launcher() -> Iterator[Launcher]:
    """It has torch's FSDP loaded, which would cost every launch a second."""
    with Launcher(preload=("torch.distributed.fsdp",)) as launcher:
        yield launcher
