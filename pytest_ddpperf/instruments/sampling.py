"""Reads values every few tenths of a second, in a thread, while a launch runs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from pytest_ddpperf.records.launch import Window

_MAX_WAIT = 5.0  # seconds to wait for the last reading

T = TypeVar("T")


class Sampler(Generic[T]):
    """A thread that calls ``read`` every ``interval`` seconds until ``stop``; no thread if ``read`` returns no data."""

    def __init__(self, read: Callable[[], T], interval: float) -> None:
        self._read, self._interval = read, interval
        self._samples: list[tuple[float, T]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ddpperf-sampler", daemon=True)
        if self._sample():
            self._thread.start()

    def stop(self, window: Window | None) -> Sequence[tuple[float, T]] | None:
        """Returns the readings in the window (None: all), each with its time; None if the last ``read`` hangs."""
        self._stopped.set()
        if self._samples:
            self._thread.join(_MAX_WAIT)
        begin, end = window or (-math.inf, math.inf)
        return None if self._thread.is_alive() else [each for each in self._samples if begin <= each[0] <= end]

    def _watch(self) -> None:
        while not self._stopped.wait(self._interval):
            self._sample()
        self._sample()

    def _sample(self) -> bool:
        at, reading = time.monotonic(), self._read()
        if reading:
            self._samples.append((at, reading))
        return bool(reading)
