"""Figures of launches that gate nothing: what else their steps tell."""

from __future__ import annotations

from statistics import fmean, stdev

from pytest_ddpperf.metrics.launch_figures import Samples, complete, gpus_of, of_launches, typical_step, used_gpus
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
def epoch_time(launch: Launch) -> float | None:
    """Seconds of as many typical steps as the loader has data for; None for data without an end or a length."""
    steps = complete(rank.epoch_steps for rank in launch.ranks)
    return None if steps is None else max(steps) * typical_step(launch)


def gpu_utilisation(measurement: Measurement) -> Samples | None:
    """The share of the time in which something ran on a GPU, averaged over the GPUs of the ranks.

    Interleaved launches have none: what runs on their GPUs is that of all of them.
    """
    return None if measurement.turns else _gpu_utilisation(measurement)


@of_launches
def _gpu_utilisation(launch: Launch) -> float | None:
    gpus = gpus_of(launch)
    shares = complete(None if gpu.mig else gpu.utilisation for gpu in gpus)
    return fmean(shares) if shares and len(gpus) == len(used_gpus(launch)) else None


def compute_to_communication(measurement: Measurement) -> Samples | None:
    """How much longer a step computes than collectives are under way in it, as the profiler sees both.

    A step computes while it does not only communicate. None without a profile, and where nothing is sent.
    """
    profile = measurement.profile
    if profile is None or not profile.busy:
        return None
    return ((profile.step - profile.exposed) / profile.busy,)
