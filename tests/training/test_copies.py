"""Counted steps of two ranks: what their copies of a model have in common, and the lines that cause what is found.

One launch counts the steps of all functions.
"""

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
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from pytest_ddpperf.instruments.torch_internals import SEED
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.alike import Alike
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.ranks import merged
from pytest_ddpperf.records.sites import SETTINGS, CallSite
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training.jobs import LaunchJob, PrepareJob
from pytest_ddpperf.training.preparing import prepare_launch
from tests.counted import count_launch
from tests.factories import SHARDS_ON_CPU

Wrap = Callable[[nn.Sequential], Any]


def training(
    *, shared_out: bool = True, last: bool = True, seed: int = 1, mesh: str = ""
) -> Callable[[Any], Callable[[], None]]:
    """Steps of two micro-batches, of which the last or the first synchronises."""

    def build(ctx: Any) -> Callable[[], None]:
        kept = [init_device_mesh("cpu", (2,), mesh_dim_names=(mesh,))] if mesh else []
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
                assert len(kept) == bool(mesh)  # the step keeps the mesh alive
                with nullcontext() if synchronises else model.no_sync():
                    model(next(batches)[0]).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def wrapping(*, hook: bool = False, **options: Any) -> Wrap:
    def wrap(model: nn.Module) -> Any:
        wrapped = DistributedDataParallel(model, **options)
        if hook:
            wrapped.register_comm_hook(None, fp16_compress_hook)
        return wrapped

    return wrap


def sharding(*, blocks: bool = True, shape: tuple[int, ...] = (2,), **options: Any) -> Wrap:
    """Shards each block, or all but the first block together, over a mesh of this shape."""

    def wrap(model: nn.Sequential) -> Any:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
        for block in model.children() if blocks else ():
            fully_shard(block, mp_policy=policy, **options)
        if blocks:
            wrapped: Any = model[0]
            wrapped.set_modules_to_forward_prefetch([model[1]])
        ignored = set[nn.Parameter]() if blocks else set(model[0].parameters())
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        return fully_shard(model, mesh=mesh, ignored_params=ignored)

    return wrap


def wrapped_by(wrap: Wrap) -> Callable[[Any], Callable[[], None]]:
    def build(_ctx: Any) -> Callable[[], None]:
        model = wrap(nn.Sequential(*(nn.Linear(16, 16) for _ in range(3))))

        def step() -> None:
            model(torch.ones(4, 16)).sum().backward()
            model.zero_grad()

        return step

    return build


def text_of(site: CallSite) -> str:
    """The text of a site's line, in this file."""
    return linecache.getline(__file__, site.line).strip()


def processes_and_workers(_ctx: Any) -> Callable[[], None]:
    layer, data = nn.Linear(4, 2), TensorDataset(torch.ones(64, 4))

    def forever() -> Any:
        while True:
            yield from DataLoader(data, 2, num_workers=1)

    batches = forever()

    def step() -> None:
        layer(next(batches)[0]).sum().backward()
        subprocess.run(["true"], check=True)

    return step


def leaving_objects(_ctx: Any) -> Callable[[], None]:
    layer, kept = nn.Linear(4, 2), list[object]()

    def step() -> None:
        layer(torch.ones(3, 4)).sum().backward()
        kept.extend({number} for number in range(10))

    return step


def recompiling(_ctx: Any) -> Callable[[], None]:
    """The steps of the warm-up and the one after it have batches of 4, 5 and 6 samples."""
    layer, sizes = nn.Linear(4, 2), iter([4, 5, 6])

    @torch.compile(backend="eager", dynamic=False)
    def loss_of(batch: torch.Tensor) -> Any:
        return layer(batch).sum()

    return lambda: loss_of(torch.ones(next(sizes, 4), 4)).backward()


def evaluating_at_times(ctx: Any) -> Callable[[], None]:
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


def adversarial(ctx: Any) -> Callable[[], None]:
    """Ranks draw the same noise, but the critic also gets samples of each rank's own, joined with what noise made."""
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 4), DistributedDataParallel(nn.Linear(4, 1))
    real = torch.full((2, 4), float(ctx.rank))

    def step() -> None:
        critic(torch.cat((real, generator(torch.randn(2, 4))))).sum().backward()

    return step


def in_two_parts(ctx: Any) -> Callable[[], None]:
    """The same batch on all ranks, and two modules that are called one after the other, with dropout between them."""
    torch.manual_seed(ctx.rank)
    body, head = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5)), DistributedDataParallel(nn.Linear(64, 1))

    def step() -> None:
        head(body(torch.ones(2, 4))).sum().backward()

    return step


OPTIONS = {"find_unused_parameters": True, "bucket_cap_mb": 5, "gradient_as_bucket_view": False}
STEPS = {
    "shared out": training(),
    "not shared out": training(shared_out=False),
    "not shared out, our seed": training(shared_out=False, seed=SEED),  # without our seed they would draw others
    "not shared out, in a mesh": training(shared_out=False, mesh="world"),
    "first synchronised": training(last=False),
    "processes and workers": processes_and_workers,
    "evaluating": evaluating_at_times,
    "adversarial": adversarial,
    "in two parts": in_two_parts,
    "DDP": wrapped_by(wrapping(hook=True, **OPTIONS)),
}
if SHARDS_ON_CPU:
    STEPS["blocks"] = wrapped_by(sharding(reshard_after_forward=False))
    STEPS["whole"] = wrapped_by(sharding(blocks=False, shape=(2, 1)))
STEPS["leaving objects"] = leaving_objects  # from then on memory is traced
Found = dict[str, list[Counts]]


def count_all(ctx: RankContext) -> dict[str, Counts]:
    found = {}
    for name, build in STEPS.items():
        training = LaunchJob(build, None, Settings(), Plan(warmup=2, steps=2))
        job = PrepareJob(training, counted=True, copied=name != "processes and workers")
        counts = prepare_launch(ctx, job).counts
        assert counts is not None
        found[name] = counts
    return found


@pytest.fixture(scope="module")
def found(launcher: Launcher) -> Found:
    """The counts of each function, on each rank."""
    ranks = launcher.run(count_all, world_size=2, backend="gloo", device="cpu", timeout=60).values
    return {name: [rank[name] for rank in ranks] for name in STEPS}


@pytest.mark.parametrize(
    ("name", "told", "by"),
    [
        ("shared out", Alike(samples=(), batches=(), apart=()), "DistributedSampler"),
        ("not shared out", Alike(samples=(0, 1), batches=(0, 1), apart=()), "DataLoader"),
        ("not shared out, our seed", Alike(batches=(0, 1), apart=()), "DataLoader"),
        ("not shared out, in a mesh", Alike(samples=(0, 1), batches=(0, 1), apart=()), "DataLoader"),
        ("first synchronised", Alike(samples=(), batches=(), apart=(0, 1)), "DistributedSampler"),
    ],
)
def test_replicas_of_a_model_are_compared(found: Found, name: str, told: Alike, by: str) -> None:
    counts = merged(found[name])
    alike = counts.alike
    assert alike is not None
    assert (alike.samples, alike.batches, alike.apart) == (told.samples, told.batches, told.apart)
    assert alike.sources == ((2, 2) if told.samples == told.apart == () else (1, 1))
    assert alike.wrapped
    (site,) = alike.sites["drawn"]
    assert (site.part, f"{by}(" in text_of(site)) == (by, True)
    deferring = [text_of(site) for site in alike.sites.get("deferred", ())]
    assert ["model.no_sync()" in text for text in deferring] == [True] * bool(told.apart)
    wrapped = "model = DistributedDataParallel(nn.Linear(4, 2))"
    assert [text_of(site) for site in counts.sites["ddp_buckets"]] == [wrapped]
    (site,) = (site for site in counts.sites["peak_tensor_bytes"] if site.part == "buckets")
    assert (text_of(site), site.part, site.value) == (wrapped, "buckets", 40.0)  # 4 x 2 weights and 2 biases


def test_processes_of_a_step_and_workers_of_an_epoch_are_counted(found: Found) -> None:
    for counts in found["processes and workers"]:
        assert counts.details["processes_started"] == {"subprocess.Popen.__init__": 1.0}
        assert counts.totals["workers_restarted"] == 1
        (site,) = counts.sites["workers_restarted"]
        assert "DataLoader(data, 2, num_workers=1)" in text_of(site)
        assert counts.copy is None


def test_a_type_of_objects_that_each_step_leaves_behind_has_the_line_that_makes_it(found: Found) -> None:
    for counts in found["leaving objects"]:
        assert counts.details["python_objects"]["set"] == 10.0
        (site,) = counts.sites["python_objects"]
        assert text_of(site) == "kept.extend({number} for number in range(10))"


def test_a_recompilation_has_its_function_and_the_guard_that_failed(launcher: Launcher) -> None:
    """On a rank: from then on memory is traced, which would slow down all other tests."""
    job = LaunchJob(recompiling, None, Settings(), Plan(warmup=3, steps=1))
    on: Any = {"world_size": 1, "backend": "gloo", "device": "cpu"}
    (counts,) = launcher.run(partial(count_launch, steps=1), job, **on).values
    assert counts.details["recompiles"] == {
        "loss_of: tensor 'batch' size mismatch at index 0. expected 4, actual 5": 1.0,
        "loss_of: tensor 'batch' size mismatch at index 0. expected 5, actual 6": 1.0,
    }
    assert [(site.function, site.value) for site in counts.sites["recompiles"]] == [("loss_of", 1.0)] * 2


def test_ranks_that_evaluate_on_the_same_samples_now_and_then_do_not_train_on_them(found: Found) -> None:
    alike = merged(found["evaluating"]).alike
    assert alike is not None
    assert (alike.samples, alike.loaded) == (None, False)


def test_data_that_enters_a_model_together_with_activations_counts_as_different(found: Found) -> None:
    alike = merged(found["adversarial"]).alike
    assert alike is not None
    assert alike.batches == ()


def test_activations_that_differ_do_not_hide_that_all_ranks_train_on_the_same_batch(found: Found) -> None:
    alike = merged(found["in two parts"]).alike
    assert alike is not None
    assert alike.batches == (0, 1)


def settings(counts: Counts) -> dict[str, tuple[float, str]]:
    """Their numbers and the texts of their lines, by name."""
    return {site.part: (site.value, text_of(site)) for site in counts.sites[SETTINGS]}


def test_settings_of_ddp_are_those_that_are_no_defaults(found: Found) -> None:
    told = settings(merged(found["DDP"]))
    names = {"comm_hook=fp16_compress_hook", "find_unused_parameters=True", "bucket_cap_mb=5"}
    ddp = "DistributedDataParallel"
    assert told.keys() == {ddp, *(f"{ddp}: {name}" for name in names)}
    assert set(told.values()) == {(1.0, "wrapped = DistributedDataParallel(model, **options)")}


@pytest.mark.skipif(not SHARDS_ON_CPU, reason="this torch does not shard on the CPU")
def test_units_of_fully_shard_are_counted_by_class_with_their_settings(found: Found) -> None:
    of_blocks = (3.0, "fully_shard(block, mp_policy=policy, **options)")
    unit, whole = "fully_shard of Linear", "fully_shard of Sequential"
    assert settings(merged(found["blocks"])) == {
        whole: (1.0, "return fully_shard(model, mesh=mesh, ignored_params=ignored)"),
        unit: of_blocks,
        f"{unit}: reshard_after_forward=False": of_blocks,
        f"{unit}: reduce_dtype=bfloat16": of_blocks,
        f"{unit}: forward_prefetch=1": (1.0, of_blocks[1]),
    }
    assert settings(merged(found["whole"])).keys() == {whole, f"{whole}: ignored_params=2", f"{whole}: mesh=(2, 1)"}
    for name in ("blocks", "whole"):
        assert merged(found[name]).details["batch_rows"] == {"batches of 4 x 16": 4.0}
