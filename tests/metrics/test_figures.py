from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.metrics.figures import peak_flops
from pytest_ddpperf.metrics.findings import findings_of
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import CpuHealth, DeviceMemory, GpuHealth, Health
from pytest_ddpperf.records.measurement import Environment, Measurement
from pytest_ddpperf.settings import Settings
from tests.factories import PROFILE, make_environment, make_measurement, make_rank_launch
from tests.metrics.made import by_name, measurement

H100 = make_environment(device="cuda", device_model="NVIDIA H100 80GB HBM3", device_count=1, world_size=1)


def test_a_launch_has_its_shortest_and_longest_step_and_their_scatter() -> None:
    """The group's steps are 1, 3 and 5 s in one launch, and 2, 2, 5 in the other; standard deviations 2 and root 3."""
    slower = measurement(
        (make_rank_launch(0, (1.0, 2.0, 5.0)), make_rank_launch(1, (0.5, 3.0, 4.0))),
        (make_rank_launch(0, (2.0, 2.0, 5.0)), make_rank_launch(1, (2.0, 1.0, 4.0))),
    )
    series = by_name(slower)
    assert series["step_time_min"].samples == (1.0, 2.0)
    assert series["step_time_max"].samples == (5.0, 5.0)
    assert series["step_time_scatter"].samples == pytest.approx((2 / 3, math.sqrt(3) / 3))
    assert not any(series[f"step_time_{name}"].gated for name in ("min", "max", "scatter"))
    assert "step_time_scatter" not in by_name(measurement((make_rank_launch(0, (1.0,)),)))


def test_the_mean_loss_is_taken_over_steps_and_ranks() -> None:
    ranks = tuple(make_rank_launch(i, mean_loss=loss, loss=0.5) for i, loss in enumerate((-3.0, 1.0)))
    series = by_name(measurement(ranks))
    assert (series["mean_loss"].samples, series["mean_loss"].gated) == ((-1.0,), False)
    assert "mean_loss" not in by_name(measurement((ranks[0], make_rank_launch(1, loss=0.5))))


def test_an_epoch_lasts_for_as_many_steps_as_the_longest_loader_has() -> None:
    """A step of 2 s; the loaders of the ranks have batches for 10 and 10.5 steps."""
    ranks = tuple(make_rank_launch(i, (2.0,), epoch_steps=steps) for i, steps in enumerate((10.0, 10.5)))
    epoch = by_name(measurement(ranks))["epoch_time"]
    assert (epoch.samples, epoch.unit, epoch.gated) == ((21.0,), "s", False)
    assert "epoch_time" not in by_name(measurement((ranks[0], make_rank_launch(1))))


def test_the_first_step_has_ended_when_it_has_on_the_slowest_rank() -> None:
    ranks = tuple(make_rank_launch(i, first_step=first, compiling=1.5) for i, first in enumerate((3.0, 4.0)))
    told = by_name(measurement(ranks))
    assert [told[name].samples for name in ("time_to_first_step", "compile_time")] == [(4.0,), (1.5,)]
    assert not any(told[name].gated for name in ("time_to_first_step", "compile_time"))
    assert "compile_time" not in by_name(measurement((ranks[0], make_rank_launch(1, first_step=1.0))))


def on_gpus(*gpus: GpuHealth, **fields: Any) -> Measurement:
    """One rank on each of these GPUs, with one launch."""
    memory = (DeviceMemory(device=gpu.device, uuid=gpu.device, used=1, total=2, reserved=1) for gpu in gpus)
    ranks = tuple(make_rank_launch(i, device_memory=device) for i, device in enumerate(memory))
    measured = measurement(ranks, environment=make_environment(device="cuda", world_size=len(ranks)), **fields)
    health = Health(cpu=CpuHealth(), gpus=gpus)
    return replace(measured, launches=tuple(replace(launch, health=health) for launch in measured.launches))


def test_the_utilisation_of_gpus_is_their_mean_if_all_were_read() -> None:
    known, full, unknown = (
        GpuHealth(device=name, readings=3, utilisation=share) for name, share in (("a", 0.5), ("b", 1.0), ("c", None))
    )
    series = by_name(on_gpus(known, full))["gpu_utilisation"]
    assert (series.samples, series.better, series.gated) == ((0.75,), "higher", False)
    assert "gpu_utilisation" not in by_name(on_gpus(known, unknown))
    assert "gpu_utilisation" not in by_name(on_gpus(known, replace(full, mig=True)))
    assert "gpu_utilisation" not in by_name(on_gpus(known, full, turns=True))
    assert "gpu_utilisation" not in by_name(measurement((make_rank_launch(),)))


def test_gpus_that_wait_are_named() -> None:
    half = GpuHealth(device="a", readings=3, utilisation=0.5)
    assert Finding("idle_gpus", {"share": 0.5, "busy": 0.8}) in findings_of(on_gpus(half))
    assert findings_of(make_measurement()) == ()  # nothing was timed
    assert not [each for each in findings_of(on_gpus(replace(half, utilisation=0.9))) if each.code == "idle_gpus"]


def test_a_profile_with_both_has_a_ratio_of_computing_to_communicating() -> None:
    """Of a step of 50 ms, 5 ms are communication alone, and collectives are under way for 20."""
    ratio = by_name(measurement((make_rank_launch(),), profile=PROFILE))["compute_to_communication"]
    assert ratio.samples == pytest.approx((2.25,))
    assert (ratio.better, ratio.gated) == ("higher", False)
    silent = replace(PROFILE, busy=0.0, overlapped=0.0)
    assert "compute_to_communication" not in by_name(measurement((make_rank_launch(),), profile=silent))
    assert "compute_to_communication" not in by_name(measurement((make_rank_launch(),)))


def test_the_memory_that_is_held_is_the_mean_after_steps_of_the_rank_with_the_most() -> None:
    """The reading before the first step does not count: means of 6 and 8."""
    ranks = (make_rank_launch(0, held=(100, 5, 7)), make_rank_launch(1, held=(0, 8, 8)))
    gpu = make_environment(device="cuda")
    held = by_name(measurement(ranks, environment=gpu))["mean_allocated"]
    assert (held.samples, held.unit, held.gated) == ((8.0,), "B", False)
    assert "mean_allocated" not in by_name(measurement((ranks[0], make_rank_launch(1)), environment=gpu))
    assert "mean_allocated" not in by_name(measurement(ranks)), "the heap of the CPU has the imports, too"


LAYERS, WIDTH, BATCH = 4, 1024, 256
# Of each Linear: 2 FLOPs for each weight and sample, in forward, for the gradient of its inputs and for that of its
# weights; the first one's inputs need no gradient.
FLOPS = 2 * BATCH * WIDTH * WIDTH * (3 * LAYERS - 1)


def counted_stack(kind: str = "float32", **model_size: float) -> Counts:
    """What is counted of a stack of Linear layers, of which torch multiplies the matrices; its weights are 4 Mi."""
    nbytes = {kind: 4.0 * LAYERS * WIDTH * WIDTH, **model_size}
    return Counts(totals={"flops": float(FLOPS)}, details={"model_size": nbytes}, unstable={})


def test_the_rate_of_flops_and_its_share_of_the_peak_agree_with_those_by_hand() -> None:
    """5.9 GFLOP a step; on an H100 494.7 TFLOP/s in TF32, 989.4 in bf16, and 66.9 in fp32."""

    def share(seconds: float, **fields: Any) -> float:
        measured = measurement((make_rank_launch(0, (seconds,)),), counts=counted_stack(), environment=H100, **fields)
        rate, mfu = (by_name(measured)[metric] for metric in ("flops_rate", "mfu"))
        assert rate.samples == (FLOPS / seconds,)
        assert (rate.unit, rate.better, mfu.gated) == ("FLOP/s", "higher", False)
        return mfu.value

    assert FLOPS == 5_905_580_032
    assert share(1e-4) == pytest.approx(5.905580032e13 / 66.9e12, rel=1e-9)
    assert share(2e-5, recipe={"precision": "tf32"}) == pytest.approx(0.5969, rel=1e-2)
    assert share(1e-5, recipe={"precision": "bf16"}) == pytest.approx(0.5969, rel=1e-2)


@pytest.mark.parametrize(
    ("strategy", "precision", "kind", "override", "products"),
    [
        ("ddp", "fp32", "float32", None, 66.9),
        ("ddp", "tf32", "float32", None, 494.7),
        ("ddp", "tf32", "float32", "0", 66.9),
        ("ddp", "fp32", "float32", "1", 494.7),
        ("ddp", "fp16", "float32", "0", 989.4),
        ("ddp", "fp32", "bfloat16", None, 989.4),
        ("fsdp2[param_dtype=bf16]", "fp32", "float32", None, 989.4),
        ("fsdp2[reduce_dtype=bf16]", "fp32", "float32", None, 66.9),
        ("ddp", "fp32", "float64", None, None),
        ("custom", "fp32", "float32", None, None),
    ],
)
def test_the_peak_depends_on_the_precision_of_the_products(
    strategy: str, precision: str, kind: str, override: str | None, products: float | None
) -> None:
    """Those of a bf16 model are bf16, and a variable goes before what torch asks for; of some none is known."""
    measured = measurement(
        (make_rank_launch(0, (1.0,)),),
        environment=replace(H100, recorded={} if override is None else {"NVIDIA_TF32_OVERRIDE": override}),
        strategy=strategy,
        recipe={} if precision == "fp32" else {"precision": precision},
        counts=counted_stack(kind, buffers=8.0),
    )
    known = by_name(measured).get("mfu")
    assert (None if known is None else known.value) == (
        None if products is None else pytest.approx(FLOPS / products / 1e12)
    )


def test_without_a_peak_there_is_no_share_of_it() -> None:
    """On the CPU, on a part of a GPU, where ranks share one, for parameters of several types, and without counts."""
    facts = {"device": "cuda", "device_model": "NVIDIA A100-SXM4-80GB", "device_count": 1, "world_size": 1}
    gpu = make_environment(**facts)

    def names(environment: Environment, counts: Counts | None) -> set[str]:
        ranks = tuple(make_rank_launch(i) for i in range(environment.world_size))
        return {"mfu", "flops_rate"} & set(by_name(measurement(ranks, environment=environment, counts=counts)))

    counts = counted_stack()
    assert names(gpu, counts) == {"mfu", "flops_rate"}
    assert names(gpu, None) == set()
    assert names(gpu, replace(counts, totals={"flops": 0.0})) == set()
    mixed = counted_stack(bfloat16=16.0)
    others = ({"device": "cpu"}, {"world_size": 2}, {"device_model": "NVIDIA A100-SXM4-80GB MIG 1g.10gb"})
    for environment, given in [(gpu, mixed), *((make_environment(**{**facts, **other}), counts) for other in others)]:
        assert names(environment, given) == {"flops_rate"}


def test_work_that_checkpointing_recomputes_gives_no_mfu() -> None:
    recipe = dict(Settings(activation_checkpointing=True).recipe)
    measured = measurement((make_rank_launch(0),), counts=counted_stack(), environment=H100, recipe=recipe)
    assert {"mfu", "flops_rate"} & set(by_name(measured)) == {"flops_rate"}


@pytest.mark.parametrize(
    ("model", "precision", "peak"),
    [
        ("NVIDIA A100-PCIE-40GB", "bf16", 312e12),
        ("NVIDIA A100 80GB PCIe", "tf32", 156e12),
        ("NVIDIA H100 PCIe", "fp16", 756e12),
        ("NVIDIA H200 NVL", "bf16", 835.5e12),
        ("Tesla V100-SXM2-16GB", "fp16", 125e12),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("Tesla T4", "tf32", None),
        ("NVIDIA L4", "bf16", 121e12),
        ("NVIDIA L40S", "bf16", 362e12),
        ("NVIDIA A10G", "bf16", 70e12),
        ("NVIDIA GeForce RTX 4090", "fp16", 165.2e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "fp16", None),
        ("AMD Instinct MI250X", "fp16", 191.5e12),
        ("AMD Instinct MI300X", "bf16", 1307.4e12),
        ("NVIDIA H100 80GB HBM3 + NVIDIA H100 PCIe", "bf16", None),
        ("", "fp32", None),
    ],
)
def test_a_peak_is_found_by_the_whole_name_of_the_gpu(model: str, precision: str, peak: float | None) -> None:
    assert peak_flops(model, precision) == peak


def test_the_energy_of_processors_is_power_by_the_mean_step() -> None:
    """50 W for steps of 1 and 3 s; where steps alternate, the power is that of both sides."""
    measured = measurement((make_rank_launch(0, (1.0, 3.0)),))
    known = replace(measured.launches[0], health=Health(cpu=CpuHealth(power=50.0)))
    unknown = replace(measured.launches[0], health=Health(cpu=CpuHealth()))
    series = by_name(replace(measured, launches=(known,)))["cpu_energy_per_step"]
    assert (series.samples, series.unit, series.gated) == ((100.0,), "J", False)
    for launches, turns in (((known,), True), ((known, unknown), False), (measured.launches, False)):
        assert "cpu_energy_per_step" not in by_name(replace(measured, launches=launches, turns=turns))
