"""Measures the network between ranks, and fits a latency and a bandwidth to the times of each collective."""

from __future__ import annotations

import datetime as dt
import math
import os
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pytest_ddpperf.baselines.fingerprint import environment, environment_key
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.instruments.host import machine_facts
from pytest_ddpperf.launch.context import RankContext, place
from pytest_ddpperf.launch.environment import thread_count, thread_variables
from pytest_ddpperf.planner.costs import algorithm_bandwidth, bus_bandwidth
from pytest_ddpperf.records import network
from pytest_ddpperf.records.measurement import Environment

if TYPE_CHECKING:
    from pytest_ddpperf.baselines.network import NetworkFile
    from pytest_ddpperf.launch.launcher import Launcher


_LEAST = 3  # least number of sizes in a segment
SIZES = 4  # least number of sizes for a fit: one is omitted, and a line goes through the others
_GAIN = 0.001  # the least reduction of the mean relative error by a second line

Points = Sequence[tuple[float, float]]  # bytes and seconds
Line = tuple[float, float]  # latency and seconds a byte


def largest_bandwidths(fit: network.CollectiveFit) -> tuple[float, float]:
    """Returns algbw and busbw of nccl-tests for the largest measured size, in bytes per second."""
    size, seconds = fit.max_bytes, fit.seconds(fit.max_bytes)
    return algorithm_bandwidth(size, seconds), bus_bandwidth(fit.collective, size, fit.world_size, seconds)


def timings(ranks: Sequence[network.RankSweep]) -> tuple[network.Timing, ...]:
    """Returns the seconds of the fastest call, for each collective and size.

    Each call is timed on its slowest rank. Other calls are mostly slower for reasons outside of the network.
    """
    return tuple(
        network.Timing(collective=each[0].collective, nbytes=each[0].nbytes, seconds=min(_calls(each)))
        for each in zip(*(rank.times for rank in ranks), strict=True)
    )


def _calls(each: Sequence[network.CollectiveTimes]) -> list[float]:
    """Returns the seconds of each call of one collective and size, timed on the call's slowest rank."""
    calls = zip(*(zip(one.begun, one.waited, strict=True) for one in each), strict=True)
    return [max(begun + waited for begun, waited in call) for call in calls]


def usual_times(ranks: Sequence[network.RankSweep]) -> float:
    """Returns the median over collectives and sizes of the quotient (median call time / fastest call time)."""
    sizes = map(_calls, zip(*(rank.times for rank in ranks), strict=True))
    found = [statistics.median(calls) / min(calls) for calls in sizes]
    return statistics.median(found) if found else 1.0


def taken_share(ranks: Sequence[network.RankSweep]) -> float:
    """Returns how much longer computing takes during an all-reduce, as a fraction of the all-reduce's own time.

    0 means that computing continues at full speed, 1 that it stops until the all-reduce ends. The median round counts.
    """
    shares = []
    for each in zip(*(rank.beside for rank in ranks), strict=True):
        computing, sending, both = (
            max(getattr(one, name) for one in each) for name in ("computing", "sending", "both")
        )
        shares.append((both - computing) / sending)
    return min(1.0, max(0.0, statistics.median(shares))) if shares else 0.0


def fit_sizes(measured: Sequence[network.Timing], world_size: int) -> network.CollectiveFit:
    """Fits a line to the times of one collective, or two lines if these predict omitted sizes better.

    For this comparison, each size but the smallest and the largest is omitted in turn. At least ``SIZES`` are needed.
    """
    points = sorted((float(timing.nbytes), timing.seconds) for timing in measured)
    one, two = _held_out(points, _one_line), _held_out(points, _two_lines)
    gain = statistics.fmean(one) - statistics.fmean(two)
    lines, errors = (_two_lines, two) if gain > _GAIN else (_one_line, one)
    return network.CollectiveFit(
        collective=measured[0].collective,
        world_size=world_size,
        min_bytes=int(points[0][0]),
        segments=tuple(
            network.Segment(max_bytes=int(end), latency=latency, seconds_per_byte=slope)
            for end, (latency, slope) in lines(points)
        ),
        error=statistics.median(errors),
    )


def weighted_line(points: Points) -> Line:
    """Fits a line by least squares, with slope and intercept >= 0; weights 1/t^2 make the errors relative."""
    import numpy as np

    sizes, seconds = np.array(points).T
    slope, latency = np.polyfit(sizes, seconds, 1, w=1 / seconds)
    if slope < 0:
        return float(np.average(seconds, weights=seconds**-2)), 0.0
    through_origin = 0.0, float(np.sum(sizes / seconds) / np.sum((sizes / seconds) ** 2))
    return (float(latency), float(slope)) if latency >= 0 else through_origin


def _one_line(points: Points) -> list[tuple[float, Line]]:
    return [(points[-1][0], weighted_line(points))]


def _two_lines(points: Points) -> list[tuple[float, Line]]:
    """Fits two lines and returns (largest size, line) for each; fits one line if there are fewer than 6 sizes."""
    splits = [(points[:i], points[i:]) for i in range(_LEAST, len(points) - _LEAST + 1)]
    if not splits:
        return _one_line(points)
    parts = min(splits, key=lambda halves: sum(_squares(half) for half in halves))
    below, above = parts
    between = math.sqrt(below[-1][0] * above[0][0])  # no measured size lies between both lines
    return [(between, weighted_line(below)), (above[-1][0], weighted_line(above))]


def _squares(points: Points) -> float:
    latency, slope = weighted_line(points)
    return math.fsum(((latency + slope * size) / seconds - 1) ** 2 for size, seconds in points)


def _held_out(points: Points, lines: Callable[[Points], list[tuple[float, Line]]]) -> list[float]:
    """Returns the relative error at each size except the smallest and largest, with ``lines`` fitted to the others."""
    errors = []
    for i in range(1, len(points) - 1):
        size, seconds = points[i]
        found = lines([*points[:i], *points[i + 1 :]])
        latency, slope = next(line for end, line in found if size <= end)
        errors.append(abs((latency + slope * size) / seconds - 1))
    return errors


MIN_RANKS = 2
_PER_DECADE = 3  # sizes between a size and ten times this size


def sizes_between(least: int, most: int, ranks: int) -> tuple[int, ...]:
    """Returns sizes in bytes from ``least`` to ``most``: at least three per decade, and at least four.

    Each size is a whole number of elements on each of the ``ranks``. Raises SettingError if ``most`` is less than twice
    ``least``, or if there are fewer than four such sizes.
    """
    if most < 2 * least:
        raise SettingError(f"--max-size={most} must be at least twice --min-size={least}; give a wider range")
    steps = max(_PER_DECADE, math.ceil(_PER_DECADE * math.log10(most / least)))
    share = network.ELEMENT * ranks
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
    """Returns the environment, such as machine and backend, on which the speed of the network between ranks depends."""
    machine = launcher.machine()
    placement = place(device, backend, world_size, machine)
    gpus = None
    if placement.device == "cuda":
        from pytest_ddpperf.instruments.nvml import gpu_facts

        pci = tuple(filter(None, machine.gpus.pci[:world_size]))
        gpus = gpu_facts(pci, machine.gpu_software, os.environ)
    threads = thread_count(thread_variables(os.environ))
    return environment(machine_facts(), machine, placement, world_size, threads=threads, gpus=gpus)


def measure_network(
    launcher: Launcher, found: Environment, plan: network.SweepPlan, timeout: float
) -> tuple[NetworkFile, tuple[network.RankSweep, ...]]:
    """Times the collectives of ``plan`` in the environment ``found``; returns the fitted network, and all times."""
    from pytest_ddpperf.baselines.network import NetworkFile  # its msgspec is not for ranks, which import this module

    launched = launcher.run(
        _sweep, plan, world_size=found.world_size, device=found.device, backend=found.backend, timeout=timeout
    )
    times = timings(launched.values)
    names = dict.fromkeys(timing.collective for timing in times)
    fitted = NetworkFile(
        environment=environment_key(found),
        date=dt.datetime.now(tz=dt.timezone.utc).date().isoformat(),
        taken=taken_share(launched.values),
        usual=usual_times(launched.values),
        fits=tuple(fit_sizes([one for one in times if one.collective == name], found.world_size) for name in names),
        timings=times,
    )
    return fitted, launched.values


def _sweep(ctx: RankContext, plan: network.SweepPlan) -> network.RankSweep:
    from pytest_ddpperf.instruments.network import sweep

    return sweep(ctx.rank, ctx.world_size, ctx.device, plan)
