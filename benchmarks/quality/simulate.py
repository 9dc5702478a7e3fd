"""Made-up launches: what is judged of them has a known answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.quality.campaign import Cell, Recorded
from benchmarks.quality.steps import WARMUP, Condition
from benchmarks.quality.verdicts import Environment

CELL = Cell("12ms", 2)
ENVIRONMENT = Environment(
    device="cpu",
    device_model="chip",
    device_count=0,
    cpu_model="chip",
    cores=8,
    threads=1,
    nodes=1,
    backend="gloo",
    world_size=2,
    torch="2.13",
    cuda=None,
)
START_UP = 0.27  # s: what a launch takes besides its steps


def lengthened(condition: Condition, steps: int) -> list[float]:
    """How many times as long as an unchanged one each timed step is: work is counted from the first warm-up step on."""
    return [
        1 + condition.communication + (condition.work if number % condition.every == 0 else 0.0)
        for number in range(WARMUP + 1, WARMUP + steps + 1)
    ]


def recorded(
    number: int, condition: str, step_times: Sequence[float], start_up: float = START_UP, **more: Any
) -> Recorded:
    """A launch with these steps on both ranks, a steady use of memory and one loss; CPU time unknown, as on GPUs."""
    times = tuple(step_times)
    launch = Recorded(
        CELL, number, condition, 0.0, start_up + math.fsum(times), times, (1e8, 1e8), (1.0, 1.0), (None, None)
    )
    return replace(launch, **more)
