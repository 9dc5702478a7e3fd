"""Measures the network between ranks: launches them, times collectives of many sizes, and fits their costs."""

from __future__ import annotations

import datetime as dt
import importlib.util
import math
import os
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpperf.baselines.fingerprint import environment, environment_key
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.instruments.host import machine_facts
from pytest_ddpperf.launch.context import BACKENDS, Gpus, TorchMachine, place
from pytest_ddpperf.launch.environment import thread_count, thread_variables
from pytest_ddpperf.planner.network import SIZES, fit_collectives, taken_share, timings, usual_times
from pytest_ddpperf.records.measurement import Environment
from pytest_ddpperf.records.network import ELEMENT, RankSweep, SweepPlan

if TYPE_CHECKING:
    from pytest_ddpperf.baselines.network import NetworkFile
    from pytest_ddpperf.launch.context import RankContext
    from pytest_ddpperf.launch.launcher import Launcher

MIN_RANKS = 2
_PER_DECADE = 3  # sizes between a size and ten times this size
_GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # devices that exist if CUDA's, ROCm's or WSL's driver is loaded


def sizes_between(least: int, most: int, ranks: int) -> tuple[int, ...]:
    """Returns sizes from ``least`` to ``most`` in bytes, at least three per decade and at least four in all.

    Every rank has a whole number of elements of each size, so the stated size can really be sent. SettingError if the
    largest is not twice the smallest, or if there are no four such sizes.
    """
    if most < 2 * least:
        raise SettingError(f"--max-size={most} must be at least twice --min-size={least}; give a wider range")
    steps = max(_PER_DECADE, math.ceil(_PER_DECADE * math.log10(most / least)))
    share = ELEMENT * ranks
    between = (round(least * (most / least) ** (i / steps) / share) * share for i in range(1, steps))
    ends = max(1, least // share) * share, math.ceil(most / share) * share
    sizes = tuple(sorted({size for size in between if ends[0] < size < ends[1]} | {*ends}))
    if len(sizes) < SIZES:
        raise SettingError(
            f"from --min-size={least} to --max-size={most} only {len(sizes)} sizes are multiples of {share} B, "
            f"which {ranks} ranks can share evenly, and a fit needs {SIZES}: give a wider range"
        )
    return sizes


def network_environment(launcher: Launcher, world_size: int, device: str, backend: str) -> Environment:
    """Returns the facts that the network between ``world_size`` ranks on this machine depends on."""
    machine = launcher.machine()
    placement = place(device, backend, world_size, machine)
    gpus = None
    if placement.device == "cuda":
        from pytest_ddpperf.instruments.nvml import gpu_facts

        pci = tuple(filter(None, machine.gpus.pci[:world_size]))
        gpus = gpu_facts(pci, machine.gpu_software, os.environ)
    threads = thread_count(thread_variables(os.environ))
    return environment(machine_facts(), machine, placement, world_size, threads=threads, gpus=gpus)


def stored_environment(world_size: int, device: str, backend: str) -> Environment | None:
    """Returns ``network_environment`` without importing torch; None if there are GPUs, which only torch can name."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations or any(Path(name).exists() for name in _GPUS):
        return None
    built = runpy.run_path(str(Path(spec.submodule_search_locations[0]) / "version.py"))
    cuda = built.get("cuda") or built.get("hip")
    machine = TorchMachine(torch=built["__version__"], cuda=cuda, gpus=Gpus(), backends=BACKENDS)
    placement = place(device, backend, world_size, machine)
    threads = thread_count(thread_variables(os.environ))
    return environment(machine_facts(), machine, placement, world_size, threads=threads)


def measure_network(
    launcher: Launcher, found: Environment, plan: SweepPlan, timeout: float
) -> tuple[NetworkFile, tuple[RankSweep, ...]]:
    """Times collectives on fresh ranks in an environment; returns the fitted network, and the times of each rank."""
    from pytest_ddpperf.baselines.network import NetworkFile  # its msgspec is not for ranks, which import this module

    launched = launcher.run(
        _sweep, plan, world_size=found.world_size, device=found.device, backend=found.backend, timeout=timeout
    )
    times = timings(launched.values)
    network = NetworkFile(
        environment=environment_key(found),
        date=dt.datetime.now(tz=dt.timezone.utc).date().isoformat(),
        taken=taken_share(launched.values),
        usual=usual_times(launched.values),
        fits=fit_collectives(times, found.world_size),
        timings=times,
    )
    return network, launched.values


def _sweep(ctx: RankContext, plan: SweepPlan) -> RankSweep:
    from pytest_ddpperf.instruments.network import sweep

    return sweep(ctx.rank, ctx.world_size, ctx.device, plan)
