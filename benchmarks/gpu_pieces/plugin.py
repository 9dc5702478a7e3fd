"""What pieces train, and how the plugin launches, times and profiles it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.gpu_pieces.piece import Place
from perf_tests.language_model import SMALL, Size, language_model
from pytest_ddpperf.launch.interleaving import TurnSlot
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.phases import RankProfile
from pytest_ddpperf.run.session.sides import PRELOADED
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.jobs import PROFILE_LAUNCH, RUN_LAUNCH, LaunchJob
from pytest_ddpperf.training.workload import Workload

HEAVY = Size("heavy", width=1024, heads=16, layers=4, feed_forward=4096, sequence=256)
TINY = Size("tiny", width=32, heads=2, layers=1, feed_forward=64, sequence=16)
WAITS = {"small": "waits for the host", "heavy": "waits for the GPU"}
TIMEOUT = 300.0


def workloads(place: Place) -> dict[str, Workload]:
    """Returns the small language model, which waits for the host, and one of 50 million weights."""
    if place.dry:
        return dict.fromkeys(WAITS, language_model(TINY, batch_size=2))
    return {"small": language_model(SMALL, batch_size=8), "heavy": language_model(HEAVY, batch_size=8)}


def launcher(environ: Mapping[str, str] | None = None) -> Launcher:
    """Starts ranks as the plugin does, in this environment."""
    return Launcher(preload=PRELOADED, environ=environ)


def job_of(workload: Workload, steps: int, *, warmup: int = 5, strategy: str = "ddp", **options: Any) -> LaunchJob:
    """What a launch has to do; ``options`` are those of the job."""
    return LaunchJob(
        workload,
        resolve(strategy),
        Settings(),
        Plan(warmup=warmup, steps=steps),
        **{"diagnosed": False, "growth": False, **options},
    )


def timed(
    started: Launcher,
    place: Place,
    job: LaunchJob,
    ranks: int = 1,
    *,
    turns: TurnSlot | None = None,
    backend: str | None = None,
) -> tuple[tuple[RankLaunch, ...], float]:
    """What the ranks of a timed launch report, and the seconds of all of it."""
    result = started.run(
        RUN_LAUNCH,
        replace(job, turns=turns is not None),
        world_size=ranks,
        device=place.device,
        backend=backend or place.backend,
        timeout=TIMEOUT,
        turns=turns,
    )
    return result.values, result.seconds


def profiled(started: Launcher, place: Place, job: LaunchJob, ranks: int, *, backend: str) -> RankProfile:
    """The profile of a few steps on rank 0."""
    result = started.run(PROFILE_LAUNCH, job, world_size=ranks, device=place.device, backend=backend, timeout=TIMEOUT)
    found: RankProfile = result.rank(0)
    return found
