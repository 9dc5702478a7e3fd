"""Metrics that cannot fail a test, such as epoch time and MFU, and a table of the peak FLOP/s of GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable
from statistics import fmean, median, stdev
from typing import NamedTuple

from pytest_ddpperf.metrics.launch_figures import Samples, complete, gpus_of, mean_step, of_launches, used_gpus
from pytest_ddpperf.records.launch import GpuHealth, Launch
from pytest_ddpperf.records.measurement import Measurement


@of_launches
def step_time_median(launch: Launch) -> float:
    """Returns the seconds of a launch's median step."""
    return median(launch.step_times)


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
    """Returns FLOP/s for each launch: FLOPs of a step on the rank that computes most, divided by the mean step time."""
    flops = 0.0 if measurement.counts is None else measurement.counts.totals.get("flops", 0.0)
    return tuple(flops / mean_step(launch) for launch in measurement.launches) if flops else None


def mfu(measurement: Measurement) -> Samples | None:
    """Returns model FLOPs utilisation for each launch: ``flops_rate`` / the GPU's peak FLOP/s; None if unknown."""
    rates, precision = flops_rate(measurement), precision_of_products(measurement)
    environment = measurement.environment
    if "activation_checkpointing" in measurement.recipe:
        return None  # recomputed operators count in flops, but are no FLOPs of the model
    if rates is None or precision is None or environment.device != "cuda" or environment.oversubscribed:
        return None
    peak = peak_flops(environment.device_model, precision)
    return None if peak is None else tuple(rate / peak for rate in rates)


def precision_of_products(measurement: Measurement) -> str | None:
    """Returns the precision of a step's matrix products; None if unknown, such as for a step that the user wrote."""
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


def _of_lone_launches(figure: Callable[[Launch], float | None]) -> Callable[[Measurement], Samples | None]:
    """Turns a figure of the whole machine, such as power, into a metric, which is None if launches are interleaved."""
    samples = of_launches(figure)
    return lambda measurement: None if measurement.turns else samples(measurement)


@_of_lone_launches
def gpu_utilisation(launch: Launch) -> float | None:
    """Returns the fraction of time (0 to 1) in which the ranks' GPUs were busy, averaged over GPUs; None if unknown."""
    shares = _of_gpus(launch, lambda gpu: gpu.utilisation)
    return fmean(shares) if shares else None


@_of_lone_launches
def energy_per_step(launch: Launch) -> float | None:
    """Returns the joules that the ranks' GPUs use in a step; None if a GPU reports no power."""
    powers = _of_gpus(launch, lambda gpu: gpu.power)
    return sum(powers) * fmean(launch.step_times) if powers else None


def _of_gpus(launch: Launch, figure: Callable[[GpuHealth], float | None]) -> Samples | None:
    """Returns a figure of each GPU of the ranks; None if one is unknown, as it is for MIG instances."""
    gpus = gpus_of(launch)
    known = complete(None if gpu.mig else figure(gpu) for gpu in gpus)
    return known if len(gpus) == len(used_gpus(launch)) else None


@_of_lone_launches
def cpu_energy_per_step(launch: Launch) -> float | None:
    """Returns the joules that all processors used in a step, also for other processes; None if unknown."""
    powers = complete(cpu.power for cpu in launch.processors.values())
    return sum(powers) * fmean(launch.step_times) if powers and all(powers) else None


def compute_to_communication(measurement: Measurement) -> Samples | None:
    """Returns the computing time divided by the time of collectives, in a profiled step.

    All time except exposed communication counts as computing. Returns None without a profile or without communication.
    """
    profile = measurement.profile
    return ((profile.step - profile.exposed) / profile.busy,) if profile is not None and profile.busy else None


class Peak(NamedTuple):
    """Peak FLOP/s of one GPU by precision, at boost clocks and without sparsity; ``tf32`` is None without TF32.

    ``half`` is the peak of fp16 with fp32 accumulation, and also of bf16 if ``bf16`` is true.
    """

    fp32: float
    tf32: float | None
    half: float
    bf16: bool = True


_T = 1e12
# By the whole name of the device in torch. Some data sheets state only peaks with sparsity, which are twice these.
_PEAKS: tuple[tuple[str, Peak], ...] = (
    # NVIDIA Tesla V100 data sheet (2020) and V100S's: 15.7, 14 and 16.4 in fp32; 125, 112 and 130 on tensor cores
    (r"Tesla V100-SXM2-\d+GB", Peak(15.7 * _T, None, 125 * _T, bf16=False)),
    (r"Tesla V100-PCIE-\d+GB", Peak(14 * _T, None, 112 * _T, bf16=False)),
    (r"Tesla V100S-PCIE-\d+GB", Peak(16.4 * _T, None, 130 * _T, bf16=False)),
    # NVIDIA T4 data sheet (2019): 8.1 in fp32, 65 in mixed precision
    (r"Tesla T4", Peak(8.1 * _T, None, 65 * _T, bf16=False)),
    # NVIDIA A100 data sheet (2022): 19.5, TF32 156 | 312 with sparsity, 312 | 624; the same for SXM and PCIe
    (r"(NVIDIA )?A100-(SXM4|PCIE)-\d+GB|NVIDIA A100 80GB PCIe", Peak(19.5 * _T, 156 * _T, 312 * _T)),
    # NVIDIA A30 data sheet (2022): 10.3, TF32 82 | 165, 165 | 330
    (r"NVIDIA A30", Peak(10.3 * _T, 82 * _T, 165 * _T)),
    # NVIDIA A40 data sheet (2022): 37.4, TF32 74.8 | 149.6, 149.7 | 299.4
    (r"NVIDIA A40", Peak(37.4 * _T, 74.8 * _T, 149.7 * _T)),
    # NVIDIA A10 data sheet (2021): 31.2, TF32 62.5 | 125, 125 | 250
    (r"NVIDIA A10", Peak(31.2 * _T, 62.5 * _T, 125 * _T)),
    # NVIDIA A10G data sheet for AWS (2022): 35, TF32 35 | 70, 70 | 140
    (r"NVIDIA A10G", Peak(35 * _T, 35 * _T, 70 * _T)),
    # NVIDIA GA102 white paper, appendix A: RTX 3090 has 35.6, TF32 35.6 | 71, 71 | 142 with sums in fp32
    (r"NVIDIA GeForce RTX 3090", Peak(35.6 * _T, 35.6 * _T, 71 * _T)),
    # NVIDIA Ada white paper, appendix A: RTX 4090 has 82.6, TF32 82.6 | 165.2, 165.2 | 330.4 with sums in fp32
    (r"NVIDIA GeForce RTX 4090", Peak(82.6 * _T, 82.6 * _T, 165.2 * _T)),
    # NVIDIA L4 data sheet (2023), with sparsity: 30.3, TF32 120, 242
    (r"NVIDIA L4", Peak(30.3 * _T, 60 * _T, 121 * _T)),
    # NVIDIA L40 data sheet (2023): 90.5, TF32 90.5 | 181, 181 | 362
    (r"NVIDIA L40", Peak(90.5 * _T, 90.5 * _T, 181 * _T)),
    # NVIDIA L40S data sheet (2023): 91.6, TF32 183 | 366, 362 | 733
    (r"NVIDIA L40S", Peak(91.6 * _T, 183 * _T, 362 * _T)),
    # NVIDIA H100 white paper (1.04), table 2: SXM5 66.9, TF32 494.7, 989.4; PCIe 51.2, TF32 378, 756
    # NVIDIA H200 data sheet (2024): the figures of the H100 SXM, rounded
    (r"NVIDIA H100 80GB HBM3|NVIDIA H200", Peak(66.9 * _T, 494.7 * _T, 989.4 * _T)),
    (r"NVIDIA H100 PCIe", Peak(51.2 * _T, 378 * _T, 756 * _T)),
    # NVIDIA H100 and H200 data sheets (2024), with sparsity except for fp32: 60, TF32 835, 1671
    (r"NVIDIA H[12]00 NVL", Peak(60 * _T, 417.5 * _T, 835.5 * _T)),
    # NVIDIA HGX B200 data sheet (2024), eight GPUs with sparsity: 600 without, TF32 18 000, 36 000
    (r"NVIDIA B200", Peak(75 * _T, 1125 * _T, 2250 * _T)),
    # AMD Instinct MI250X data sheet (2021): matrix 95.7 in fp32, 383; torch sees its two dies as a device each
    (r"AMD Instinct MI250X", Peak(95.7 / 2 * _T, None, 383 / 2 * _T)),
    # AMD Instinct MI300X data sheet (2023): matrix 163.4 in fp32, 1307.4; torch multiplies no TF32 there by itself
    (r"AMD Instinct MI300X", Peak(163.4 * _T, None, 1307.4 * _T)),
)


def peak_flops(model: str, precision: str) -> float | None:
    """Returns the peak FLOP/s of a device of this model in a precision; None if it is unknown.

    ``model`` is torch's name of the device. A part of a GPU (MIG) and devices of several models have no peak.
    """
    for peak in (peak for name, peak in _PEAKS if re.fullmatch(name, model)):
        peaks = {"fp32": peak.fp32, "tf32": peak.tf32, "fp16": peak.half, "bf16": peak.half if peak.bf16 else None}
        return peaks[precision]
    return None
