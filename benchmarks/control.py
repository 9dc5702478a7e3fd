"""What the control step costs, whether it changes what is measured, and how much of a machine's moods it takes out.

    python benchmarks/control.py effect      its share of the timed seconds; steps after it over other steps
    python benchmarks/control.py spread      how far separate runs lie apart while other load comes and goes

``effect`` has control steps before a random half of the blocks of a launch, and a barrier before the others. ``spread``
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
from itertools import chain
from pathlib import Path
from typing import TypeAlias

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality; ranks get this path as well

from benchmarks.quality.steps import LENGTHS, OF_CAMPAIGNS, WARMUP, Length, Training
from benchmarks.quality.verdicts import launcher, timed_launch
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.stats.centers import parted
from pytest_ddpperf.stats.intervals import paired
from pytest_ddpperf.stats.spreads import pooled
from pytest_ddpperf.stats.summaries import typical
from pytest_ddpperf.training.jobs import ControlPlan, control_plan
from pytest_ddpperf.training.timing import timed_blocks, turn_sizes

RANKS = 2
BUSY = "while True: pass"
MOST_LOAD = 2  # busy processes
CONFIDENCE = 0.95
Times: TypeAlias = "tuple[float, ...]"


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


def alternating(ctx: RankContext, given: Length, plan: ControlPlan, seed: int) -> tuple[Times, Times, Times]:
    """Seconds of steps in blocks after control steps, of steps in blocks after a barrier, and of control steps."""
    from pytest_ddpperf.instruments.clock import CPU_CLOCK, collector_paused
    from pytest_ddpperf.training.control import ControlStep

    run, control = Training(given)(ctx), ControlStep()
    for _ in range(WARMUP):
        run()
    sizes = turn_sizes(given.steps, 1, plan.blocks, least=1)
    kinds = [number % 2 == 0 for number in range(len(sizes))]
    random.Random(seed).shuffle(kinds)  # noqa: S311  no secret
    left = iter(kinds)
    with collector_paused():
        timed = timed_blocks(
            run, sizes, CPU_CLOCK, lambda part: control.run(plan.steps if next(left) else 0, None, part)
        )
    blocks = list(zip(kinds, parted(timed.seconds, sizes), strict=True))
    after, others = (
        tuple(chain.from_iterable(times for kind, times in blocks if kind is wanted)) for wanted in (True, False)
    )
    return after, others, control.seconds


def effect(started: Launcher, length: str, launches: int) -> str:
    """What control steps cost, and what they make of the steps that follow them."""
    given, plan = LENGTHS[length], planned(started, length)
    after, others, control, shares = list[float](), list[float](), list[float](), list[float]()
    for seed in range(launches):
        ranks = started.run(
            alternating, given, plan, seed, world_size=RANKS, backend="gloo", device="cpu", timeout=300
        ).values
        steps, plain, own = (tuple(map(max, zip(*times, strict=True))) for times in zip(*ranks, strict=True))
        after.append(typical(steps))
        others.append(typical(plain))
        control.append(typical(own))
        shares.append(math.fsum(own) / (math.fsum(own) + math.fsum(steps)))
    change = paired(after, others, scale="ratio", outliers="both")
    assert change is not None  # noqa: S101  times are above 0
    assert change.interval is not None  # noqa: S101
    low, high = (1 + end for end in (change.interval.low, change.interval.high))
    return (
        f"{length:>5}: {launches} launches; control step {1e3 * statistics.median(control):.1f} ms, "
        f"{100 * statistics.median(shares):.1f} % of the timed seconds; steps in blocks after it "
        f"{1 + change.estimate:.4f} [{low:.4f} .. {high:.4f}] of those in other blocks"
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
    parser.add_argument("--effect-launches", type=int, default=25, help="launches of effect (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=20, help="of spread (default: %(default)s)")
    parser.add_argument("--launches", type=int, default=3, help="of a run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of orders and load (default: %(default)s)")
    options = parser.parse_args()
    draw = random.Random(options.seed)  # noqa: S311  no secret
    with launcher() as started:
        if options.what == "effect":
            for length in options.lengths:
                print(effect(started, length, options.effect_launches), flush=True)
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
