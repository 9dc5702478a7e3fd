"""By how much two sides of the same code differ that time their steps in turns: by the number of turns in a launch.

    python benchmarks/turns.py

Pairs of launches of a training step (DDP, two gloo ranks), as side by side with another revision, their timed steps in
1, 5, 15 and 45 blocks, in random order. Printed are the root mean square of what the step times and CPU times of a pair
differ by, and what a layout costs: the seconds of measuring that it takes to see as small a change, beside the first.
For the last layout also the same of as many first steps of each launch as the plugin times beside another revision
(its blocks are as long in them as in the whole), and how long it takes with these to prove that nothing got worse by
the default margin, by a single look at an estimate of exactly no change, and how long if ranks did nothing but timed
steps. Looking after every round, as the plugin does, often ends sooner: whenever chance makes the new side look a
little better.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scipy.stats import chi2, t

if TYPE_CHECKING:
    from pytest_ddpperf.launch.interleaving import Turns
    from pytest_ddpperf.launch.launcher import Launcher
    from pytest_ddpperf.records.measurement import RankLaunch

RANKS = 2


@dataclass(frozen=True)
class Pair:
    """Two launches of the same that took turns.

    Attributes:
        step_time: logarithm of what their step times differ by; ``cpu_time`` likewise.
        seconds: for both.
        timed: of these, in timed steps.
        scatter: standard deviation of a launch's steps, as a share of their mean.
        shorter: what the first steps of each launch would be, as many as the plugin times; None for these.
    """

    step_time: float
    cpu_time: float
    seconds: float
    timed: float
    scatter: float
    shorter: Pair | None = None


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality; ranks get this path as well
    from benchmarks.quality.conditions import LENGTHS, OF_CAMPAIGNS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=7, help="for each length of steps (default: %(default)s)")
    parser.add_argument(
        "--lengths", nargs="+", choices=LENGTHS, default=list(OF_CAMPAIGNS), help="(default: %(default)s)"
    )
    parser.add_argument("--blocks", nargs="+", type=int, default=[1, 5, 15, 45], help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the order (default: %(default)s)")
    options = parser.parse_args()
    for length in options.lengths:
        print(report(length, measure(length, options.blocks, 60 * options.minutes, options.seed)), flush=True)


def measure(length: str, layouts: Sequence[int], seconds: float, seed: int) -> dict[int, list[Pair]]:
    """Pairs of launches by their number of blocks, measured until the time is up."""
    from benchmarks.quality.conditions import LENGTHS, Injection
    from benchmarks.quality.launches import WARMUP
    from benchmarks.quality.steps import Training
    from pytest_ddpperf.launch.interleaving import in_turns
    from pytest_ddpperf.launch.launcher import Launcher
    from pytest_ddpperf.records.measurement import Plan
    from pytest_ddpperf.run.session import PRELOADED
    from pytest_ddpperf.settings import Settings
    from pytest_ddpperf.training.job import LaunchJob
    from pytest_ddpperf.training.loop import run_launch
    from pytest_ddpperf.training.timing import turn_sizes

    plan = Plan(WARMUP, LENGTHS[length].steps)
    subject = Training(LENGTHS[length], Injection())

    def launched(launcher: Launcher, blocks: int, turns: Turns) -> tuple[RankLaunch, ...]:
        job = LaunchJob(subject, None, Settings(), plan, growth=False, diagnosed=False, turns=turns, blocks=blocks)
        return launcher.run(run_launch, job, world_size=RANKS, backend="gloo", device="cpu", timeout=300).values

    draw = random.Random(seed)  # noqa: S311  no secret
    # Of long steps there are fewer blocks.
    layouts = list(dict.fromkeys(len(turn_sizes(plan.steps, 1, blocks)) for blocks in layouts))
    pairs: dict[int, list[Pair]] = {blocks: [] for blocks in layouts}
    preload = (*PRELOADED, "benchmarks.quality.steps")
    until = time.monotonic() + seconds
    with Launcher(preload=preload) as one, Launcher(preload=preload) as other:

        def abort() -> None:
            one.abort()
            other.abort()

        while time.monotonic() < until:
            for blocks in draw.sample(layouts, len(layouts)):
                begun = time.monotonic()
                sides = in_turns([partial(launched, side, blocks) for side in (one, other)], abort)
                pairs[blocks].append(pair(sides, time.monotonic() - begun))
    return {blocks: found[1:] for blocks, found in pairs.items()}  # the first one is slow


def pair(sides: Sequence[tuple[RankLaunch, ...]], seconds: float, *, cut: bool = False) -> Pair:
    """What two launches differ by; ``cut``: they are the first steps of others, whose CPU time is not known."""
    from pytest_ddpperf.metrics.launches import typical_step
    from pytest_ddpperf.records.measurement import Launch
    from pytest_ddpperf.run.pilot import fitting_steps, short_launch

    def apart(of: Callable[[tuple[RankLaunch, ...]], float]) -> float:
        first, second = map(of, sides)
        return math.log(first / second)

    steps = [Launch(0, ranks, seconds).step_times for ranks in sides]
    timed = math.fsum(math.fsum(times) for times in steps)
    shorter = None
    if not cut:
        typical = typical_step(Launch(0, sides[0], seconds))
        count = fitting_steps(typical, short_launch(typical, 0.0))
        first = [tuple(replace(rank, step_times=rank.step_times[:count]) for rank in side) for side in sides]
        left_out = math.fsum(math.fsum(times[count:]) for times in steps)
        shorter = pair(first, seconds - left_out, cut=True)
    return Pair(
        apart(lambda ranks: typical_step(Launch(0, ranks, seconds))),
        apart(lambda ranks: max(rank.cpu_time or 0.0 for rank in ranks)),
        seconds,
        timed,
        statistics.fmean(statistics.pstdev(times) / statistics.fmean(times) for times in steps),
        shorter,
    )


def report(length: str, pairs: dict[int, list[Pair]]) -> str:
    """A line for each number of blocks, the differences with their 95 % intervals (chi-squared)."""
    first, *_ = (costs(found) for found in pairs.values())
    lines = [
        f"steps of {length}, {RANKS} ranks",
        "  blocks  pairs   step times apart by    CPU times apart by  s a pair  takes",
    ]
    for blocks, found in pairs.items():
        step, cpu = (apart([getattr(one, name) for one in found]) for name in ("step_time", "cpu_time"))
        middle = statistics.median(one.seconds for one in found)
        lines.append(f"  {blocks:6}  {len(found):5}  {step:>20}  {cpu:>20}  {middle:8.1f}  {costs(found) / first:.2f}")
    *_, last = pairs.values()
    cut = [one.shorter for one in last if one.shorter is not None]
    step, middle = apart([one.step_time for one in cut]), statistics.median(one.seconds for one in cut)
    lines.append(f"  {'cut':>6}  {len(cut):5}  {step:>20}  {'':>20}  {middle:8.1f}  {costs(cut) / first:.2f}")
    return "\n".join([*lines, proof(cut)])


def proof(pairs: Sequence[Pair]) -> str:
    """How long it takes to prove that the same code got no worse by the margin, by a single look."""
    from pytest_ddpperf.judge.decision import MARGIN, UNPROVEN
    from pytest_ddpperf.judge.judge import SIDE_BY_SIDE_TOLERANCE

    apart = math.sqrt(statistics.fmean(one.step_time**2 for one in pairs))
    margin = MARGIN * SIDE_BY_SIDE_TOLERANCE
    limit = math.log1p(margin)
    number = next(n for n in itertools.count(2) if t.ppf(1 - UNPROVEN, n - 1) * apart / math.sqrt(n) <= limit)
    seconds, timed, scatter = (
        statistics.median(getattr(one, name) for one in pairs) for name in ("seconds", "timed", "scatter")
    )
    return (
        f"  a launch's steps scatter by {scatter:.0%}, and {timed / seconds:.0%} of a pair's time are timed steps\n"
        f"  no worse by more than {margin:.1%}, by one look: {number} pairs, {number * seconds:.0f} s; "
        f"{number * timed:.0f} s if all were timed steps"
    )


def apart(differences: Sequence[float]) -> str:
    """The root mean square of differences that are 0 on average, in per cent."""
    squares, number = math.fsum(one**2 for one in differences), len(differences)
    low, high = (math.sqrt(squares / chi2.ppf(q, number)) for q in (0.975, 0.025))
    return f"{math.sqrt(squares / number):.1%} [{low:.1%} .. {high:.1%}]"


def costs(pairs: Sequence[Pair]) -> float:
    """Seconds of a pair times the variance of its step times: what a given certainty takes, in some unit."""
    return statistics.median(one.seconds for one in pairs) * statistics.fmean(one.step_time**2 for one in pairs)


if __name__ == "__main__":
    main()
