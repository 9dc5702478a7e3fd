"""How far ``ddpperf trend`` can be trusted: false alarms and finds on synthetic histories; its time on a large one."""

from __future__ import annotations

import argparse
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality

from benchmarks.quality.project import rate_text
from benchmarks.quality.rows import ENVIRONMENT
from pytest_ddpperf.baselines.history.change_points import ALPHA, Fit, change_points
from pytest_ddpperf.baselines.history.database import HistoryRun, record
from pytest_ddpperf.records.measurement import Measurement, Plan, Series
from pytest_ddpperf.records.results import Comparison, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.rates import Rate

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


def rate(hits: int, of: int) -> str:
    """A share with its 95 % interval."""
    return rate_text(Rate(hits, of, of))


def false_alarms(seeds: int) -> None:
    print(f"false alarms: unchanged histories with any change (by design at most {100 * ALPHA:g} %)")
    for runs, memory in ((8, 0.0), (20, 0.0), (50, 0.0), (RUNS, 0.0), (RUNS, 0.2), (RUNS, 0.4)):
        generator = random.Random(runs)  # noqa: S311  no secret
        alarms = sum(bool(change_points(noise(generator, 0.02, runs, memory)).changes) for _ in range(seeds))
        kind = "independent noise" if not memory else f"neighbours correlated by {memory:g}"
        print(f"  {runs:4} runs, {kind:34} {rate(alarms, seeds)}")
    generator = random.Random(RUNS)  # noqa: S311  no secret
    alarms = sum(bool(change_points(outlying(generator, 0.02)).changes) for _ in range(seeds))
    print(f"  {RUNS:4} runs, {'four of them half as long again':34} {rate(alarms, seeds)}")


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
            print(f"  {name:30} noise {100 * spread:g} %: {rate(len(right), seeds)}{commit_error(right, at)}")


def commit_error(fits: Sequence[Fit], at: int | None) -> str:
    if at is None or not fits:
        return ""
    steps = [change for fit in fits for change in fit.changes if change.kind == "step"]
    errors = sorted(abs(change.after - at) for change in steps)
    within = sum(change.earliest < at <= change.latest for change in steps)
    most = errors[int(0.95 * (len(errors) - 1))]
    return f", median {statistics.median(errors):g}, 95 % {most}; {rate(within, len(steps))}"


def large_history(file: Path, tests: int = 50, metrics: int = 10) -> None:
    """A file with 100,000 records."""
    generator = random.Random(0)  # noqa: S311  no secret
    names = ("step_time", *(f"metric_{k}" for k in range(1, metrics)))
    for i in range(RUNS):
        results = []
        for test in range(tests):
            value = 0.04 * math.exp(generator.gauss(0, 0.02) + step(i) * (test == 0) + creep(i) * (test == 1))
            results.append(result(f"t.py::test_{test}", value, names))
        day = f"2026-{1 + i // 28 % 12:02}-{1 + i % 28:02}T00:00:00+00:00"
        record(file, HistoryRun(date=day, commit=f"{i:040x}", commit_date=day, branch="main", dirty=False), results)


def result(test: str, value: float, metrics: Sequence[str]) -> Result:
    """A benchmark without a baseline, all metrics of which have one value."""
    comparisons = tuple(
        Comparison(
            series=Series(
                metric=metric,
                unit="s",
                better="lower",
                family="absolute",
                scale="ratio",
                gated=True,
                min_tolerance=0.0,
                samples=(value,) * 8,
                value=value,
                interval=None,
            ),
            tolerance=0.03,
            verdict=Verdict.NEW,
            gated=True,
        )
        for metric in metrics
    )
    measured = Measurement(
        name="ddp", strategy="ddp", mode=None, environment=ENVIRONMENT, plan=Plan(warmup=5, steps=60), launches=()
    )
    none = StoredBaseline(record=None, origin="")
    return Result(test=test, measurement=measured, comparisons=comparisons, verdict=Verdict.NEW, reference=none)


def answers(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "history.sqlite"
        large_history(file)
        code = "import sys; from pytest_ddpperf.cli.command import main; sys.exit(main())"
        print(f"seconds of a whole process on 100,000 records ({file.stat().st_size / 1e6:.0f} MB)")
        for words in (["trend", "t.py::test_0"], ["trend"], ["--version"]):
            where = ["--history", str(file)] if words[0] == "trend" else []
            command = [sys.executable, "-c", code, *words, *where]
            times = []
            for _ in range(rounds):
                start = time.perf_counter()
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                times.append(time.perf_counter() - start)
            rest = sorted(times[1:])
            print(
                f"  ddpperf {' '.join(words):20} first {times[0]:.2f}, then median {statistics.median(rest):.2f}, "
                f"worst {rest[-1]:.2f}   {out.splitlines()[-1][:60]}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="histories of each kind")
    parser.add_argument("--rounds", type=int, default=10, help="processes that are timed")
    options = parser.parse_args()
    false_alarms(2 * options.seeds)
    finds(options.seeds)
    answers(options.rounds)


if __name__ == "__main__":
    main()
