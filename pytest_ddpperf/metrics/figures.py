"""Further figures of launches, which fail no test."""

from __future__ import annotations

import re
from statistics import fmean, stdev

from pytest_ddpperf.metrics.launch_figures import (
    Samples,
    complete,
    gpus_of,
    mean_step,
    of_launches,
    of_lone_launches,
    used_gpus,
)
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Measurement


@of_launches
def step_time_min(launch: Launch) -> float:
    """Returns the seconds of a launch's shortest step."""
    return min(launch.step_times)


@of_launches
def step_time_max(launch: Launch) -> float:
    """Returns the seconds of a launch's longest step."""
    return max(launch.step_times)


@of_launches
def step_time_scatter(launch: Launch) -> float | None:
    """Returns the standard deviation of a launch's steps as a share of their mean; None for a single step."""
    times = launch.step_times
    return stdev(times) / fmean(times) if len(times) > 1 else None


@of_launches
def time_to_first_step(launch: Launch) -> float | None:
    """Returns the seconds from the start of building the training to the end of the first step, on the slowest rank."""
    return max(complete(rank.first_step for rank in launch.ranks) or (), default=None)


@of_launches
def compile_time(launch: Launch) -> float | None:
    """Returns the seconds that torch.compile took before the timed steps, on the slowest rank."""
    return max(complete(rank.compiling for rank in launch.ranks) or (), default=None)


@of_launches
def epoch_time(launch: Launch) -> float | None:
    """Returns the seconds of one pass over the loader's data; None for data without an end or a length."""
    steps = complete(rank.epoch_steps for rank in launch.ranks)
    return None if steps is None else max(steps) * mean_step(launch)


def flops_rate(measurement: Measurement) -> Samples | None:
    """Returns FLOP/s of the rank with the most FLOPs: its counted FLOPs of a step, over the step time."""
    flops = 0.0 if measurement.counts is None else measurement.counts.totals.get("flops", 0.0)
    return tuple(flops / mean_step(launch) for launch in measurement.launches) if flops else None


def mfu(measurement: Measurement) -> Samples | None:
    """Returns model FLOPs utilisation: ``flops_rate`` over the GPU's peak in that precision; None if unknown."""
    rates, precision = flops_rate(measurement), precision_of_products(measurement)
    environment = measurement.environment
    if "activation_checkpointing" in measurement.recipe:
        return None  # recomputed operators count in flops, but are no FLOPs of the model
    if rates is None or precision is None or environment.device != "cuda" or environment.oversubscribed:
        return None
    from pytest_ddpperf.metrics.peaks import peak_flops

    peak = peak_flops(environment.device_model, precision)
    return None if peak is None else tuple(rate / peak for rate in rates)


def precision_of_products(measurement: Measurement) -> str | None:
    """Returns the precision of a step's matrix products; None if it is unknown, as for a step of the user's own."""
    sizes = {} if measurement.counts is None else measurement.counts.details.get("model_size", {})
    kinds = set(sizes) - {"buffers"}
    if measurement.strategy == "custom" or len(kinds) != 1:
        return None
    asked = measurement.recipe.get("precision", "fp32")
    sharded = re.search(r"param_dtype=(bf16|fp16)", measurement.strategy)
    if asked in {"bf16", "fp16"}:  # autocast, whatever the parameters are
        return asked
    if sharded is not None:
        return sharded[1]
    if kinds != {"float32"}:
        return {"bfloat16": "bf16", "float16": "fp16"}.get(kinds.pop())
    forced = measurement.environment.recorded.get("NVIDIA_TF32_OVERRIDE", "")  # overrides torch's own settings
    return {"0": "fp32", "1": "tf32"}.get(forced, asked)


@of_lone_launches
def gpu_utilisation(launch: Launch) -> float | None:
    """Returns the share of the time in which a GPU ran something, averaged over the ranks' GPUs; None if unknown."""
    gpus = gpus_of(launch)
    shares = complete(None if gpu.mig else gpu.utilisation for gpu in gpus)
    return fmean(shares) if shares and len(gpus) == len(used_gpus(launch)) else None


@of_lone_launches
def cpu_energy_per_step(launch: Launch) -> float | None:
    """Returns the joules of the processor packages for a step, other processes' included; None if they are unknown."""
    powers = complete(cpu.power for cpu in launch.processors.values())
    return sum(powers) * fmean(launch.step_times) if powers and all(powers) else None


def compute_to_communication(measurement: Measurement) -> Samples | None:
    """Returns the computing time of a step over the time of its collectives, both as the profiler sees them.

    All time but exposed communication counts as computing. None without a profile, and if nothing is sent.
    """
    profile = measurement.profile
    if profile is None or not profile.busy:
        return None
    return ((profile.step - profile.exposed) / profile.busy,)
