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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import chi2, t

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality; ranks get this path as well

from benchmarks.quality.campaign import Cell, Recorded
from benchmarks.quality.record import Turn, measured
from benchmarks.quality.steps import CONDITIONS, LENGTHS, OF_CAMPAIGNS, UNCHANGED, Calibration
from benchmarks.quality.verdicts import PAIRED_MARGIN, UNPROVEN, launcher, paired_steps
from pytest_ddpperf.training.timing import turn_sizes

RANKS = 2
NOTHING = Calibration(1.0, 1.0, {})  # added to steps


@dataclass(frozen=True)
class Pair:
    """Two launches of the same that took turns."""

    step_time: float  # logarithm of what their step times differ by
    cpu_time: float  # likewise
    seconds: float  # for both
    timed: float  # of these, in timed steps
    scatter: float  # standard deviation of a launch's steps, as a share of their mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=7, help="for each length of steps (default: %(default)s)")
    parser.add_argument(
        "--lengths", nargs="+", choices=LENGTHS, default=list(OF_CAMPAIGNS), help="(default: %(default)s)"
    )
    parser.add_argument("--blocks", nargs="+", type=int, default=[1, 5, 15, 45], help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the order (default: %(default)s)")
    options = parser.parse_args()
    for length in options.lengths:
        print(report(length, recorded(length, options.blocks, 60 * options.minutes, options.seed)), flush=True)


def recorded(
    length: str, layouts: Sequence[int], seconds: float, seed: int
) -> dict[int, list[tuple[Recorded, Recorded]]]:
    """Pairs of launches by their number of blocks, measured until the time is up."""
    draw = random.Random(seed)  # noqa: S311  no secret
    # Of long steps there are fewer blocks.
    layouts = list(dict.fromkeys(len(turn_sizes(LENGTHS[length].steps, 1, blocks)) for blocks in layouts))
    pairs: dict[int, list[tuple[Recorded, Recorded]]] = {blocks: [] for blocks in layouts}
    turn = Turn(Cell(length, RANKS), 0, CONDITIONS[UNCHANGED], paired=True)
    until = time.monotonic() + seconds
    with launcher() as first, launcher() as second:
        while (now := time.monotonic()) < until:
            for blocks in draw.sample(layouts, len(layouts)):
                base, new = measured((first, second), NOTHING, turn, now, growth=False, blocks=blocks)
                pairs[blocks].append((base, new))
    return {blocks: found[1:] for blocks, found in pairs.items()}  # the first one is slow


def pair(sides: Sequence[Recorded], steps: int | None = None) -> Pair:
    """What two launches differ by, or their first ``steps``, whose CPU time is not known."""
    times = [side.step_times[:steps] for side in sides]
    step, cpu = ([statistics.fmean(some) for some in times], [max(rank or 0.0 for rank in side.cpu) for side in sides])
    timed = math.fsum(map(math.fsum, times))
    left_out = math.fsum(math.fsum(side.step_times) for side in sides) - timed
    return Pair(
        math.log(step[0] / step[1]),
        math.log(cpu[0] / cpu[1]),
        sum(side.seconds for side in sides) - left_out,
        timed,
        statistics.fmean(statistics.pstdev(some) / statistics.fmean(some) for some in times),
    )


def report(length: str, recorded: dict[int, list[tuple[Recorded, Recorded]]]) -> str:
    """A line for each number of blocks, the differences with their 95 % intervals (chi-squared)."""
    lines = [
        f"steps of {length}, {RANKS} ranks",
        "  blocks  pairs   step times apart by    CPU times apart by  s a pair  takes",
    ]
    *_, last = recorded.values()
    cut = [pair(sides, paired_steps(sides[0].mean)) for sides in last]
    pairs = {str(blocks): [pair(sides) for sides in found] for blocks, found in recorded.items()}
    unit = costs(next(iter(pairs.values())))
    for blocks, found in {**pairs, "cut": cut}.items():
        step = apart([both.step_time for both in found])
        cpu = apart([both.cpu_time for both in found]) if blocks != "cut" else ""
        middle = statistics.median(both.seconds for both in found)
        lines.append(f"  {blocks:>6}  {len(found):5}  {step:>20}  {cpu:>20}  {middle:8.1f}  {costs(found) / unit:.2f}")
    return "\n".join([*lines, proof(cut)])


def proof(pairs: Sequence[Pair]) -> str:
    """How long it takes to prove that the same code got no worse by the margin, by a single look."""
    apart = math.sqrt(statistics.fmean(both.step_time**2 for both in pairs))
    limit = math.log1p(PAIRED_MARGIN)
    number = next(n for n in itertools.count(2) if t.ppf(1 - UNPROVEN, n - 1) * apart / math.sqrt(n) <= limit)
    seconds, timed, scatter = (
        statistics.median(getattr(both, name) for both in pairs) for name in ("seconds", "timed", "scatter")
    )
    return (
        f"  a launch's steps scatter by {scatter:.0%}, and {timed / seconds:.0%} of a pair's time are timed steps\n"
        f"  no worse by more than {PAIRED_MARGIN:.1%}, by one look: {number} pairs, {number * seconds:.0f} s; "
        f"{number * timed:.0f} s if all were timed steps"
    )


def apart(differences: Sequence[float]) -> str:
    """The root mean square of differences that are 0 on average, in per cent."""
    squares, number = math.fsum(difference**2 for difference in differences), len(differences)
    low, high = (math.sqrt(squares / chi2.ppf(q, number)) for q in (0.975, 0.025))
    return f"{math.sqrt(squares / number):.1%} [{low:.1%} .. {high:.1%}]"


def costs(pairs: Sequence[Pair]) -> float:
    """Seconds of a pair times the variance of its step times: what a given certainty takes, in some unit."""
    return statistics.median(both.seconds for both in pairs) * statistics.fmean(both.step_time**2 for both in pairs)


if __name__ == "__main__":
    main()
