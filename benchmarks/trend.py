"""How far ``ddpperf trend`` can be trusted: false alarms and finds on synthetic histories."""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.common

from benchmarks.common.project import rate_text
from pytest_ddpperf.baselines.history.change_points import ALPHA, Fit, change_points

RUNS = 200
STEP = math.log(1.06)
CREEP = math.log(1.10)
SPREADS = (0.01, 0.02, 0.03)


def noise(generator: random.Random, spread: float, runs: int = RUNS, memory: float = 0.0) -> list[float]:
    """Logarithms of lognormal noise; ``memory``: the correlation of neighbours."""
    values = [generator.gauss(0, spread)]
    for _ in range(runs - 1):
        values.append(memory * values[-1] + math.sqrt(1 - memory**2) * generator.gauss(0, spread))
    return values


def outlying(generator: random.Random, spread: float) -> list[float]:
    """Noise in which four runs, none beside another, took half as long again."""
    values = noise(generator, spread)
    for place in generator.sample(range(0, RUNS, 8), 4):
        values[place] += math.log(1.5)
    return values


def step(i: int, at: int = 120) -> float:
    return STEP * (i >= at)


def creep(i: int, first: int = 40) -> float:
    return CREEP * min(max((i - first) / 100, 0.0), 1.0)


def false_alarms(seeds: int) -> None:
    print(f"false alarms: unchanged histories with any change (by design at most {100 * ALPHA:g} %)")
    for runs, memory in ((8, 0.0), (20, 0.0), (50, 0.0), (RUNS, 0.0), (RUNS, 0.2), (RUNS, 0.4)):
        generator = random.Random(runs)  # noqa: S311  no secret
        alarms = sum(bool(change_points(noise(generator, 0.02, runs, memory)).changes) for _ in range(seeds))
        kind = "independent noise" if not memory else f"neighbours correlated by {memory:g}"
        print(f"  {runs:4} runs, {kind:34} {rate_text(alarms, seeds)}")
    generator = random.Random(RUNS)  # noqa: S311  no secret
    alarms = sum(bool(change_points(outlying(generator, 0.02)).changes) for _ in range(seeds))
    print(f"  {RUNS:4} runs, {'four of them half as long again':34} {rate_text(alarms, seeds)}")


def finds(seeds: int) -> None:
    cases: Sequence[tuple[str, Callable[[int], float], list[str], int | None]] = (
        ("a step of 6 %", step, ["step"], 120),
        ("a creep of 10 % over 100 runs", creep, ["creep"], None),
        ("both, apart", lambda i: creep(i, 20) + step(i, 160), ["creep", "step"], 160),
        ("a step amidst a creep of 200", lambda i: CREEP * i / RUNS + step(i), ["creep", "step"], 120),
        ("two steps of 6 % in a row", lambda i: step(i, 80) + step(i), ["step", "step"], None),
        ("a step of 6 % for 10 runs", lambda i: step(i) - step(i, 130), ["step", "step"], None),
        ("a creep, and another one back", lambda i: creep(i, 0) - creep(i, 100), ["creep", "creep"], None),
    )
    print("found: exactly these changes and nothing else; error of the step's commit; its 95 % range holds the truth")
    for name, shape, kinds, at in cases:
        for spread in SPREADS:
            generator = random.Random(1)  # noqa: S311  no secret
            fits = []
            for _ in range(seeds):
                values = [value + shape(i) for i, value in enumerate(noise(generator, spread))]
                fits.append(change_points(values))
            right = [fit for fit in fits if [change.kind for change in fit.changes] == kinds]
            print(f"  {name:30} noise {100 * spread:g} %: {rate_text(len(right), seeds)}{commit_error(right, at)}")


def commit_error(fits: Sequence[Fit], at: int | None) -> str:
    if at is None or not fits:
        return ""
    steps = [change for fit in fits for change in fit.changes if change.kind == "step"]
    errors = sorted(abs(change.after - at) for change in steps)
    within = sum(change.earliest < at <= change.latest for change in steps)
    most = errors[int(0.95 * (len(errors) - 1))]
    return f", median {statistics.median(errors):g}, 95 % {most}; {rate_text(within, len(steps))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="histories of each kind")
    seeds = parser.parse_args().seeds
    false_alarms(2 * seeds)
    finds(seeds)


if __name__ == "__main__":
    main()
