"""A way to see a red test: make one workload slower than it is, by a known share of its step.

    PERF_TESTS_SLOW="larger:0.5" pytest perf_tests --ddpperf-world-size=2

makes every step of the workload named ``larger`` take half as long again. ``larger:0`` adds the same hook without any
work: that is what a slower workload is fairly compared with.
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
    """The model, with extra work before each forward pass if the environment asks for it by this name."""
    wanted, _, share = os.environ.get(VARIABLE, "").partition(":")
    if wanted == name:
        model.register_forward_pre_hook(ExtraWork(float(share)))
    return model


class ExtraWork:
    """Works for a share of the time that a step takes without it: on the CPU it multiplies matrices.

    Work measured against the whole step, from one forward pass to the next, hits the share wherever the step spends
    its time: a repeated forward and backward pass of a slice of the batch would miss communication and optimizer.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.step_times: deque[float] = deque(maxlen=15)  # without the extra work
        self.last_end: float | None = None
        self.on_gpu: ExtraSleep | None = None

    def __call__(self, module: nn.Module, _args: Any) -> None:
        """Called by torch before each forward pass."""
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
    """Holds up a GPU's queue and the host at the same time, for a share of the step, and waits for neither.

    A step that waits for the GPU gets longer by the first, and a step that waits for the host by the second. To wait
    for the GPU in each step would end the host's running ahead, and make a step longer by more than the share.
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
        """Queue the extra work of a step, and let the host wait for as long as it takes."""
        begun = time.perf_counter()
        self._learn()
        seconds = self.share * _step_time(self.step_times)
        self._sleep(round(seconds * statistics.median(self.rates)))
        while time.perf_counter() < begun + seconds:
            pass

    def _learn(self) -> None:
        """Read the times of the steps that the GPU has done, each from the end of one extra work to the next one."""
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
    """A low quartile: the first steps of a process take longer, and so do those that waited for a turn."""
    return sorted(times)[len(times) // 4] if times else 0.0


def _seconds(start: Any, end: Any) -> float:
    return float(start.elapsed_time(end)) / 1e3  # from ms
