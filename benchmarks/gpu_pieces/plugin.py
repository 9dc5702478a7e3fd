"""What pieces train, and how the plugin launches and times it."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.gpu_pieces.piece import Place
from perf_tests.language_model import SMALL, Size, language_model
from pytest_ddpperf.launch.interleaving import TurnSlot
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.run.session.sides import PRELOADED
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.jobs import RUN_LAUNCH, LaunchJob

TINY = Size("tiny", width=32, heads=2, layers=1, feed_forward=64, sequence=16)
WARMUP = 12
TIMEOUT = 300.0


def launcher() -> Launcher:
    """Starts ranks as the plugin does."""
    return Launcher(preload=PRELOADED)


def job_of(place: Place, steps: int, strategy: str = "ddp") -> LaunchJob:
    """Returns a launch that times so many steps of the small language model."""
    workload = place.chosen(language_model(SMALL, batch_size=8), language_model(TINY, batch_size=2))
    plan = Plan(warmup=WARMUP, steps=steps)
    return LaunchJob(workload, resolve(strategy), Settings(), plan, diagnosed=False, growth=False)


def timed(
    started: Launcher, place: Place, job: LaunchJob, ranks: int = 1, *, turns: TurnSlot | None = None
) -> tuple[tuple[RankLaunch, ...], float]:
    """Returns what the ranks of a timed launch report, and the seconds of all of it."""
    result = started.run(
        RUN_LAUNCH,
        replace(job, turns=turns is not None),
        world_size=ranks,
        device=place.device,
        backend=place.backend,
        timeout=TIMEOUT,
        turns=turns,
    )
    return result.values, result.seconds
