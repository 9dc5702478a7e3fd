from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.metrics.table import series_of
from pytest_ddpperf.records.health import CpuHealth, GpuHealth, Health
from pytest_ddpperf.records.launch import DeviceMemory, Launch, RankLaunch
from pytest_ddpperf.records.measurement import Measurement, Plan, Series
from tests.factories import PROFILE, make_environment, make_rank_launch


def measurement(*launches: tuple[RankLaunch, ...], **fields: Any) -> Measurement:
    rounds = tuple(Launch(round=i, ranks=ranks, seconds=1.0) for i, ranks in enumerate(launches))
    environment = fields.pop("environment", make_environment(world_size=len(launches[0])))
    defaults: dict[str, Any] = {"name": "ddp", "strategy": "ddp", "mode": None, "plan": Plan(warmup=2, steps=5)}
    return Measurement(**{**defaults, **fields}, environment=environment, launches=rounds)


def found(measured: Measurement) -> dict[str, Series]:
    return {series.metric: series for series in series_of(measured)}


def test_a_launch_has_its_shortest_and_longest_step_and_their_scatter() -> None:
    """The group's steps are 1, 3 and 5 s in one launch, and 2, 2, 5 in the other; standard deviations 2 and root 3."""
    slower = measurement(
        (make_rank_launch(0, (1.0, 2.0, 5.0)), make_rank_launch(1, (0.5, 3.0, 4.0))),
        (make_rank_launch(0, (2.0, 2.0, 5.0)), make_rank_launch(1, (2.0, 1.0, 4.0))),
    )
    series = found(slower)
    assert series["step_time_min"].samples == (1.0, 2.0)
    assert series["step_time_max"].samples == (5.0, 5.0)
    assert series["step_time_scatter"].samples == pytest.approx((2 / 3, math.sqrt(3) / 3))
    assert not any(series[f"step_time_{name}"].gated for name in ("min", "max", "scatter"))
    assert "step_time_scatter" not in found(measurement((make_rank_launch(0, (1.0,)),)))


def test_the_mean_loss_is_that_of_steps_and_ranks() -> None:
    ranks = tuple(make_rank_launch(i, mean_loss=loss, loss=0.5) for i, loss in enumerate((-3.0, 1.0)))
    series = found(measurement(ranks))
    assert (series["mean_loss"].samples, series["mean_loss"].gated) == ((-1.0,), False)
    assert "mean_loss" not in found(measurement((ranks[0], make_rank_launch(1, loss=0.5))))


def test_an_epoch_lasts_for_as_many_steps_as_the_longest_loader_has() -> None:
    """A typical step of 2 s; the loaders of the ranks have batches for 10 and 10.5 steps."""
    ranks = tuple(make_rank_launch(i, (2.0,), epoch_steps=steps) for i, steps in enumerate((10.0, 10.5)))
    epoch = found(measurement(ranks))["epoch_time"]
    assert (epoch.samples, epoch.unit, epoch.gated) == ((21.0,), "s", False)
    assert "epoch_time" not in found(measurement((ranks[0], make_rank_launch(1))))


def on_gpus(*gpus: GpuHealth, **fields: Any) -> Measurement:
    """One rank on each of these GPUs, with one launch."""
    memory = (DeviceMemory(device=gpu.device, uuid=gpu.device, used=1, total=2, reserved=1) for gpu in gpus)
    ranks = tuple(make_rank_launch(i, device_memory=device) for i, device in enumerate(memory))
    measured = measurement(ranks, environment=make_environment(device="cuda", world_size=len(ranks)), **fields)
    health = Health(cpu=CpuHealth(), gpus=gpus)
    return replace(measured, launches=tuple(replace(launch, health=health) for launch in measured.launches))


def test_the_utilisation_of_gpus_is_their_mean_where_all_were_read() -> None:
    known, full, unknown = (
        GpuHealth(device=name, readings=3, utilisation=share) for name, share in (("a", 0.5), ("b", 1.0), ("c", None))
    )
    series = found(on_gpus(known, full))["gpu_utilisation"]
    assert (series.samples, series.better, series.gated) == ((0.75,), "higher", False)
    assert "gpu_utilisation" not in found(on_gpus(known, unknown))
    assert "gpu_utilisation" not in found(on_gpus(known, replace(full, mig=True)))
    assert "gpu_utilisation" not in found(on_gpus(known, full, turns=True))
    assert "gpu_utilisation" not in found(measurement((make_rank_launch(),)))


def test_computing_stands_beside_communicating_where_a_profile_has_both() -> None:
    """Of a step of 50 ms, 5 ms are communication alone, and collectives are under way for 20."""
    ratio = found(measurement((make_rank_launch(),), profile=PROFILE))["compute_to_communication"]
    assert ratio.samples == pytest.approx((2.25,))
    assert (ratio.better, ratio.gated) == ("higher", False)
    silent = replace(PROFILE, busy=0.0, overlapped=0.0)
    assert "compute_to_communication" not in found(measurement((make_rank_launch(),), profile=silent))
    assert "compute_to_communication" not in found(measurement((make_rank_launch(),)))


def test_the_memory_that_is_held_is_the_mean_after_steps_of_the_rank_with_the_most() -> None:
    """The reading before the first step does not count: means of 6 and 8."""
    ranks = (make_rank_launch(0, held=(100, 5, 7)), make_rank_launch(1, held=(0, 8, 8)))
    held = found(measurement(ranks))["mean_allocated"]
    assert (held.samples, held.unit, held.gated) == ((8.0,), "B", False)
    assert "mean_allocated" not in found(measurement((ranks[0], make_rank_launch(1))))
