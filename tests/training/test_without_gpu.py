"""Scripts that were written for GPUs, on ranks that compute on the CPU."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpperf import Script
from pytest_ddpperf.errors import RankFailed
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.reports.findings import finding_text
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training.jobs import PREPARE_LAUNCH, LaunchJob, PrepareJob
from pytest_ddpperf.training.without_gpu import GpuCalls

HERE = str(__file__).rpartition("/")[0]


def counted(launcher: Launcher, train: Callable[[], object]) -> tuple[Counts, list[str]]:
    """What rank 0 of two counts of a script that loops for ever, and what is said of that."""
    training = LaunchJob(Script(train), None, Settings(counts="only"), Plan(warmup=2, steps=3), roots=(HERE,))
    group: Any = {"backend": "gloo", "device": "cpu", "own_group": True}
    job = PrepareJob(training, counted=True)
    found = launcher.run(PREPARE_LAUNCH, job, world_size=2, timeout=60, **group).values[0]
    assert found.counts is not None
    return found.counts, list(map(finding_text, found.remarks))


def for_gpus() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    dist.barrier(device_ids=[rank])
    module = nn.Linear(8, 8).cuda()
    model = DistributedDataParallel(module, device_ids=[rank])
    criterion = nn.MSELoss().to(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        inputs = torch.randn(4, 8).pin_memory().to("cuda", non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = criterion(model(inputs), torch.zeros(4, 8, device=f"cuda:{torch.cuda.current_device()}"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        torch.cuda.current_stream().synchronize()


NAMED = (  # of each call the lines behind the first one of the script
    ("set_device", 2),
    ("device_count", 2),
    ("init_process_group(nccl)", 3),
    ("barrier(device_ids)", 4),
    ("cuda", 5),
    ("DistributedDataParallel(device_ids)", 6),
    ("pin_memory", 10),
    ("to(cuda)", 10),
    ("autocast(cuda)", 11),
    ("current_device", 12),
    ("synchronize", 16),
)


ZEROS = torch.zeros


def for_any() -> None:
    """For it torch is as it was."""
    assert torch.zeros is ZEROS
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""  # a GPU that is there is hidden
    assert not isinstance(torch.zeros(1), (torch.cuda.Stream, torch.cuda.Event)), "annotations ask so"
    dist.init_process_group()
    model = DistributedDataParallel(nn.Linear(8, 8).to("cpu"))
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        inputs = torch.randn(4, 8).to("cpu")
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not torch.cuda.is_available()):
            loss = criterion(model(inputs), torch.zeros(4, 8))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_script_for_gpus_does_the_same_work_on_the_cpu_and_its_calls_are_named(launcher: Launcher) -> None:
    (counts, said), (same, nothing) = counted(launcher, for_gpus), counted(launcher, for_any)
    assert same.totals["allocator_calls"] == same.totals["full_precision_flops"] == 0.0
    assert counts.totals == {**same.totals, "allocator_calls": 2.0}  # a wait for the GPU counts as on one
    assert nothing == []
    (remark,) = said
    first = for_gpus.__code__.co_firstlineno
    for call, line in NAMED:
        assert f" {call} at test_without_gpu.py:{first + line}" in remark


def sharded() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    module = torch.get_device_module("cuda")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    module.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    mesh = init_device_mesh("cuda", (2,))
    with torch.device("meta"):
        model = nn.Linear(8, 8)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    module.reset_peak_memory_stats()
    with torch.device("cuda"):
        inputs = torch.ones(4, 8)
    stream = module.Stream()
    while True:
        with module.stream(stream):
            loss = model(inputs).sum() * module.max_memory_allocated()
        module.current_stream().wait_stream(stream)
        loss.backward()
        optimizer.step()


def accelerated() -> None:
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    accelerator: Any = torch.accelerator.current_accelerator()
    dist.init_process_group(dist.get_default_backend_for_device(accelerator))
    device = torch.device(f"{accelerator}:{dist.get_rank() % torch.accelerator.device_count()}")
    model = DistributedDataParallel(nn.Linear(8, 8).to(device), device_ids=[device.index])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.ones(4, 8, device=device)).sum().backward()
        optimizer.step()
        torch.accelerator.synchronize()


def batch_normalised() -> None:
    dist.init_process_group("nccl")
    convert: Callable[[nn.Module], nn.Module] = nn.SyncBatchNorm.convert_sync_batchnorm  # torch leaves it untyped
    model = DistributedDataParallel(convert(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("script", [sharded, accelerated, batch_normalised])
def test_other_calls_for_a_gpu_use_the_cpu_too(launcher: Launcher, script: Callable[[], object]) -> None:
    counts, said = counted(launcher, script)
    assert counts.totals["collective_calls"] > 0
    assert len(said) == 1


def test_a_warning_of_torchs_names_the_line_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "barrier", lambda **_: warnings.warn("old", FutureWarning, stacklevel=2))
    with GpuCalls(1, ()).on_cpu(), pytest.warns(FutureWarning, match="old") as said:
        dist.barrier(device_ids=[0])
    assert [(each.filename, each.lineno) for each in said] == [(__file__, sys._getframe().f_lineno - 1)]


def test_calls_that_wait_for_a_gpu_or_ask_for_its_memory_have_answers_on_the_cpu() -> None:
    with GpuCalls(1, ()).on_cpu():
        cuda: Any = torch.cuda  # torch leaves some of it untyped
        cuda.init()
        for stream in (cuda.Stream(), cuda.current_stream(), cuda.default_stream()):
            cuda.set_stream(stream)
            stream.synchronize()
            event = stream.record_event()
            event.synchronize()
            assert stream.query()
            assert stream.record_event(event) is event
        for module in (cuda, torch.accelerator):
            for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", "reset_accumulated_memory_stats"):
                getattr(module, name, lambda: None)()  # torch before 2.9 has no memory of an accelerator
            assert getattr(module, "max_memory_allocated", lambda: 0)() == 0
            assert not getattr(module, "memory_stats", dict)()
    assert not hasattr(torch.cpu.Stream, "query")


def like(values: torch.Tensor) -> torch.Tensor:
    return values + torch.ones_like(values) * torch.full((1,), 2.0)


def like_again(values: torch.Tensor) -> torch.Tensor:
    return values + torch.ones_like(values) * torch.full((1,), 2.0)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_functions_are_scripted_after_a_call_for_a_gpu_too() -> None:
    before = torch.jit.script(like)  # torch.jit knows torch's functions by their identity from then on
    with GpuCalls(1, (HERE,)).on_cpu():
        values = torch.ones(3).cuda()
        after = torch.jit.script(like_again)
        assert after(values).equal(before(values))


def elapsed() -> None:
    make: Callable[..., torch.cuda.Event] = torch.cuda.Event  # torch leaves it untyped
    make(enable_timing=True).elapsed_time(make(enable_timing=True))


def test_a_call_without_a_meaning_on_the_cpu_fails_with_its_line_and_the_cure(launcher: Launcher) -> None:
    with pytest.raises(RankFailed, match=r"^rank \d of 2 raised .*; this rank computes on the CPU: ") as failed:
        counted(launcher, elapsed)
    line = elapsed.__code__.co_firstlineno + 2
    assert failed.value.where.endswith(f"test_without_gpu.py:{line} in elapsed")
