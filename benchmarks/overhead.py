"""What the timed loop costs: the step times that it reports, against those of a bare loop over the same step.

    python benchmarks/overhead.py

Two gloo ranks; in the same processes, blocks of both loops alternate in random order, which all ranks draw alike. The
step is a fixed chain of small matrix products and lasts about a millisecond. Goal: within 1 %.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.stats.intervals import center

GOAL = 0.01


@dataclass(frozen=True)
class Pair:
    """Seconds per step of two neighbouring blocks."""

    bare: float
    ours: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=150, help="pairs of blocks in each launch (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="steps in each block (default: %(default)s)")
    parser.add_argument("--launches", type=int, default=8, help="fresh groups (default: %(default)s)")
    parser.add_argument("--world-size", type=int, default=2, help="gloo ranks (default: %(default)s)")
    options = parser.parse_args()
    launches: list[list[Pair]] = []
    with Launcher() as launcher:
        for seed in range(options.launches):
            arguments = (options.pairs, options.steps, seed)
            launch = launcher.run(
                measure_pairs, *arguments, world_size=options.world_size, backend="gloo", device="cpu", timeout=300
            )
            launches.append([pair for rank in launch.values for pair in rank])
    print(report(launches))


def measure_pairs(ctx: RankContext, pairs: int, steps: int, seed: int) -> list[Pair]:
    """On a rank: the loops side by side, each pair of blocks in the order that the seed gives on all ranks."""
    import torch
    import torch.distributed as dist

    from pytest_ddpperf.instruments.clock import clock_for, collector_paused
    from pytest_ddpperf.training.timing import timed_block

    matrix = torch.full((128, 128), 1 / 128)

    def step() -> torch.Tensor:
        product = matrix
        for _ in range(24):
            product = product @ matrix
        return product

    def ours() -> float:
        clock = clock_for(ctx.device, marks=steps + 1)
        dist.barrier()
        times, _ = timed_block(step, steps, clock)
        return sum(times) / steps

    def bare() -> float:
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            loss = step()  # kept, as every training loop keeps it: it decides which memory the next step gets
        del loss
        return (time.perf_counter() - start) / steps

    draw = random.Random(seed)  # noqa: S311  no secret
    with collector_paused():
        ours(), bare()
        return [_pair(bare, ours, bare_first=draw.random() < 0.5) for _ in range(pairs)]


def _pair(bare: Callable[[], float], ours: Callable[[], float], *, bare_first: bool) -> Pair:
    if bare_first:
        before = bare()
        return Pair(bare=before, ours=ours())
    after = ours()
    return Pair(bare=bare(), ours=after)


def report(launches: list[list[Pair]]) -> str:
    """The ratio of our loop to the bare one: the median of each launch's pairs, and a t interval over launches."""
    ratios = [statistics.median(pair.ours / pair.bare for pair in pairs) for pairs in launches]
    pairs = [pair for launch in launches for pair in launch]
    ratio, interval = center(ratios, "ratio")
    ends = f" [95 % CI {interval.low:.4f} .. {interval.high:.4f}]" if interval else ""
    reached = interval is not None and interval.low >= 1 - GOAL and interval.high <= 1 + GOAL
    return (
        f"bare loop:  {1e3 * statistics.median(pair.bare for pair in pairs):.4f} ms a step (median block)\n"
        f"timed loop: {1e3 * statistics.median(pair.ours for pair in pairs):.4f} ms a step\n"
        f"ratio: {ratio:.4f}{ends} over {len(launches)} launches of {len(launches[0])} pairs of blocks\n"
        f"goal, within {GOAL:.0%}: {'reached' if reached else 'missed'}"
    )


if __name__ == "__main__":
    main()
