"""Two ranks that train copies of one model, and what they have in common after counted steps."""

from __future__ import annotations

import linecache
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from pytest_ddpperf.instruments.torch_internals import SEED
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.counts import Alike
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.ranks import merged
from pytest_ddpperf.records.sites import CallSite
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training.jobs import LaunchJob, PrepareJob
from pytest_ddpperf.training.preparing import prepare_launch
from tests.counted import count_launch


def training(*, shared_out: bool = True, last: bool = True, seed: int = 1) -> Callable[[Any], Callable[[], None]]:
    """Steps of two micro-batches, of which the last or the first synchronises."""

    def build(ctx: Any) -> Callable[[], None]:
        torch.manual_seed(seed)
        model = DistributedDataParallel(nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = TensorDataset(torch.arange(64.0).reshape(16, 4) / 64)
        sampler: Any = DistributedSampler(data, ctx.world_size, ctx.rank) if shared_out else None
        loader = DataLoader(data, 2, sampler=sampler, shuffle=None if shared_out else True)

        def forever() -> Any:
            while True:
                yield from loader

        batches = forever()

        def step() -> None:
            for synchronises in (not last, last):
                with nullcontext() if synchronises else model.no_sync():
                    model(next(batches)[0]).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def text_of(site: CallSite) -> str:
    """The text of a site's line, in this file."""
    return linecache.getline(__file__, site.line).strip()


@pytest.mark.parametrize(
    ("build", "told", "by"),
    [
        (training(), Alike(samples=(), batches=(), apart=()), "DistributedSampler"),
        (training(shared_out=False), Alike(samples=(0, 1), batches=(0, 1), apart=()), "DataLoader"),
        # Without our seed they would draw others.
        (training(shared_out=False, seed=SEED), Alike(batches=(0, 1), apart=()), "DataLoader"),
        (training(last=False), Alike(samples=(), batches=(), apart=(0, 1)), "DistributedSampler"),
    ],
)
def test_copies_are_compared(launcher: Launcher, build: Any, told: Alike, by: str) -> None:
    job = PrepareJob(LaunchJob(build, None, Settings(), Plan(warmup=2, steps=2)), counted=True)
    ranks = launcher.run(prepare_launch, job, world_size=2, backend="gloo", device="cpu").values
    counts = merged([rank.counts for rank in ranks if rank.counts is not None])
    found = counts.alike
    assert found is not None
    assert (found.samples, found.batches, found.apart) == (told.samples, told.batches, told.apart)
    assert found.wrapped
    (site,) = found.sites["drawn"]
    assert (site.part, f"{by}(" in text_of(site)) == (by, True)
    deferring = [text_of(site) for site in found.sites.get("deferred", ())]
    assert ["model.no_sync()" in text for text in deferring] == [True] * bool(told.apart)
    wrapped = "model = DistributedDataParallel(nn.Linear(4, 2))"
    assert [text_of(site) for site in counts.sites["ddp_buckets"]] == [wrapped]
    (site,) = (site for site in counts.sites["peak_tensor_bytes"] if site.part == "buckets")
    assert (text_of(site), site.part, site.value) == (wrapped, "buckets", 40.0)  # 4 x 2 weights and 2 biases


def test_processes_of_a_step_and_workers_of_an_epoch_are_counted(launcher: Launcher) -> None:
    def build(_ctx: Any) -> Callable[[], None]:
        layer, data = nn.Linear(4, 2), TensorDataset(torch.ones(64, 4))

        def forever() -> Any:
            while True:
                yield from DataLoader(data, 2, num_workers=1)

        batches = forever()

        def step() -> None:
            layer(next(batches)[0]).sum().backward()
            subprocess.run(["true"], check=True)

        return step

    job = PrepareJob(LaunchJob(build, None, Settings(), Plan(warmup=2, steps=2)), counted=True, copied=False)
    ranks = launcher.run(prepare_launch, job, world_size=2, backend="gloo", device="cpu").values
    for rank in ranks:
        assert rank.counts is not None
        assert rank.counts.details["processes_started"] == {"subprocess.Popen.__init__": 1.0}
        assert rank.counts.totals["workers_restarted"] == 1
        (site,) = rank.counts.sites["workers_restarted"]
        assert "DataLoader(data, 2, num_workers=1)" in text_of(site)
        assert rank.counts.copy is None


def test_a_type_of_objects_that_each_step_leaves_behind_has_the_line_that_makes_it(launcher: Launcher) -> None:
    def build(_ctx: Any) -> Callable[[], None]:
        layer, kept = nn.Linear(4, 2), list[object]()

        def step() -> None:
            layer(torch.ones(3, 4)).sum().backward()
            kept.extend({number} for number in range(10))

        return step

    job = PrepareJob(LaunchJob(build, None, Settings(), Plan(warmup=2, steps=2)), counted=True, copied=False)
    (rank,) = launcher.run(prepare_launch, job, world_size=1, backend="gloo", device="cpu").values
    assert rank.counts is not None
    assert rank.counts.details["python_objects"]["set"] == 10.0
    (site,) = rank.counts.sites["python_objects"]
    assert text_of(site) == "kept.extend({number} for number in range(10))"


def test_loaders_of_earlier_epochs_that_stay_have_the_line_that_makes_them(launcher: Launcher) -> None:
    """An epoch has two steps."""

    def build(_ctx: Any) -> Callable[[], None]:
        layer, data, kept = nn.Linear(4, 2), TensorDataset(torch.ones(4, 4)), list[object]()

        def forever() -> Any:
            while True:
                kept.append(loader := DataLoader(data, 2))
                yield from loader

        batches = forever()
        return lambda: layer(next(batches)[0]).sum().backward()

    job = PrepareJob(LaunchJob(build, None, Settings(), Plan(warmup=2, steps=2)), counted=True, copied=False)
    (rank,) = launcher.run(prepare_launch, job, world_size=1, backend="gloo", device="cpu").values
    assert rank.counts is not None
    assert rank.counts.details["loaders_kept"] == {"DataLoaders": 1.0}
    assert [text_of(site) for site in rank.counts.sites["loaders_kept"]] == [
        "kept.append(loader := DataLoader(data, 2))"
    ]


def test_a_recompilation_has_its_function_and_the_guard_that_failed(launcher: Launcher) -> None:
    """The two steps of the warm-up and the one after it have batches of 4, 5 and 6 samples."""

    def build(_ctx: Any) -> Callable[[], None]:
        layer, sizes = nn.Linear(4, 2), iter([4, 5, 6])

        @torch.compile(backend="eager", dynamic=False)
        def loss_of(batch: torch.Tensor) -> Any:
            return layer(batch).sum()

        return lambda: loss_of(torch.ones(next(sizes, 4), 4)).backward()

    job = LaunchJob(build, None, Settings(), Plan(warmup=2, steps=1))
    on: Any = {"world_size": 1, "backend": "gloo", "device": "cpu"}
    (counts,) = launcher.run(partial(count_launch, steps=1), job, **on).values
    assert counts.details["recompiles"] == {
        "loss_of: tensor 'batch' size mismatch at index 0. expected 4, actual 5": 1.0,
        "loss_of: tensor 'batch' size mismatch at index 0. expected 5, actual 6": 1.0,
    }
    assert [(site.function, site.value) for site in counts.sites["recompiles"]] == [("loss_of", 1.0)] * 2


def test_ranks_that_evaluate_on_the_same_samples_now_and_then_do_not_train_on_them(launcher: Launcher) -> None:
    def build(ctx: Any) -> Callable[[], None]:
        torch.manual_seed(ctx.rank)
        model = DistributedDataParallel(nn.Linear(4, 2))
        evaluation = DataLoader(TensorDataset(torch.randn(64, 4)), 2)  # 32 batches
        made = iter(range(1000))

        def step() -> None:
            model(torch.randn(2, 4)).sum().backward()
            if next(made) % 5 == 0:
                for (batch,) in evaluation:
                    model.module(batch).sum().item()

        return step

    job = PrepareJob(LaunchJob(build, None, Settings(), Plan(warmup=2, steps=2)), counted=True)
    ranks = launcher.run(prepare_launch, job, world_size=2, backend="gloo", device="cpu").values
    alike = merged([rank.counts for rank in ranks if rank.counts is not None]).alike
    assert alike is not None
    assert (alike.samples, alike.loaded) == (None, False)
