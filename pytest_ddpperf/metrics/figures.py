"""Figures of launches that gate nothing: what else their steps tell."""

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
    """Seconds of a launch's shortest step."""
    return min(launch.step_times)


@of_launches
def step_time_max(launch: Launch) -> float:
    """Seconds of a launch's longest step."""
    return max(launch.step_times)


@of_launches
def step_time_scatter(launch: Launch) -> float | None:
    """Standard deviation of a launch's steps as a share of their mean; None for a single step."""
    times = launch.step_times
    return stdev(times) / fmean(times) if len(times) > 1 else None


@of_launches
def time_to_first_step(launch: Launch) -> float | None:
    """Seconds from the call that builds what is trained to the end of the first step, on the slowest rank."""
    return max(complete(rank.first_step for rank in launch.ranks) or (), default=None)


@of_launches
def compile_time(launch: Launch) -> float | None:
    """Seconds in which torch.compile compiled before the timed steps, on the slowest rank."""
    return max(complete(rank.compiling for rank in launch.ranks) or (), default=None)


@of_launches
def epoch_time(launch: Launch) -> float | None:
    """Seconds of as many steps as the loader has data for; None for data without an end or a length."""
    steps = complete(rank.epoch_steps for rank in launch.ranks)
    return None if steps is None else max(steps) * mean_step(launch)


def flops_rate(measurement: Measurement) -> Samples | None:
    """FLOP/s of the rank with the most FLOPs: those counted in a step over the step time."""
    flops = 0.0 if measurement.counts is None else measurement.counts.totals.get("flops", 0.0)
    return tuple(flops / mean_step(launch) for launch in measurement.launches) if flops else None


def mfu(measurement: Measurement) -> Samples | None:
    """Model FLOPs utilisation: ``flops_rate`` as a share of what the GPU could do in the precision of the products."""
    rates, precision = flops_rate(measurement), precision_of_products(measurement)
    environment = measurement.environment
    if "activation_checkpointing" in measurement.recipe:
        return None  # what is computed again counts in flops, and is no FLOP of the model
    if rates is None or precision is None or environment.device != "cuda" or environment.oversubscribed:
        return None
    from pytest_ddpperf.metrics.peaks import peak_flops

    peak = peak_flops(environment.device_model, precision)
    return None if peak is None else tuple(rate / peak for rate in rates)


def precision_of_products(measurement: Measurement) -> str | None:
    """The precision of a step's matrix products; None if it is not known, as of a step of the user's own."""
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
    forced = measurement.environment.recorded.get("NVIDIA_TF32_OVERRIDE", "")  # which goes before what torch asks for
    return {"0": "fp32", "1": "tf32"}.get(forced, asked)


@of_lone_launches
def gpu_utilisation(launch: Launch) -> float | None:
    """The share of the time in which something ran on a GPU, averaged over the GPUs of the ranks."""
    gpus = gpus_of(launch)
    shares = complete(None if gpu.mig else gpu.utilisation for gpu in gpus)
    return fmean(shares) if shares and len(gpus) == len(used_gpus(launch)) else None


@of_lone_launches
def cpu_energy_per_step(launch: Launch) -> float | None:
    """Joules that the processor packages take for a step, whoever computes on them; None if they do not tell."""
    powers = complete(cpu.power for cpu in launch.processors.values())
    return sum(powers) * fmean(launch.step_times) if powers and all(powers) else None


def compute_to_communication(measurement: Measurement) -> Samples | None:
    """Returns how much longer a step computes than collectives are under way in it, as the profiler sees both.

    A step computes while it does not only communicate. None without a profile, and where nothing is sent.
    """
    profile = measurement.profile
    if profile is None or not profile.busy:
        return None
    return ((profile.step - profile.exposed) / profile.busy,)
