"""Findings on a measurement alone: shared cores, skipped steps, outlying launches, growing memory."""

from __future__ import annotations

from statistics import median

from pytest_ddpperf.metrics.communication import no_memory_headroom, synchronisation_kept
from pytest_ddpperf.metrics.figures import gpu_utilisation
from pytest_ddpperf.metrics.health import health_findings
from pytest_ddpperf.metrics.launch_figures import mean_step, once
from pytest_ddpperf.metrics.memory import full_gpu_memory, growing_memory, no_allocator_statistics, uneven_memory
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Measurement

SLOW_START = 0.10  # by how much the first quarter of the timed steps may be slower than the rest
MIN_STEPS = 8  # with fewer, a quarter is a single step
OUTLYING_SIGMAS = 3.0
OUTLYING_SHARE = 0.05  # launches that agree to within this are no outliers, however little they scatter
MIN_LAUNCHES = 4  # with fewer, nothing distinguishes the outlier from the others
MIN_STORED = 3  # of two launches, nothing shows which one was disturbed
USED = 0.80  # share of the time in which GPUs that nothing holds up have something to run, at least
SIGMA_PER_MAD = 1.4826  # standard deviations per median absolute deviation of a normal distribution


def findings_of(measurement: Measurement) -> tuple[Finding, ...]:
    """Returns all findings on a measurement, in the order of reports."""
    rules = (
        oversubscription,
        effective_batch,
        skipped_steps,
        traced_steps,
        picked_loading,
        unsettled_warmup,
        unseen_work,
        idle_gpus,
        outlying_launches,
        growing_memory,
        uneven_memory,
        full_gpu_memory,
        no_allocator_statistics,
        no_memory_headroom,
        synchronisation_kept,
    )
    found = (rule(measurement) for rule in rules)
    return (*(finding for finding in found if finding is not None), *health_findings(measurement))


def thin_baseline(measurement: Measurement) -> Finding | None:
    """Reports that a stored baseline has too few launches to know its own scatter."""
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
    on_cpu = environment.device == "cpu"
    each = environment.cores if on_cpu else environment.device_count
    return Finding(
        "oversubscribed",
        {
            "ranks": environment.world_size,
            "threads": environment.threads if on_cpu else 1,
            "shared": each * environment.nodes,
            "resource": "core" if on_cpu else "GPU",
        },
    )


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
    """Reports the data loading that ``loader=auto`` picked."""
    picked = next((launch.ranks[0].picked for launch in measurement.launches), None)
    return None if picked is None else Finding("picked_loader", {"reason": picked[1]})


def unsettled_warmup(measurement: Measurement) -> Finding | None:
    """Reports that the first timed steps of most launches were still slower than the rest."""
    slow, launches = sum(map(_starts_slowly, measurement.launches)), len(measurement.launches)
    if 2 * slow <= launches:
        return None
    return Finding(
        "unsettled_warmup",
        {"slow": slow, "launches": launches, "slower": SLOW_START, "warmup": measurement.plan.warmup},
    )


def unseen_work(measurement: Measurement) -> Finding | None:
    """Reports that events on a device missed work of some steps, which therefore have their wall time."""
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
    """Reports the launches that are far from the others.

    Far is more than 3 standard deviations from the median, estimated from the median absolute deviation, and more
    than 5 %.
    """
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
