"""pytest-ddpperf: the speed, memory and scaling of distributed PyTorch training as tests that pass or fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ddpperf.training.workload import Workload

__all__ = ["Workload"]


def __getattr__(name: str) -> object:
    """Import the public names when they are asked for: pytest loads this package with every run."""
    if name == "Workload":
        from pytest_ddpperf.training.workload import Workload

        return Workload
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
