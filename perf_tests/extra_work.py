"""Makes one workload slower by a known share of its step, to show a red test.

    PERF_TESTS_SLOW="larger:0.5" pytest perf_tests --ddpperf-world-size=2

makes each step of the workload named ``larger`` 50 % longer. ``larger:0`` adds the same hook without any work, for a
fair reference.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Collection
from typing import Any, TypeVar

import torch
from torch import nn

VARIABLE = "PERF_TESTS_SLOW"
Model = TypeVar("Model", bound=nn.Module)


def slowed(model: Model, name: str) -> Model:
    """Return the model; if the environment variable has this name, extra work precedes each forward pass."""
    wanted, _, share = os.environ.get(VARIABLE, "").partition(":")
    if wanted == name:
        model.register_forward_pre_hook(ExtraWork(float(share)))
    return model


class ExtraWork:
    """Computes for a share of the time of a step without this hook; on the CPU it multiplies matrices.

    The hook measures the whole step, from one forward pass to the next, so the share is right even if communication or
    the optimizer takes most of the step.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.step_times: deque[float] = deque(maxlen=15)  # without the extra work
        self.last_end: float | None = None
        self.on_gpu: ExtraSleep | None = None

    def __call__(self, module: nn.Module, _args: Any) -> None:
        """Do the extra work; torch calls this hook before each forward pass."""
        if next(module.parameters()).device.type == "cuda":
            self.on_gpu = self.on_gpu or ExtraSleep(self.share)
            self.on_gpu.add()
            return
        start = time.perf_counter()
        if self.last_end is not None:
            self.step_times.append(start - self.last_end)
            self._multiply_until(start + self.share * _step_time(self.step_times))
        self.last_end = time.perf_counter()

    def _multiply_until(self, deadline: float) -> None:
        matrix = torch.ones(64, 64)
        while time.perf_counter() < deadline:
            torch.mm(matrix, matrix)


class ExtraSleep:
    """Delays the queue of a GPU and, at the same time, the host, both for a share of the step.

    The first delay lengthens a step that waits for the GPU, and the second delay lengthens a step that waits for the
    host. The hook does not synchronise: then the host could no longer run ahead, and the step would get longer by more
    than the share.
    """

    CALIBRATION = 10_000_000  # cycles; some milliseconds
    RECENT = 8  # steps

    def __init__(self, share: float) -> None:
        self.share = share
        self.step_times: deque[float] = deque(maxlen=self.RECENT)  # without the extra work
        self.rates: deque[float] = deque(maxlen=self.RECENT)  # cycles per second: the GPU changes its clock
        self.queued: deque[tuple[Any, int, Any]] = deque()  # of each step: start, cycles and end of the extra work
        self._sleep(self.CALIBRATION)
        torch.cuda.synchronize()
        start, cycles, end = self.queued.pop()
        self.rates.append(cycles / _seconds(start, end))

    def add(self) -> None:
        """Queue the extra work of a step, and delay the host for the same time."""
        begun = time.perf_counter()
        self._learn()
        seconds = self.share * _step_time(self.step_times)
        self._sleep(round(seconds * statistics.median(self.rates)))
        while time.perf_counter() < begun + seconds:
            pass

    def _learn(self) -> None:
        """Read the times of finished steps, each from the end of one extra work to the start of the next one."""
        while len(self.queued) > 1 and self.queued[1][2].query():
            start, cycles, end = self.queued.popleft()
            self.step_times.append(_seconds(end, self.queued[0][0]))
            if cycles:
                self.rates.append(cycles / _seconds(start, end))

    def _sleep(self, cycles: int) -> None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # noqa: SLF001  there is no public one
        end.record()
        self.queued.append((start, cycles, end))


def _step_time(times: Collection[float]) -> float:
    """Return the lower quartile, because the first steps of a process and disturbed steps take longer."""
    return sorted(times)[len(times) // 4] if times else 0.0


def _seconds(start: Any, end: Any) -> float:
    return float(start.elapsed_time(end)) / 1e3  # from ms
