"""Real ranks name what is set up otherwise, with the line that does so."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.ranks import merged
from pytest_ddpperf.records.sites import SETTINGS
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training.jobs import LaunchJob, PrepareJob
from pytest_ddpperf.training.preparing import prepare_launch

Wrap = Callable[[nn.Sequential], Any]


def wrapping(*, hook: bool = False, **options: Any) -> Wrap:
    def wrap(model: nn.Module) -> Any:
        wrapped = DistributedDataParallel(model, **options)
        if hook:
            wrapped.register_comm_hook(None, fp16_compress_hook)
        return wrapped

    return wrap


def sharding(*, blocks: bool = True, **options: Any) -> Wrap:
    """Shards each block, or all but the first block together."""

    def wrap(model: nn.Sequential) -> Any:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
        for block in model.children() if blocks else ():
            fully_shard(block, mp_policy=policy, **options)
        ignored = set[nn.Parameter]() if blocks else set(model[0].parameters())
        return fully_shard(model, ignored_params=ignored)

    return wrap


def training(wrap: Wrap) -> Callable[[Any], Callable[[], None]]:
    def build(_ctx: Any) -> Callable[[], None]:
        model = wrap(nn.Sequential(*(nn.Linear(16, 16) for _ in range(3))))

        def step() -> None:
            model(torch.ones(4, 16)).sum().backward()
            model.zero_grad()

        return step

    return build


def counts_of(launcher: Launcher, wrap: Wrap) -> Counts:
    job = PrepareJob(LaunchJob(training(wrap), None, Settings(), Plan(warmup=2, steps=2)), counted=True, copied=False)
    ranks = launcher.run(prepare_launch, job, world_size=2, backend="gloo", device="cpu").values
    return merged([rank.counts for rank in ranks if rank.counts is not None])


def settings(counts: Counts) -> dict[str, tuple[float, str]]:
    """Their numbers and the texts of their lines, by name."""
    return {site.part: (site.value, linecache.getline(__file__, site.line).strip()) for site in counts.sites[SETTINGS]}


def test_settings_of_ddp_are_those_that_are_no_defaults(launcher: Launcher) -> None:
    options = {"find_unused_parameters": True, "bucket_cap_mb": 5, "gradient_as_bucket_view": False}
    found = settings(counts_of(launcher, wrapping(hook=True, **options)))
    names = {"comm_hook=fp16_compress_hook", "find_unused_parameters=True", "bucket_cap_mb=5"}
    ddp = "DistributedDataParallel"
    assert found.keys() == {ddp, *(f"{ddp}: {name}" for name in names)}
    assert set(found.values()) == {(1.0, "wrapped = DistributedDataParallel(model, **options)")}


@pytest.mark.skipif(not hasattr(torch.cpu.Stream, "record_event"), reason="this torch does not shard on the CPU")
def test_units_of_fully_shard_are_counted_by_class_with_their_settings(launcher: Launcher) -> None:
    found = settings(counts_of(launcher, sharding(reshard_after_forward=False)))
    of_blocks = (3.0, "fully_shard(block, mp_policy=policy, **options)")
    unit = "fully_shard of Linear"
    assert found == {
        "fully_shard of Sequential": (1.0, "return fully_shard(model, ignored_params=ignored)"),
        unit: of_blocks,
        f"{unit}: reshard_after_forward=False": of_blocks,
        f"{unit}: reduce_dtype=bfloat16": of_blocks,
    }
    whole = "fully_shard of Sequential"
    assert settings(counts_of(launcher, sharding(blocks=False))).keys() == {whole, f"{whole}: ignored_params=2"}
