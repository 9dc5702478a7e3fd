"""The passes of a benchmark on a GPU: NCCL, with the one rank that a machine with a GPU can always have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from pytest_ddpperf.analysis.traces.difference import usage
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.metrics.communication import merged
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.run.call.traces import read_traces
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.jobs import LaunchJob, TraceJob, rank_file
from pytest_ddpperf.training.loop import run_launch
from pytest_ddpperf.training.preparing import profile_launch
from tests.counted import count_launch
from tests.training.workloads import workload

T = TypeVar("T")


NORMED = workload(
    model=lambda: torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 64)),
    batch=lambda: (torch.rand(8, 64), torch.zeros(8, 64)),
)


def on_gpu(launcher: Launcher, function: Callable[..., T], job: LaunchJob) -> T:
    return launcher.run(function, job, world_size=1, backend="nccl", device="cuda").rank(0)


@pytest.mark.gpu
def test_every_pass_reports_figures_of_the_gpu(launcher: Launcher) -> None:
    """Kernels by their names, a collective for each of six parameters, and parts of a step that add up to it."""
    job = LaunchJob(NORMED, resolve("naive"), Settings(communication=True), Plan(warmup=3, steps=10))
    counts = on_gpu(launcher, count_launch, job)
    assert any("layer_norm" in kernel for kernel in counts.details["kernel_launches"])
    assert "device_synchronisations" in counts.totals
    assert counts.details["collective_calls"] == {"all_reduce": 6.0}
    profile = on_gpu(launcher, profile_launch, job)
    assert len(profile.steps) == Settings().profile_steps
    assert min(step.computed for step in profile.steps) > 0
    assert not merged([profile]).unplaced
    rank = on_gpu(launcher, run_launch, job)
    assert min(rank.step_times) > 0
    assert (rank.blocks, rank.unseen) == ((5, 5), 0.0)
    assert {"peak_allocated", "peak_reserved"} <= rank.memory.keys()
    assert rank.communication is not None
    assert min(*rank.communication.synchronised, *rank.communication.unsynchronised) > 0
    assert rank.phases is not None
    parts = rank.phases.seconds
    assert min(map(min, parts.values())) >= 0  # no mark comes before an earlier one
    assert min(map(min, (parts["forward"], parts["backward"], parts["optimizer"]))) > 0
    assert min(rank.phases.step_times) < 10 * max(rank.step_times)  # the same steps as those that were timed


@pytest.mark.gpu
def test_a_trace_has_the_kernels_and_a_memory_snapshot_is_saved_with_it(launcher: Launcher, tmp_path: Path) -> None:
    job = LaunchJob(NORMED, resolve("naive"), Settings(), Plan(warmup=3, steps=1))
    ran = launcher.run(
        profile_launch, job, TraceJob(str(tmp_path), "x"), world_size=1, backend="nccl", device="cuda", timeout=120
    )
    profile = ran.rank(0)
    assert profile.no_snapshot == ""
    assert (tmp_path / "x_rank_0_memory.pickle").stat().st_size > 0
    (trace,) = read_traces([tmp_path / rank_file("x", 0)])
    assert trace.device == "cuda"
    assert [step.busy for step in trace.steps] == pytest.approx([step.busy for step in profile.steps], rel=1e-2)
    assert [step.computed for step in trace.steps] == pytest.approx([step.computed for step in profile.steps], rel=1e-2)
    assert any(what == "kernel" and "layer_norm" in name for what, name in usage([trace]))
