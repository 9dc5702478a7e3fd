"""The second verb: hold what was measured against a baseline, metric by metric."""

from pytest_ddpperf.compare.benchmark import compare
from pytest_ddpperf.compare.rules import Rules

__all__ = ["Rules", "compare"]
