"""A made-up pynvml: GPUs of a machine, MIG, cgroups that hide some, and functions that a library lacks."""
# ruff: noqa: N802 - the names are pynvml's

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

FIRST, SECOND = "0000:1b:00.0", "0000:5d:00.0"


class NVMLError(Exception):
    """As pynvml has it."""


class FakeNvml:
    """Two GPUs, linked by NVLink; the second tells neither power nor processes. Handles are their numbers."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    NVML_P2P_CAPS_INDEX_READ = (0,)  # as in pynvml
    NVML_P2P_CAPS_INDEX_WRITE, NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK = 1, 2, 0

    def __init__(self) -> None:
        self.pids = [100, 200, os.getpid()]
        self.initialised = 0
        self.hidden: set[str] = set()  # GPUs that this process may not open
        self.mig: set[int] = set()  # GPUs that are divided into instances
        self.links = {2: 0, 1: 0}  # by capability: 0 is OK
        self.limits = {0: 700_000, 1: 700_000}  # mW

    def nvmlInit(self) -> None:
        self.initialised += 1

    def nvmlShutdown(self) -> None:
        self.initialised -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"

    def nvmlDeviceGetHandleByPciBusId(self, device: str) -> int:
        if device in self.hidden:
            raise NVMLError("Insufficient Permissions")
        return {FIRST: 0, SECOND: 1}[device]

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [int(handle in self.mig), 0]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        if handle in self.mig:
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=90 - handle, memory=40)

    def nvmlDeviceGetClockInfo(self, _handle: int, clock: int) -> int:
        return {1: 1700}[clock]

    def nvmlDeviceGetApplicationsClock(self, handle: int, _clock: int) -> int:
        if handle:
            raise NVMLError("Not Supported")
        return 1755

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _handle: int) -> int:
        return 0x04

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if handle:
            raise NVMLError("Not Supported")
        return 500_000

    def nvmlDeviceGetPowerManagementLimit(self, handle: int) -> int:
        return self.limits[handle]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        if handle:
            raise NVMLError("Not Supported")
        return [SimpleNamespace(pid=pid, usedGpuMemory=None if pid == 100 else 2**20) for pid in self.pids]

    def nvmlDeviceGetPersistenceMode(self, _handle: int) -> int:
        return 1

    def nvmlDeviceGetEccMode(self, handle: int) -> list[int]:
        if handle:
            raise NVMLError("Not Supported")
        return [1, 0]

    def nvmlDeviceGetComputeMode(self, _handle: int) -> int:
        return 0

    def nvmlDeviceGetP2PStatus(self, _one: int, _other: int, capability: int) -> int:
        return self.links[capability]


class CountingNvml(FakeNvml):
    """One whose driver counts energy, and how long it held clocks back for power."""

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return 1000 + handle

    def nvmlDeviceGetViolationStatus(self, _handle: int, policy: int) -> Any:
        if policy != 0:
            raise NVMLError("Not Supported")
        return SimpleNamespace(referenceTime=0, violationTime=7)


def refusing(*_: object) -> Any:
    """Stands in for any function of a driver that has lost its GPU."""
    raise NVMLError("GPU is lost")
