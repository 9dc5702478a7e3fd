"""What the control step costs, whether it changes what is measured, and how much of a machine's moods it takes out.

    python benchmarks/control.py effect      its share of the timed seconds; steps with it over steps without it
    python benchmarks/control.py spread      how far separate runs lie apart while other load comes and goes

``effect`` times launches with and without control steps in random order, on a machine that should be quiet. ``spread``
measures all lengths of steps in one run after the other. Beside each run none, one or two busy processes are started,
as a seed draws it. It prints the standard deviation of runs by their times, and by their quotients by the control
step, and the power to which a step follows the control step. All steps are of DDP with two gloo ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality; ranks get this path as well

from benchmarks.quality.steps import LENGTHS, OF_CAMPAIGNS, Training
from benchmarks.quality.verdicts import launcher, timed_launch
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.stats.intervals import paired
from pytest_ddpperf.stats.spreads import pooled
from pytest_ddpperf.stats.summaries import typical
from pytest_ddpperf.training.jobs import ControlPlan, control_plan
from pytest_ddpperf.training.timing import turn_sizes

RANKS = 2
BUSY = "while True: pass"
MOST_LOAD = 2  # busy processes
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Run:
    """One run of a length: the logarithms of its typical step and of its typical control step, over its launches."""

    step: float
    control: float


def launched(started: Launcher, length: str, plan: ControlPlan | None) -> Launch:
    """A launch of unchanged steps, with control steps where there is a plan for them."""
    given = LENGTHS[length]
    ranks = timed_launch(
        None, launcher=started, subject=Training(given), steps=given.steps, ranks=RANKS, growth=False, control=plan
    )
    return Launch(round=0, ranks=ranks, seconds=1.0)


def planned(started: Launcher, length: str) -> ControlPlan:
    """How control steps alternate with these, as after a pilot."""
    steps = LENGTHS[length].steps
    pilot = launched(started, length, ControlPlan(blocks=steps, steps=1))
    return control_plan(steps, typical(pilot.step_times) / typical(pilot.control_times))


def firsts(launch: Launch, plan: ControlPlan) -> float | None:
    """The typical first step of a block over the typical other one; None where each block is one step."""
    begins, times = {0, *accumulate(turn_sizes(len(launch.step_times), 1, plan.blocks, least=1))}, launch.step_times
    others = [seconds for number, seconds in enumerate(times) if number not in begins]
    return typical([times[number] for number in begins if number < len(times)]) / typical(others) if others else None


def effect(started: Launcher, length: str, pairs: int, draw: random.Random) -> str:
    """What control steps cost, and what they make of the steps between them."""
    plan = planned(started, length)
    with_control, without = list[Launch](), list[Launch]()
    for _ in range(pairs):
        for side in draw.sample([with_control, without], 2):
            side.append(launched(started, length, plan if side is with_control else None))
    times = [math.fsum(launch.control_times) for launch in with_control]
    shares = [own / (own + math.fsum(launch.step_times)) for own, launch in zip(times, with_control, strict=True)]
    change = paired(
        [typical(launch.step_times) for launch in with_control],
        [typical(launch.step_times) for launch in without],
        scale="ratio",
        outliers="both",
    )
    assert change is not None  # noqa: S101  times are above 0
    assert change.interval is not None  # noqa: S101
    low, high = (1 + end for end in (change.interval.low, change.interval.high))
    known = [share for launch in with_control if (share := firsts(launch, plan)) is not None]
    first = f"; first steps of blocks {statistics.median(known):.3f} of the others" if known else ""
    control = statistics.median(typical(launch.control_times) for launch in with_control)
    return (
        f"{length:>5}: control step {1e3 * control:.1f} ms, {100 * statistics.median(shares):.1f} % of the timed "
        f"seconds; steps with it {1 + change.estimate:.4f} [{low:.4f} .. {high:.4f}] of those without{first}"
    )


@contextlib.contextmanager
def busy(number: int) -> Iterator[None]:
    """So many processes that compute."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measured(started: Launcher, length: str, plan: ControlPlan, launches: int) -> Run:
    """One run."""
    made = [launched(started, length, plan) for _ in range(launches)]
    steps = statistics.fmean(math.log(typical(launch.step_times)) for launch in made)
    return Run(step=steps, control=statistics.fmean(math.log(typical(launch.control_times)) for launch in made))


def spread_text(length: str, runs: Sequence[Run]) -> str:
    """The spread of runs by times, by quotients, and by what is left when the fitted power is taken out."""
    from scipy.stats import chi2

    df = len(runs) - 1
    ends = [math.sqrt(df / chi2.ppf(at, df)) for at in (0.5 + CONFIDENCE / 2, 0.5 - CONFIDENCE / 2)]

    def deviation(logs: Sequence[float]) -> str:
        sd = 100 * pooled([[math.exp(each) for each in logs]]).sd
        return f"{sd:.1f} % [{sd * ends[0]:.1f} .. {sd * ends[1]:.1f}]"

    controls = [run.control for run in runs]
    power, _ = statistics.linear_regression(controls, [run.step for run in runs])
    left = [run.step - power * run.control for run in runs]
    return (
        f"{length:>5}: {len(runs)} runs; by times {deviation([run.step for run in runs])}, "
        f"by quotients {deviation([run.step - run.control for run in runs])}, "
        f"with the fitted power {power:.2f}: {deviation(left)}; control step {deviation(controls)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["effect", "spread"])
    parser.add_argument(
        "--lengths", nargs="+", choices=LENGTHS, default=list(OF_CAMPAIGNS), help="(default: %(default)s)"
    )
    parser.add_argument("--pairs", type=int, default=25, help="of launches, of effect (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=20, help="of spread (default: %(default)s)")
    parser.add_argument("--launches", type=int, default=3, help="of a run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of orders and load (default: %(default)s)")
    options = parser.parse_args()
    draw = random.Random(options.seed)  # noqa: S311  no secret
    with launcher() as started:
        if options.what == "effect":
            for length in options.lengths:
                print(effect(started, length, options.pairs, draw), flush=True)
            return
        plans = {length: planned(started, length) for length in options.lengths}
        runs: dict[str, list[Run]] = {length: [] for length in options.lengths}
        for _ in range(options.runs):
            with busy(draw.randint(0, MOST_LOAD)):
                for length, plan in plans.items():
                    runs[length].append(measured(started, length, plan, options.launches))
    for length, of_length in runs.items():
        print(spread_text(length, of_length), flush=True)


if __name__ == "__main__":
    main()
