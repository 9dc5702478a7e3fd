"""What the instruments cost: the counted pass in seconds, and what the timed pass notices of any of them.

    python benchmarks/instruments.py

Gloo ranks train the small language model of ``perf_tests/``. The counted pass is a launch of its own, timed from the
first fork to the last exit. The timed pass is that of a launch as the plugin runs it, with all that follows it, beside
a launch that builds the same step and times it without anything else; pairs of launches, in random order, as many as
an interval of +-2 % takes on two shared cores: eight minutes. Goals: at most 3 s a benchmark for the counted pass; a
ratio of 1 within its interval for the timed one.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from pathlib import Path

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.run.session.sides import PRELOADED
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.intervals import center
from pytest_ddpperf.stats.summaries import median_step
from pytest_ddpperf.strategies.table import modules_of, resolve
from pytest_ddpperf.training.jobs import LaunchJob
from pytest_ddpperf.training.loop import run_launch
from pytest_ddpperf.training.preparing import count_launch

STRATEGIES = ("ddp", "bucketed", "zero1", "fsdp2")
TIMED = "ddp"
WARMUP, STEPS = 5, 16
SECONDS = 3.0  # goal
WIDTH = 0.02  # half of what the interval of the ratio may span, for it to say anything


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=130, help="pairs of launches (default: %(default)s)")
    parser.add_argument("--world-size", type=int, default=2, help="gloo ranks (default: %(default)s)")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))  # for perf_tests; ranks get this path as well
    with Launcher(preload=PRELOADED) as launcher:
        slow = count(launcher, options.world_size)
        touched = time_pairs(launcher, options.world_size, options.rounds)
    sys.exit(slow or touched)


def job(strategy: str) -> LaunchJob:
    from perf_tests.language_model import SMALL, language_model

    return LaunchJob(
        language_model(SMALL, batch_size=8), resolve(strategy), Settings(), Plan(warmup=WARMUP, steps=STEPS)
    )


def count(launcher: Launcher, world_size: int) -> bool:
    """Print the seconds of the counted pass of each strategy; whether one took too long."""
    medians = []
    for strategy in STRATEGIES:
        one = job(strategy)
        seconds = [
            launcher.run(
                count_launch, one, world_size=world_size, backend="gloo", device="cpu", preload=modules_of(one.strategy)
            ).seconds
            for _ in range(4)
        ][1:]  # the first one finds cold files
        medians.append(statistics.median(seconds))
        print(f"counted pass, {strategy}: {medians[-1]:.2f} s (median of {len(seconds)} launches)")
    reached = max(medians) <= SECONDS
    print(f"goal, at most {SECONDS:g} s: {'reached' if reached else 'missed'}")
    return not reached


def bare_launch(ctx: RankContext, one: LaunchJob) -> tuple[float, ...]:
    """On a rank: the step times of a loop that nothing follows."""
    import torch.distributed as dist

    from pytest_ddpperf.instruments.clock import clock_for, collector_paused
    from pytest_ddpperf.training.step import build_step
    from pytest_ddpperf.training.timing import timed_block

    step = build_step(ctx, one)
    for _ in range(one.plan.warmup):
        step.run()
    with collector_paused():
        dist.barrier()
        times, _ = timed_block(step.run, one.plan.steps, clock_for(ctx.device, marks=one.plan.steps + 1))
    step.close()
    return times


def time_pairs(launcher: Launcher, world_size: int, rounds: int) -> bool:
    """Print the ratio of the step times of both kinds of launches; whether it differs from 1."""
    draw = random.Random(0)  # noqa: S311  no secret
    one = job(TIMED)

    def bare() -> float:
        ranks = launcher.run(bare_launch, one, world_size=world_size, backend="gloo", device="cpu").values
        return median_step(tuple(map(max, zip(*ranks, strict=True))))

    def ours() -> float:
        ranks = launcher.run(run_launch, one, world_size=world_size, backend="gloo", device="cpu").values
        return median_step(tuple(map(max, zip(*(rank.step_times for rank in ranks), strict=True))))

    bare(), ours()
    ratios = []
    for _ in range(rounds):
        if draw.random() < 0.5:
            first = bare()
            ratios.append(ours() / first)
        else:
            second = ours()
            ratios.append(second / bare())
    ratio, interval = center(ratios, "ratio")
    if interval is None:
        sys.exit("--rounds: two or more make an interval")
    within = interval.low <= 1 <= interval.high and interval.high / interval.low <= 1 + 2 * WIDTH
    print(
        f"timed pass with instruments over one without: {ratio:.4f} [95 % CI {interval.low:.4f} .. "
        f"{interval.high:.4f}] over {rounds} pairs of launches of {STEPS} steps\n"
        f"goal, 1.00 within an interval of at most +-{WIDTH:.0%}: {'reached' if within else 'missed'}"
    )
    return not within


if __name__ == "__main__":
    main()
