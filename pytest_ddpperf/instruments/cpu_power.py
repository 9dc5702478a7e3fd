"""Power of processors by their own counters of energy (RAPL), which the kernel shows below sys; often to root alone."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from pytest_ddpperf.instruments.host import kernel_number, kernel_text
from pytest_ddpperf.records.launch import Window

INTERVAL = 0.1  # seconds: a counter of 32 bits goes round in a minute at the soonest
_MAX_WAIT = 5.0  # seconds to wait for the last reading
_ROOT = Path("/")
_ZONE = re.compile(r"intel-rapl:\d+")  # AMD's too; those below are parts of one, and intel-rapl-mmio shows one again

Reading = tuple[float, tuple[int, ...]]
"""Seconds of the machine's monotonic clock, and the counter of each package in uJ."""


class CpuPowerWatch:
    """Reads the counters of all processor packages every ``interval`` seconds until it is stopped.

    It does nothing if a package does not show its counter.
    """

    def __init__(
        self, root: Path = _ROOT, interval: float = INTERVAL, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval, self._clock = interval, clock
        self._packages = packages(root)
        self._ranges = tuple(kernel_number(package / "max_energy_range_uj") or 0 for package in self._packages)
        self._readings: list[Reading] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ddpperf-cpu-power", daemon=True)
        self._read()
        if self._readings:
            self._thread.start()

    def stop(self, window: Window | None) -> float | None:
        """The mean power of all packages in the window, or since the start, in W; None for less than two readings."""
        self._stopped.set()
        if self._readings:
            self._thread.join(_MAX_WAIT)
            self._read()
        begin, end = window or (-math.inf, math.inf)
        return mean_power([reading for reading in self._readings if begin <= reading[0] <= end], self._ranges)

    def _watch(self) -> None:
        while not self._stopped.wait(self._interval):
            self._read()

    def _read(self) -> None:
        at, counters = self._clock(), [kernel_number(package / "energy_uj") for package in self._packages]
        known = tuple(counter for counter in counters if counter is not None)
        if known and len(known) == len(counters):
            self._readings.append((at, known))


def packages(root: Path = _ROOT) -> tuple[Path, ...]:
    """The folders of the machine's processor packages; the whole system and memory of its own are none."""
    folders = (root / "sys/class/powercap").glob("intel-rapl:*")
    zones = sorted(folder for folder in folders if _ZONE.fullmatch(folder.name))
    return tuple(zone for zone in zones if kernel_text(zone / "name").startswith("package"))


def mean_power(readings: Sequence[Reading], ranges: Sequence[int]) -> float | None:
    """The energy between the readings over their time, in W; a counter begins again at 0 after its range, in uJ."""
    if not readings or readings[-1][0] <= readings[0][0]:
        return None
    used = sum(
        now - before if now >= before else now - before + most
        for (_, earlier), (_, later) in pairwise(readings)
        for before, now, most in zip(earlier, later, ranges, strict=True)
    )
    return used * 1e-6 / (readings[-1][0] - readings[0][0])
