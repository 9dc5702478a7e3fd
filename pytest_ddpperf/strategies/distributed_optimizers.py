"""The parts of torch.distributed.optim in use, without the warning that its import raises."""

from __future__ import annotations

import warnings

import torch

from pytest_ddpperf.errors import WorkloadError

with warnings.catch_warnings():
    # The package also compiles functional optimizers with torch.jit, which torch has deprecated.
    warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
    from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer

__all__ = ["PostLocalSGDOptimizer", "ZeroRedundancyOptimizer", "require_optimizer"]


def require_optimizer(given: object, strategy: str) -> torch.optim.Optimizer:
    """Returns the factory's optimizer; a WorkloadError if it is none of torch's, which alone can be wrapped."""
    if not isinstance(given, torch.optim.Optimizer):
        raise WorkloadError(
            f"{strategy} wraps the workload's optimizer, and optimizer(parameters) gave a value of type "
            f"{type(given).__name__}: give a torch.optim.Optimizer"
        )
    return given
