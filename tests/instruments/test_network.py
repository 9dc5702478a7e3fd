from __future__ import annotations

from statistics import median
from typing import Any

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.planner.links import late_ranks
from pytest_ddpperf.planner.network import timings
from pytest_ddpperf.records.network import RankSweep, SweepPlan

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")
PLAN = SweepPlan(collectives=COLLECTIVES, sizes=(1000, 64_000), rounds=2)


def swept(ctx: RankContext, plan: SweepPlan, delay: float = 0.0) -> RankSweep:
    """A sweep; on rank 1 each all-reduce begins late."""
    import time

    import torch.distributed as dist

    from pytest_ddpperf.instruments.network import sweep

    all_reduce = dist.all_reduce

    def late(*args: Any, **kwargs: Any) -> Any:
        time.sleep(delay)
        return all_reduce(*args, **kwargs)

    if ctx.rank == 1 and delay:
        dist.all_reduce = late  # of this process, which lives for one launch
    return sweep(ctx, plan)


def test_all_collectives_and_pairs_are_timed(launcher: Launcher) -> None:
    ranks = 3
    found = launcher.run(swept, PLAN, world_size=ranks, device="cpu", backend="gloo").values
    for rank, sweep in enumerate(found):
        assert [(one.collective, one.nbytes) for one in sweep.times] == [
            (collective, size // (4 * ranks) * 4 * ranks) for collective in COLLECTIVES for size in PLAN.sizes
        ]
        assert all(len(one.begun) == len(one.waited) == 2 * 10 for one in sweep.times)
        assert all(one.handed == tuple(sorted(one.handed)) for one in sweep.times)
        assert all(seconds > 0 for one in sweep.times for seconds in (*one.begun, *one.waited))
        assert {other: len(seconds) for other, seconds in sweep.pairs.items()} == dict.fromkeys(
            {*range(ranks)} - {rank}, 2
        )


def test_a_rank_that_delays_its_all_reduces_is_named(launcher: Launcher) -> None:
    plan = SweepPlan(collectives=("all_reduce", "all_gather"), sizes=(1000,), rounds=2)
    delayed = launcher.run(swept, plan, 0.02, world_size=2, device="cpu", backend="gloo").values
    of_all_reduce = [rank.times[0] for rank in delayed]
    assert median(late - early for early, late in zip(*(one.handed for one in of_all_reduce), strict=True)) >= 0.017
    named = {late.collective: late.rank for late in late_ranks(delayed)}
    assert named["all_reduce"] == 1
    assert min(timing.seconds for timing in timings(delayed) if timing.collective == "all_reduce") >= 0.02
