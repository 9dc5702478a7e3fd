"""Findings on other activity of the machine that could have changed the figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from pytest_ddpperf.metrics.launch_figures import gpus_of, used_gpus
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.health import CpuHealth
from pytest_ddpperf.records.measurement import Measurement

LOAD = 0.10  # share of the usable cores' time that other processes may use; the system itself uses a few percent
STEAL = 0.02
THROTTLED = 0.01  # of a launch's time on all usable cores
SWAPPED = 2**20  # bytes
HELD_BACK = 0.10  # share of a launch's readings in which a GPU's clocks were held back
CLOCK_FALL = 0.05  # share by which a GPU's clock may fall from one launch to another


def health_findings(measurement: Measurement) -> Iterator[Finding]:
    """Yields a finding for each activity of the machine that could have changed the result."""
    for node in dict.fromkeys(name for launch in measurement.launches for name in launch.processors):
        for found in _of_node(measurement, node):
            yield replace(found, facts={**found.facts, "node": node}) if node else found
    yield from _gpu_findings(measurement)


def _of_node(measurement: Measurement, node: str) -> Iterator[Finding]:
    cores = measurement.environment.cores
    if span := _above(measurement, node, LOAD, lambda cpu, _: cpu.others):
        yield Finding("cores_used_by_others", span)
    if span := _above(measurement, node, STEAL, lambda cpu, _: cpu.steal):
        yield Finding("cores_stolen", span)

    def throttled(cpu: CpuHealth, seconds: float) -> float | None:  # at most 1: a quota may cover more cores
        return None if cpu.throttled is None or not seconds else min(1.0, cpu.throttled / (seconds * cores))

    if span := _above(measurement, node, THROTTLED, throttled):
        yield Finding("cpu_quota", span)
    if span := _above(measurement, node, 0, lambda cpu, _: cpu.overheated):
        yield Finding("hot_cores", span)
    if span := _above(measurement, node, SWAPPED, lambda cpu, _: cpu.swapped):
        yield Finding("swapping", span)


def _above(
    measurement: Measurement, node: str, limit: float, figure: Callable[[CpuHealth, float], float | None]
) -> Mapping[str, float]:
    """Returns the least and most of a figure over the launches that exceed its limit; empty if no launch does."""
    figures = [
        figure(launch.processors[node], launch.seconds) for launch in measurement.launches if node in launch.processors
    ]
    above = [value for value in figures if value is not None and value > limit]
    if not above:
        return {}
    return {"least": min(above), "most": max(above), "seen": len(above), "launches": len(measurement.launches)}


def _gpu_findings(measurement: Measurement) -> Iterator[Finding]:
    launches = [gpus for gpus in map(gpus_of, measurement.launches) if gpus]
    number = len(measurement.launches)
    unread = [each for each in measurement.launches if each.health and len(gpus_of(each)) < len(used_gpus(each))]
    if unread:
        reasons = dict.fromkeys(text for launch in unread if launch.health for text in launch.health.unread_gpus)
        unknown = ("torch does not say which NVIDIA GPUs they are",)  # on ROCm there are none
        told = tuple(reasons) or unknown
        yield Finding("unread_gpus", {"reasons": told, "seen": len(unread), "launches": number})
    if any(gpu.mig for gpus in launches for gpu in gpus):
        yield Finding("mig_instances", {})
    held = Counter(
        reason
        for gpus in launches
        for reason in sorted({reason for gpu in gpus for reason, share in gpu.throttled.items() if share > HELD_BACK})
    )
    for reason, seen in held.items():
        yield Finding("gpu_clocks_held_back", {"reason": reason, "seen": seen, "launches": number})
    others = Counter(pid for gpus in launches for pid in {pid for gpu in gpus for pid in gpu.others})
    sizes = {pid: size for gpus in launches for gpu in gpus for pid, size in gpu.others.items()}
    for pid, seen in sorted(others.items()):
        yield Finding("gpu_used_by_others", {"pid": pid, "nbytes": sizes[pid], "seen": seen, "launches": number})
    known = [[gpu.sm_clock for gpu in gpus if gpu.sm_clock is not None] for gpus in launches]
    slowest = [min(clocks) for clocks in known if clocks]
    if slowest and min(slowest) < (1 - CLOCK_FALL) * max(slowest):
        yield Finding("gpu_clock_fell", {"lowest": min(slowest), "highest": max(slowest)})
