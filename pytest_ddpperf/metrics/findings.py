"""Findings on one measurement, without a reference: shared cores, skipped steps, outlying launches, a busy machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

from pytest_ddpperf.metrics.communication import no_memory_headroom, synchronisation_kept
from pytest_ddpperf.metrics.figures import gpu_utilisation
from pytest_ddpperf.metrics.launch_figures import gpus_of, mean_step, once, used_gpus
from pytest_ddpperf.metrics.memory import full_gpu_memory, growing_memory, no_allocator_statistics, uneven_memory
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import CpuHealth, Launch
from pytest_ddpperf.records.measurement import Measurement

SLOW_START = 0.10  # by how much the first quarter of the timed steps may be slower than the rest
MIN_STEPS = 8  # with fewer, a quarter is a single step
OUTLYING_SIGMAS = 3.0
OUTLYING_SHARE = 0.05  # launches that agree to within this are no outliers, however little they scatter
MIN_LAUNCHES = 4  # with fewer, nothing distinguishes the outlier from the others
MIN_STORED = 3  # of two launches, nothing shows which one was disturbed
USED = 0.80  # the least share of the time in which GPUs run something, if nothing makes them wait
SIGMA_PER_MAD = 1.4826  # standard deviations per median absolute deviation of a normal distribution

LOAD = 0.10  # share of the usable cores' time that other processes may use; the system itself uses a few percent
STEAL = 0.02  # share of that time that a hypervisor may take
THROTTLED = 0.01  # of a launch's time on all usable cores
SWAPPED = 2**20  # bytes
HELD_BACK = 0.10  # share of a launch's readings in which a GPU's clocks were held back
CLOCK_FALL = 0.05  # share by which a GPU's clock may fall from one launch to another


def findings_of(measurement: Measurement) -> tuple[Finding, ...]:
    """Returns all findings on a measurement, in the order of reports."""
    of_steps = (oversubscription, effective_batch, skipped_steps, traced_steps, picked_loading, unsettled_warmup)
    of_launches = (unseen_work, idle_gpus, outlying_launches, growing_memory, uneven_memory, full_gpu_memory)
    of_lacks = (no_allocator_statistics, no_memory_headroom, synchronisation_kept)
    found = (rule(measurement) for rule in (*of_steps, *of_launches, *of_lacks))
    nodes = dict.fromkeys(name for launch in measurement.launches for name in launch.processors)
    of_nodes = (finding for node in nodes for finding in _of_node(measurement, node))
    return (*filter(None, found), *of_nodes, *_gpu_findings(measurement))


def thin_baseline(measurement: Measurement) -> Finding | None:
    """Reports that a stored baseline has too few launches to show the scatter between launches."""
    launches = len(measurement.launches)
    return Finding("thin_baseline", {"launches": launches}) if 0 < launches < MIN_STORED else None


def busy_baseline(measurement: Measurement) -> Finding | None:
    """Reports that the machine was busy while a stored baseline was timed."""
    busy = measurement.launches and measurement.busy
    return Finding("busy_baseline", {"lost": measurement.lost or None}) if busy else None


def oversubscription(measurement: Measurement) -> Finding | None:
    """Reports that timed ranks had to share cores or GPUs."""
    environment = measurement.environment
    if not environment.oversubscribed or not measurement.launches:
        return None
    threads, of_node, resource = environment.threads, environment.cores, "core"
    if environment.device != "cpu":
        threads, of_node, resource = 1, environment.device_count, "GPU"
    ranks, shared = environment.world_size, of_node * environment.nodes
    return Finding("oversubscribed", {"ranks": ranks, "threads": threads, "shared": shared, "resource": resource})


def effective_batch(measurement: Measurement) -> Finding | None:
    """Reports that an optimizer step takes several micro-batches."""
    steps = int(measurement.recipe.get("accumulation_steps", "1"))
    size = measurement.effective_batch_size
    if steps == 1 or size is None:
        return None
    return Finding("effective_batch_size", {"size": size, "micro_batches": steps, "ranks": measurement.world_size})


def skipped_steps(measurement: Measurement) -> Finding | None:
    """Reports that timed steps updated nothing, because fp16 gradients overflowed."""
    skipped = sum(len(launch.ranks[0].skipped_steps) for launch in measurement.launches)
    return Finding("skipped_steps", {"steps": skipped, "launches": len(measurement.launches)}) if skipped else None


def traced_steps(measurement: Measurement) -> Finding | None:
    """Reports that Python called coverage, a debugger or a profiler while steps were timed."""
    found = dict.fromkeys(name for launch in measurement.launches for rank in launch.ranks for name in rank.tracers)
    return Finding("traced_steps", {"tracers": tuple(found)}) if found else None


def picked_loading(measurement: Measurement) -> Finding | None:
    """Reports the settings of the DataLoader that ``loader=auto`` picked."""
    picked = next((launch.ranks[0].picked for launch in measurement.launches), None)
    return None if picked is None else Finding("picked_loader", {"reason": picked[1]})


def unsettled_warmup(measurement: Measurement) -> Finding | None:
    """Reports that the first timed steps of most launches were still slower than the rest."""
    slow, launches = sum(map(_starts_slowly, measurement.launches)), len(measurement.launches)
    if 2 * slow <= launches:
        return None
    warmup = measurement.plan.warmup
    return Finding("unsettled_warmup", {"slow": slow, "launches": launches, "slower": SLOW_START, "warmup": warmup})


def unseen_work(measurement: Measurement) -> Finding | None:
    """Reports that the host's clock timed steps, because device events missed some of the work."""
    if measurement.environment.oversubscribed:  # the slices of ranks that share a GPU shift events against the host
        return None
    shares = [max(rank.unseen or 0.0 for rank in launch.ranks) for launch in measurement.launches]
    seen = sum(map(bool, shares))
    return Finding("unseen_work", {"share": max(shares), "seen": seen, "launches": len(shares)}) if seen else None


def idle_gpus(measurement: Measurement) -> Finding | None:
    """Reports that the ranks' GPUs had nothing to run for much of the time."""
    shares = gpu_utilisation(measurement)
    share = median(shares) if shares else USED
    return None if share >= USED else Finding("idle_gpus", {"share": share, "busy": USED})


def outlying_launches(measurement: Measurement) -> Finding | None:
    """Reports launches more than 5 % and 3 standard deviations (by the median absolute deviation) from the median."""
    times = [mean_step(launch) for launch in measurement.launches]
    if len(times) < MIN_LAUNCHES:
        return None
    middle = median(times)
    sigma = SIGMA_PER_MAD * median([abs(time - middle) for time in times])
    limit = max(OUTLYING_SIGMAS * sigma, OUTLYING_SHARE * middle)
    far = tuple((number, time / middle - 1) for number, time in enumerate(times, 1) if abs(time - middle) > limit)
    return Finding("outlying_launches", {"outlying": far, "launches": len(times)}) if far else None


@once
def _starts_slowly(launch: Launch) -> bool:
    """Returns whether the first quarter of a launch's timed steps was slower than the rest."""
    times = launch.step_times
    if len(times) < MIN_STEPS:
        return False
    quarter = len(times) // 4
    return median(times[:quarter]) > (1 + SLOW_START) * median(times[quarter:])


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
) -> Mapping[str, Any]:
    """Returns facts on a node's figures above ``limit``, such as minimum and maximum; empty if there are none."""
    launches = (launch for launch in measurement.launches if node in launch.processors)
    figures = (figure(launch.processors[node], launch.seconds) for launch in launches)
    above = [value for value in figures if value is not None and value > limit]
    facts: dict[str, Any] = {"seen": len(above), "launches": len(measurement.launches)}
    named = {"node": node} if node else {}
    return {"least": min(above), "most": max(above), **facts, **named} if above else {}


def _gpu_findings(measurement: Measurement) -> Iterator[Finding]:
    launches = [gpus for gpus in map(gpus_of, measurement.launches) if gpus]
    number = len(measurement.launches)
    unread = [each for each in measurement.launches if each.health and len(gpus_of(each)) < len(used_gpus(each))]
    if unread:
        reasons = dict.fromkeys(text for launch in unread if launch.health for text in launch.health.unread_gpus)
        told = tuple(reasons) or ("torch does not say which NVIDIA GPUs they are",)  # on ROCm there are none
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
    known = ([gpu.sm_clock for gpu in gpus if gpu.sm_clock is not None] for gpus in launches)
    slowest = list(map(min, filter(None, known)))
    if slowest and min(slowest) < (1 - CLOCK_FALL) * max(slowest):
        yield Finding("gpu_clock_fell", {"lowest": min(slowest), "highest": max(slowest)})
