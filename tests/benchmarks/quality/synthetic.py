"""Made-up campaigns: lognormal launches of steps that last a tenth of a second, so that ten of them fill a launch."""

from __future__ import annotations

import random
from collections.abc import Callable

from benchmarks.quality import simulate
from benchmarks.quality.campaign import Campaign, Recorded
from benchmarks.quality.simulate import CELL, ENVIRONMENT, lengthened
from benchmarks.quality.steps import CONDITIONS, FIRST, UNCHANGED, Calibration, Condition

STEP, STEPS, START_UP = 0.1, 10, 0.2


def drawing(seed: int = 0) -> random.Random:
    return random.Random(seed)  # noqa: S311  no secret


def recorded(
    number: int, condition: str, step_times: tuple[float, ...], started: float = 0.0, pair: str | None = None
) -> Recorded:
    return simulate.recorded(number, condition, step_times, START_UP, started=started, pair=pair)


def campaign(
    rounds: int,
    *,
    launch_spread: float = 0.003,
    step_spread: float = 0.01,
    drift: Callable[[int], float] = lambda _: 1.0,
) -> Campaign:
    """Rounds of all conditions, alone and beside unchanged ones; ``drift``: by how much a round's steps last longer."""
    draw = drawing()
    launches: list[Recorded] = []

    def add(number: int, condition: Condition, pair: str | None = None) -> None:
        level = STEP * drift(number) * draw.lognormvariate(0, launch_spread)
        steps = tuple(level * longer * draw.lognormvariate(0, step_spread) for longer in lengthened(condition, STEPS))
        launches.append(recorded(number, condition.name, steps, started=float(len(launches)), pair=pair))

    for number in range(rounds):
        for condition in CONDITIONS.values():
            for _ in range(condition.launches):
                add(number, condition)
            if condition.name != FIRST:
                add(number, CONDITIONS[UNCHANGED], condition.name)
                add(number, condition, condition.name)
    calibration = Calibration(STEP, 1e-6, {16: 1e-4})
    return Campaign("2026-01-12T08:00:00+00:00", {2: ENVIRONMENT}, {CELL: calibration}, tuple(launches))
