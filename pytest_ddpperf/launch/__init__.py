"""Fresh ranks for every launch: ``Launcher.run(function, world_size=4)`` gives back what each rank returned.

Importing this package imports neither torch nor numpy; only the ranks have them.
"""

from __future__ import annotations

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import LONGEST_TIMEOUT, Launcher, LaunchResult
from pytest_ddpperf.launch.launchers import LAUNCHER_BYTES, Launchers
from pytest_ddpperf.launch.machine import TorchMachine
from pytest_ddpperf.launch.outputs import RankOutput

__all__ = [
    "LAUNCHER_BYTES",
    "LONGEST_TIMEOUT",
    "LaunchResult",
    "Launcher",
    "Launchers",
    "RankContext",
    "RankOutput",
    "TorchMachine",
]
