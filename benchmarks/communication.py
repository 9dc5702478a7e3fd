"""Exposed communication beside what the profiler sees, and with an artificial delay of every collective.

    python benchmarks/communication.py

Two gloo ranks train a small perceptron; about four minutes. Exposed communication is measured as in every benchmark, by
blocks of steps with and without averaging gradients; the profiler's figure is of launches of its own. Both have a 95 %
t interval over launches, and so has their difference, as shares of a step: under the profiler a step is longer.

The two are no repetition of one another, so their difference has a stated error: 15 % of the step. Blocks count what
averaging costs beside waiting, packing and scaling, and the cores that gloo takes from the computation where ranks have
none to spare; and the profiler makes computation longer, which hides more. In the other direction the profiler takes
the host between two operators for waiting: that part of its figure ("gaps") is allowed on top.

Then each collective is made to last longer without computing anything. What cannot be hidden: of `naive`, the delay of
each of its all-reduces; of `bucketed` and `ddp`, that of the last one, which begins when backward has ended. A thread
that sleeps is woken late, so how long the delays lasted is measured.

Goals: `single` is near zero: within 2 % of its step, or its interval holds zero; the interval of the difference from
the profiler lies within the stated error; a delay shows as far as it cannot be hidden, no more and no less: to within a
fifth of it, with its whole interval.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.metrics.profile import merged
from pytest_ddpperf.records.communication import BlockTimes, CommunicationProfile
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.intervals import Change, center, change
from pytest_ddpperf.stats.summaries import median_step
from pytest_ddpperf.strategies.strategy import Strategy
from pytest_ddpperf.strategies.table import parallelise, resolve
from pytest_ddpperf.training.jobs import LaunchJob
from pytest_ddpperf.training.preparing import profile_launch
from pytest_ddpperf.training.step import build_step
from pytest_ddpperf.training.timing import alternating_blocks
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
SHOWN = 0.2
AGREED = 0.15


@dataclass(frozen=True)
class Row:
    """What was measured of a strategy, launch by launch; the profiles are of undelayed ones only.

    ``delay``: seconds that one of a collective lasted, on the mean.
    """

    name: str
    delay: float
    steps: tuple[float, ...]
    exposed: tuple[float, ...]
    profiles: tuple[CommunicationProfile, ...] = ()

    @property
    def shares(self) -> tuple[float, ...]:
        """Exposed communication as a share of the step."""
        return tuple(exposed / step for exposed, step in zip(self.exposed, self.steps, strict=True))

    @property
    def profiled_shares(self) -> tuple[float, ...]:
        """The same as the profiler sees it."""
        return tuple(one.exposed / one.step for one in self.profiles)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=12, help="fresh groups of each (default: %(default)s)")
    launches = parser.parse_args().launches
    with Launcher() as launcher:

        def run(function: Callable[..., Any], strategy: Strategy, seed: int = 0) -> tuple[Any, ...]:
            job = LaunchJob(perceptron(), strategy, Settings(), Plan(warmup=WARMUP, steps=STEPS), seed=seed)
            size = 1 if strategy.name == "single" else 2
            return launcher.run(function, job, world_size=size, backend="gloo", device="cpu", timeout=300).values

        plain = [
            replace(
                measured(name, [run(blocks, resolve(name), seed) for seed in range(launches)]),
                profiles=tuple(merged(run(profile_launch, resolve(name))) for _ in range(launches)),
            )
            for name in ("single", "naive", "bucketed", "ddp")
        ]
        slow = [
            measured(
                name,
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


@dataclass(frozen=True)
class Blocks:
    """Of a rank: the times of its blocks, and how long each delay lasted."""

    times: BlockTimes
    delays: tuple[float, ...]


def blocks(ctx: RankContext, job: LaunchJob) -> Blocks:
    """On a rank: the pass that ends every launch, after a warm-up alone."""
    step = build_step(ctx, job)
    for _ in range(job.plan.warmup):
        step.run()
    assert step.unsynchronised is not None  # noqa: S101  a workload's step
    times = alternating_blocks(
        step.run, step.unsynchronised, ctx.device, steps=job.plan.steps, period=step.period, seed=job.seed
    )
    assert times is not None  # noqa: S101  there are steps enough
    return Blocks(times, tuple(_LASTED))


_LASTED: list[float] = []  # of this process, which lives for one launch


def delayed(module: nn.Module, ctx: RankContext, *, name: str, delay: float) -> Parallel:
    """On a rank: a strategy whose all-reduces are over ``delay`` seconds later, which nobody computes in."""
    import torch.distributed as dist

    parallel = parallelise(name, module, ctx)
    all_reduce = dist.all_reduce

    def later(future: Any) -> Any:
        start = time.perf_counter()
        time.sleep(delay)  # on gloo's thread
        _LASTED.append(time.perf_counter() - start)
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


def measured(name: str, launches: list[tuple[Blocks, ...]]) -> Row:
    """A row of launches, each of which has what its ranks report."""

    def slowest(ranks: tuple[Blocks, ...], side: str) -> float:
        return median_step([max(times) for times in zip(*(getattr(rank.times, side) for rank in ranks), strict=True)])

    steps = tuple(slowest(ranks, "synchronised") for ranks in launches)
    alone = (slowest(ranks, "unsynchronised") for ranks in launches)
    delays = [delay for ranks in launches for rank in ranks for delay in rank.delays]
    delay = statistics.fmean(delays) if delays else 0.0
    return Row(name, delay, steps, tuple(step - one for step, one in zip(steps, alone, strict=True)))


def report(plain: list[Row], slow: list[Row]) -> bool:
    """Print it all; whether every goal is reached."""
    print(
        f"{LAYERS} layers of {WIDTH}, batch {BATCH}, two gloo ranks (single: one); times in ms, shares in % of a step\n"
    )
    heads = f"{'exposed':<24}{'its share':<20}{'profiler: share':<20}{'gaps':>6}{'busy':>7}{'overlap':>9}"
    print(f"  {'strategy':<10}{'delay':>6}{'step':>8}  {heads}")
    for row in (*plain, *slow):
        print(
            f"  {row.name:<10}{1e3 * row.delay:>6.1f}{1e3 * statistics.median(row.steps):>8.2f}  "
            f"{ends(row.exposed, 1e3):<24}{ends(row.shares, 100):<20}{_profiled(row)}"
        )
    print()
    single, *others = plain
    reached = [near_zero(single)]
    reached += [agrees(row) for row in others]
    reached += [shows(before, after) for before, after in zip(others, slow, strict=True)]
    return all(reached)


def ends(samples: Sequence[float], factor: float) -> str:
    """The typical value and its interval, times a factor."""
    value, interval = center(samples, "difference")
    text = f"{factor * value:.1f}"
    return text if interval is None else f"{text} [{factor * interval.low:.1f} .. {factor * interval.high:.1f}]"


def _profiled(row: Row) -> str:
    if not row.profiles:
        return ""
    gaps, busy = (statistics.fmean(values) for values in zip(*((p.gaps / p.step, p.busy) for p in row.profiles)))  # noqa: B905
    overlaps = [one.overlap for one in row.profiles if one.overlap is not None]
    overlap = f"{statistics.fmean(overlaps):.0%}" if overlaps else ""
    return f"{ends(row.profiled_shares, 100):<20}{100 * gaps:>6.1f}{1e3 * busy:>7.1f}{overlap:>9}"


def near_zero(single: Row) -> bool:
    share, interval = center(single.shares, "difference")
    is_chance = interval is not None and interval.low <= 0 <= interval.high
    return goal(f"single: {share:+.1%} of its step", is_chance or abs(share) <= NEAR_ZERO)


def agrees(row: Row) -> bool:
    """Whether blocks and profiler agree to within the stated error, and no chance has brought that about."""
    found = change(row.shares, row.profiled_shares, scale="difference")
    assert found is not None  # noqa: S101  all figures are finite
    assert found.interval is not None  # noqa: S101  there are several launches
    least = -AGREED - statistics.fmean(one.gaps / one.step for one in row.profiles)
    text = f"{row.name}: {_between(found)} of the step from the profiler's figure, stated {least:+.1%} .. {AGREED:+.1%}"
    return goal(text, least <= found.interval.low and found.interval.high <= AGREED)


def shows(before: Row, after: Row) -> bool:
    """Whether a delay shows as far as it cannot be hidden, and no further."""
    unhidden = after.delay * (TRAINED if before.name == "naive" else 1)
    found = change(
        [one / unhidden for one in after.exposed], [one / unhidden for one in before.exposed], scale="difference"
    )
    assert found is not None  # noqa: S101  as above
    assert found.interval is not None  # noqa: S101  as above
    text = f"{before.name}: grew by {_between(found)} of the {1e3 * unhidden:.1f} ms that cannot be hidden"
    return goal(text, found.interval.low >= 1 - SHOWN and found.interval.high <= 1 + SHOWN)


def _between(found: Change) -> str:
    assert found.interval is not None  # noqa: S101  as above
    return f"{found.estimate:+.1%} [{found.interval.low:+.1%} .. {found.interval.high:+.1%}]"


def goal(text: str, kept: bool) -> bool:  # noqa: FBT001  what is printed
    print(f"  {text}: {'reached' if kept else 'missed'}")
    return kept


if __name__ == "__main__":
    main()
