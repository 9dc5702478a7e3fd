"""How well CPU times show more work: by the share of a launch's blocks, those that took least, that they are made of.

    python benchmarks/cpu_blocks.py
    python benchmarks/cpu_blocks.py --load 1

Pairs of launches of a training step (DDP, two gloo ranks), as side by side with another revision; one side does 5 %
more. ``--load N`` has N other processes compute meanwhile, but not while it is measured how much more 5 % is. Printed
are, for each share, by how much the busiest rank's CPU time changed, on average and with its standard deviation, and
the pairs that it takes to see the change as well, beside all blocks.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality; ranks get this path as well

from benchmarks.quality.campaign import Cell
from benchmarks.quality.project import busy
from benchmarks.quality.record import abort, calibrated
from benchmarks.quality.steps import CONDITIONS, LENGTHS, OF_CAMPAIGNS, UNCHANGED, Calibration, Training, injection
from benchmarks.quality.verdicts import launcher, timed_launch
from pytest_ddpperf.launch.interleaving import run_interleaved
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.stats.summaries import LEAST, least

RANKS = 2
SLOWER = "+5%"
SHARES = (0.1, 0.2, LEAST, 0.5, 0.75, 1.0)
Pair = Sequence[tuple[RankLaunch, ...]]  # the ranks of the unchanged side, and those of the other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2, help="for each length of steps (default: %(default)s)")
    parser.add_argument(
        "--lengths", nargs="+", choices=LENGTHS, default=list(OF_CAMPAIGNS), help="(default: %(default)s)"
    )
    parser.add_argument("--load", type=int, default=0, metavar="N", help="busy processes (default: %(default)s)")
    options = parser.parse_args()
    with launcher() as first, launcher() as second:
        calibrations = {length: calibrated(first, Cell(length, RANKS)) for length in options.lengths}
        with busy(options.load):
            for length, calibration in calibrations.items():
                pairs = recorded((first, second), length, calibration, 60 * options.minutes)
                print(
                    report(f"steps of {length}, {RANKS} ranks, beside {options.load} busy processes", pairs), flush=True
                )


def recorded(launchers: Sequence[Launcher], length: str, calibration: Calibration, seconds: float) -> list[Pair]:
    """Pairs of launches until the time is up, without the first one, which is slow."""
    draw = random.Random(0)  # noqa: S311  no secret
    calls = [
        partial(
            timed_launch,
            launcher=started_by,
            subject=Training(LENGTHS[length], injection(CONDITIONS[condition], calibration)),
            steps=LENGTHS[length].steps // 2,  # about as long as the plugin's
            ranks=RANKS,
        )
        for started_by, condition in zip(launchers, (UNCHANGED, SLOWER), strict=True)
    ]
    pairs: list[Pair] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        order = draw.sample((0, 1), 2)
        ended = run_interleaved([calls[side] for side in order], partial(abort, launchers))
        pairs.append([ranks for _, ranks in sorted(zip(order, ended, strict=True))])
    return pairs[1:]


def report(title: str, pairs: Sequence[Pair]) -> str:
    """A line for each share."""
    blocks = len(pairs[0][0][0].cpu_blocks)
    lines = [f"{title}, {len(pairs)} pairs of {blocks} blocks", "  share of blocks  changed by  pairs apart by  takes"]
    found = {share: [math.log(of(new, share) / of(base, share)) for base, new in pairs] for share in SHARES}
    unit = takes(found[1.0])
    for share, changes in found.items():
        mean, apart = statistics.fmean(changes), statistics.stdev(changes)
        lines.append(f"  {share:>15.0%}  {mean:>+10.1%}  {apart:>14.1%}  {takes(changes) / unit:5.2f}")
    return "\n".join(lines)


def of(ranks: tuple[RankLaunch, ...], share: float) -> float:
    """The CPU time of a step of the busiest rank, by this share of its blocks."""
    return max(least(rank.cpu_blocks, rank.blocks, share) for rank in ranks)


def takes(changes: Sequence[float]) -> float:
    """The pairs that see the mean change as one standard error."""
    return statistics.variance(changes) / statistics.fmean(changes) ** 2


if __name__ == "__main__":
    main()
