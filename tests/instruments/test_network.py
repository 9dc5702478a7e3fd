from __future__ import annotations

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.network import RankSweep, SweepPlan

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")
PLAN = SweepPlan(collectives=COLLECTIVES, sizes=(1000, 64_000), rounds=2)


def swept(ctx: RankContext) -> RankSweep:
    from pytest_ddpperf.instruments.network import sweep

    return sweep(ctx.rank, ctx.world_size, ctx.device, PLAN)


def test_all_collectives_and_pairs_are_timed(launcher: Launcher) -> None:
    ranks = 3
    found = launcher.run(swept, world_size=ranks, device="cpu", backend="gloo").values
    for rank, sweep in enumerate(found):
        assert [(one.collective, one.nbytes) for one in sweep.times] == [
            (collective, size // (4 * ranks) * 4 * ranks) for collective in COLLECTIVES for size in PLAN.sizes
        ]
        assert all(len(one.begun) == len(one.waited) == 2 * 10 for one in sweep.times)
        assert all(one.handed == tuple(sorted(one.handed)) for one in sweep.times)
        assert all(seconds > 0 for one in sweep.times for seconds in (*one.begun, *one.waited))
        others = {*range(ranks)} - {rank}
        assert {other: len(seconds) for other, seconds in sweep.pairs.items()} == dict.fromkeys(others, 2)
        assert [min(both.computing, both.sending, both.both) > 0 for both in sweep.beside] == [True, True]
