"""What runs on a rank: a workload or a user's own step, warmed up and timed."""

from pytest_ddpperf.training.workload import Workload

__all__ = ["Workload"]
