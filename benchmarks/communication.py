"""Exposed communication beside what the profiler sees, and with an artificial delay of every collective.

    python benchmarks/communication.py

Two gloo ranks train a small perceptron; about two minutes. Exposed communication is measured as in every benchmark, by
blocks of steps with and without averaging gradients, with a 95 % t interval over launches; the profiler's figure is of
launches of its own, with the part of it that may be the host between two operators ("gaps"): that is its stated error
downwards. Upwards it does not see what averaging costs beside waiting: packing and scaling, and the cores that gloo
takes from the computation where ranks have no cores to spare; and the profiler makes computation longer, which hides
more.

Then each collective is made to last longer without computing anything. What cannot be hidden: of `naive`, the delay of
each of its all-reduces; of `bucketed` and `ddp`, that of the last one.

Goals: `single` is near zero: within 2 % of its step, or its interval holds zero; the delays show at least as far as
they cannot be hidden (three quarters of it, for what else changes between launches); the profiler agrees within a
quarter of the step.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.communication import BlockTimes, CommunicationProfile
from pytest_ddpperf.launch import Launcher, RankContext
from pytest_ddpperf.metrics.profile import merged
from pytest_ddpperf.records import Interval, Plan
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.intervals import center
from pytest_ddpperf.stats.summaries import typical
from pytest_ddpperf.strategies import Strategy, parallelise, resolve
from pytest_ddpperf.training.exposed import alternating_blocks
from pytest_ddpperf.training.loop import LaunchJob
from pytest_ddpperf.training.profiling import profile_launch
from pytest_ddpperf.training.step import build_step
from pytest_ddpperf.training.workload import Workload

if TYPE_CHECKING:
    from torch import nn

    from pytest_ddpperf.strategies.parallel import Parallel

WIDTH, LAYERS, BATCH = 512, 6, 128
TRAINED = 2 * LAYERS  # weights and biases
WARMUP = 4
STEPS = 160  # of which a quarter is run in blocks
DELAYS = {"naive": 0.005, "bucketed": 0.04, "ddp": 0.04}  # seconds of each collective
NEAR_ZERO = 0.02
SHOWN = 0.75
AGREED = 0.25


@dataclass(frozen=True)
class Row:
    """What was measured of a strategy; the profile is of undelayed ones only."""

    name: str
    delay: float
    step: float
    exposed: float
    interval: Interval | None
    profile: CommunicationProfile | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=6, help="fresh groups of each (default: %(default)s)")
    launches = parser.parse_args().launches
    with Launcher() as launcher:

        def run(function: Callable[..., Any], strategy: Strategy, seed: int = 0) -> tuple[Any, ...]:
            job = LaunchJob(perceptron(), strategy, Settings(), Plan(WARMUP, STEPS), seed=seed)
            size = 1 if strategy.name == "single" else 2
            return launcher.run(function, job, world_size=size, backend="gloo", device="cpu", timeout=300).values

        plain = [
            replace(
                measured(name, 0.0, [run(blocks, resolve(name), seed) for seed in range(launches)]),
                profile=merged(run(profile_launch, resolve(name))),
            )
            for name in ("single", "naive", "bucketed", "ddp")
        ]
        slow = [
            measured(
                name,
                delay,
                [run(blocks, Strategy(partial(delayed, name=name, delay=delay)), seed) for seed in range(launches)],
            )
            for name, delay in DELAYS.items()
        ]
    reached = report(plain, slow)
    sys.exit(not reached)


def perceptron() -> Workload:
    """A model whose gradients take about as long to send as to compute."""
    import torch
    from torch import nn

    return Workload(
        model=lambda: nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))),
        batch=lambda: (torch.rand(BATCH, WIDTH), torch.zeros(BATCH, WIDTH)),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
        samples_per_step=BATCH,
    )


def blocks(ctx: RankContext, job: LaunchJob) -> BlockTimes | None:
    """On a rank: the pass that ends every launch, after a warm-up alone."""
    step = build_step(ctx, job)
    for _ in range(job.plan.warmup):
        step.run()
    assert step.local is not None  # noqa: S101  a workload's step
    return alternating_blocks(step.local, job.plan.steps, step.period, ctx.device, job.seed)


def delayed(module: nn.Module, ctx: RankContext, *, name: str, delay: float) -> Parallel:
    """On a rank: a strategy whose all-reduces are over ``delay`` seconds later, which nobody computes in."""
    import torch.distributed as dist

    parallel = parallelise(name, module, ctx)
    all_reduce = dist.all_reduce

    def later(future: Any) -> Any:
        time.sleep(delay)  # on gloo's thread
        return future.value()[0]

    if name == "ddp":

        def hook(_state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  torch looks at annotations
            work = all_reduce(bucket.buffer().div_(ctx.world_size), async_op=True)
            return work.get_future().then(later)

        parallel.module.register_comm_hook(None, hook)  # type: ignore[operator]
        return parallel

    class Later:
        def __init__(self, work: Any) -> None:
            self._future = work.get_future().then(later)

        def wait(self) -> None:
            self._future.wait()

    def slow_all_reduce(tensor: Any, *, async_op: bool = False) -> Any:
        work = Later(all_reduce(tensor, async_op=True))
        return work if async_op else work.wait()

    dist.all_reduce = slow_all_reduce  # type: ignore[assignment]  # of this process, which lives for one launch
    return parallel


def measured(name: str, delay: float, launches: list[tuple[BlockTimes, ...]]) -> Row:
    """A row of launches, each of which has what its ranks report."""

    def slowest(ranks: tuple[BlockTimes, ...], side: str) -> float:
        return typical([max(times) for times in zip(*(getattr(rank, side) for rank in ranks), strict=True)])

    steps = [slowest(ranks, "synchronised") for ranks in launches]
    exposed, interval = center(
        [step - slowest(ranks, "unsynchronised") for step, ranks in zip(steps, launches, strict=True)], "difference"
    )
    return Row(name, delay, statistics.median(steps), exposed, interval)


def report(plain: list[Row], slow: list[Row]) -> bool:
    """Print it all; whether every goal is reached."""
    print(f"{LAYERS} layers of {WIDTH}, batch {BATCH}, two gloo ranks (single: one); times in ms\n")
    heads = f"{'exposed':<24}{'profiler: exposed (gaps)':<26}{'busy':>7}{'overlap':>9}"
    print(f"  {'strategy':<10}{'delay':>6}{'step':>8}  {heads}")
    for row in (*plain, *slow):
        ends = "" if row.interval is None else f"[{1e3 * row.interval.low:.2f} .. {1e3 * row.interval.high:.2f}]"
        seen = row.profile
        profiled = "" if seen is None else f"{1e3 * seen.exposed:.2f} ({1e3 * seen.gaps:.2f}) of {1e3 * seen.step:.1f}"
        share = "" if seen is None or seen.overlap is None else f"{seen.overlap:.0%}"
        busy = "" if seen is None else f"{1e3 * seen.busy:.2f}"
        print(
            f"  {row.name:<10}{1e3 * row.delay:>6.0f}{1e3 * row.step:>8.2f}  "
            f"{f'{1e3 * row.exposed:.2f} {ends}':<24}{profiled:<26}{busy:>7}{share:>9}"
        )
    print()
    single, *others = plain
    is_chance = single.interval is not None and single.interval.low <= 0 <= single.interval.high
    near_zero = is_chance or abs(single.exposed) <= NEAR_ZERO * single.step
    reached = [goal(f"single: {single.exposed / single.step:+.1%} of its step", near_zero)]
    for row in others:
        assert row.profile is not None  # noqa: S101  every undelayed strategy was profiled
        # The profiler's step is longer than the others; the shares of the step are what can be compared.
        apart = row.exposed / row.step - row.profile.exposed / row.profile.step
        reached.append(goal(f"{row.name}: {apart:+.1%} of the step from the profiler's figure", abs(apart) <= AGREED))
    for before, after in zip(others, slow, strict=True):
        unhidden = after.delay * (TRAINED if before.name == "naive" else 1)
        grew = after.exposed - before.exposed
        text = f"{before.name}: grew by {1e3 * grew:.1f} ms, of which {1e3 * unhidden:.0f} ms cannot be hidden"
        reached.append(goal(text, grew >= SHOWN * unhidden))
    return all(reached)


def goal(text: str, kept: bool) -> bool:  # noqa: FBT001  what is printed
    print(f"  {text}: {'reached' if kept else 'missed'}")
    return kept


if __name__ == "__main__":
    main()
