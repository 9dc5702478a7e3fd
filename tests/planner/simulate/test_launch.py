"""A simulated rank counts what a real one counts, in any strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn

from pytest_ddpperf.errors import RankFailed
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.measurement import SIMULATED, Plan
from pytest_ddpperf.records.ranks import merged
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.table import STRATEGIES, resolve
from pytest_ddpperf.training.jobs import SIMULATE_LAUNCH, LaunchJob, PrepareJob, RankPrepared
from pytest_ddpperf.training.preparing import prepare_launch
from pytest_ddpperf.training.subject import Workload

OPTIONS = (
    "ddp[gradient_as_bucket_view=true]",
    "ddp[comm_hook=powersgd]",
    "fsdp2[replicas=2]",
    "fsdp2[param_dtype=bf16]",
)
EVERYDAY = ("ddp",)  # another test has shards
WORDS, WIDTH = 50, 16

Simulate: TypeAlias = "Callable[..., RankPrepared]"  # job, world size, rank


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.narrow(torch.relu(self.wide(self.norm(inputs))))
        return inputs + hidden


class Transformer(nn.Module):
    """Small, and with a buffer, parameters that no number of ranks divides, and mostly a frozen one."""

    def __init__(self, *, frozen: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.register_buffer("scale", torch.ones(WIDTH))
        self.shift = nn.Parameter(torch.zeros(WIDTH), requires_grad=not frozen)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS + 1)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.words(words) * self.scale + self.shift
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.head(hidden)
        return logits


def batch() -> tuple[Tensor, Tensor]:
    return torch.randint(WORDS, (4, 8)), torch.randint(WORDS, (4, 8))


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


WORKLOAD = Workload(model=Transformer, batch=batch, loss=loss, optimizer=adamw, samples_per_step=4)
TRAINED = replace(WORKLOAD, model=lambda: Transformer(frozen=False))  # torch's tracker hooks into each gradient


def job(strategy: str | None, subject: Any = WORKLOAD, **settings: Any) -> LaunchJob:
    resolved = None if strategy is None else resolve(strategy)
    return LaunchJob(subject, resolved, replace(Settings(), **settings), Plan(warmup=3, steps=1))


def of_one_rank(launcher: Launcher, function: Any, *args: object) -> Any:
    """What the only rank of a launch gives, which makes a group of its own."""
    group: Any = {"world_size": 1, "backend": "gloo", "device": "cpu", "own_group": True}
    return launcher.run(function, *args, timeout=120, **group).values[0]


@pytest.fixture
def simulated(launcher: Launcher) -> Simulate:
    """What a simulated rank finds out."""

    def simulate(one: LaunchJob, world_size: int, rank: int = 0) -> Any:
        return of_one_rank(launcher, SIMULATE_LAUNCH, PrepareJob(one, counted=True), rank, world_size)

    return simulate


def of_gloo(counts: Counts) -> Counts:
    """The same without what differs on gloo: PowerSGD's one bucket, and a copy at the end of each reduce-scatter."""
    settings = tuple(site for site in counts.sites["settings"] if "bucket_cap_mb" not in site.part)
    if "comm_hook=powerSGD_hook" in str(settings):
        counts = replace(counts, sites={**counts.sites, "settings": settings})
    scatters = counts.details["collective_calls"].get("reduce_scatter")
    if scatters is None:
        return counts
    assert counts.details["operators"]["aten.copy_"] == scatters
    totals, details, by_rank = dict(counts.totals), dict(counts.details), dict(counts.by_rank)
    for metric in ("operators", "operator_bytes"):
        parts = dict(counts.details[metric])
        copied = parts.pop("aten.copy_")
        totals[metric] -= copied
        details[metric] = parts
        if metric in by_rank:
            by_rank[metric] = tuple(value - copied for value in by_rank[metric])
    sites = {
        metric: tuple(site for site in found if site.part != "aten.copy_") for metric, found in counts.sites.items()
    }
    return replace(counts, totals=totals, details=details, by_rank=by_rank, sites=sites)


def without_bytes_of_copies(counts: Counts) -> Counts:
    """The same, without bytes of gloo's copies, which depend on what is scattered, and the number of steps.

    A simulated launch does not look for the lines that make DDP's wrappers, which buckets come from, nor at the
    garbage collector and the objects that steps leave behind.
    """
    sites = {
        metric: found for metric, found in counts.sites.items() if metric not in {"ddp_buckets", "peak_tensor_bytes"}
    }
    moved = {name: nbytes for name, nbytes in counts.details["operator_bytes"].items() if name != "aten.copy_"}
    totals = {**counts.totals, "operator_bytes": sum(moved.values())}
    by_rank = {metric: values for metric, values in counts.by_rank.items() if metric != "operator_bytes"}
    details = {**counts.details, "operator_bytes": moved}
    unstable = dict(counts.unstable)
    for each in (totals, details, unstable, by_rank):
        for metric in ("collector_paused", "python_objects", "graphs_kept"):
            each.pop(metric, None)
    return replace(counts, totals=totals, details=details, unstable=unstable, by_rank=by_rank, sites=sites, steps=0)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "strategy",
    [each if each in EVERYDAY else pytest.param(each, marks=pytest.mark.slow) for each in [*STRATEGIES, *OPTIONS]],
)
def test_simulated_and_real_counts_are_equal(
    launcher: Launcher, simulated: Simulate, strategy: str, ranks: int
) -> None:
    ranks = 1 if strategy == "single" else ranks
    found = [simulated(job(strategy), ranks, rank) for rank in range(ranks)]
    real = PrepareJob(replace(job(strategy), plan=Plan(warmup=3, steps=0)), counted=True)
    ours = launcher.run(prepare_launch, real, world_size=ranks, backend="gloo", device="cpu", timeout=120).values
    counted, expected = (merged([each.counts for each in side if each.counts]) for side in (found, ours))
    assert without_bytes_of_copies(counted) == without_bytes_of_copies(of_gloo(expected))
    assert expected.totals["flops"] > 0
    with_values = {remark.code for each in found for remark in each.remarks} == {"simulated_with_values"}
    assert with_values == strategy.startswith(("ddp", "zero1"))


def peaks(_ctx: RankContext, one: LaunchJob, world_size: int) -> dict[str, int]:
    """Bytes at the peak of a step of simulated rank 0, as torch's own tracker has them."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed._tools.mem_tracker import MemTracker

    from pytest_ddpperf.planner.simulate.group import rank_of, without_values
    from pytest_ddpperf.training.step import build_step

    ctx = RankContext(0, world_size, 0, world_size, torch.device("cpu"), SIMULATED, None)
    with rank_of(0, world_size), without_values():
        step = build_step(ctx, one)
        assert step.data is not None
        (module,), (optimizer,) = step.modules, step.optimizers
        sharded = one.strategy is not None and one.strategy.name == "fsdp2"
        tracker: Any = FSDPMemTracker(module, optimizer) if sharded else MemTracker()
        tracker.track_external(*([] if sharded else [module, optimizer]), *step.data())
        with tracker:
            for _ in range(3):
                tracker.reset_mod_stats()
                step.run()
        (found,) = tracker.get_tracker_snapshot("peak").values()
        return {str(kind).rpartition(".")[2]: nbytes for kind, nbytes in found.items()}


OURS = {  # the categories of torch's trackers, by ours; the tensors of a batch are activations to us
    "parameters": ("PARAM", "SHARDED_PARAM", "UNSHARDED_PARAM"),
    "gradients": ("GRAD", "SHARDED_GRAD", "UNSHARDED_GRAD"),
    "activations": ("ACT", "INP", "OTH"),
    "optimizer_state": ("OPT",),
    "buffers": ("BUFFER",),
    "temporaries": ("TEMP", "ALL_GATHER", "REDUCE_SCATTER"),
}


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        ("single", 1),
        pytest.param("flat", 4, marks=pytest.mark.slow),
        pytest.param("fsdp2", 1024, marks=pytest.mark.slow),
    ],
)
def test_the_simulated_peak_agrees_with_torchs_memory_tracker(
    launcher: Launcher, simulated: Simulate, strategy: str, ranks: int
) -> None:
    """By category, but for flat: its vector of gradients looks like an activation to that tracker."""
    one = job(strategy, TRAINED)
    counts = simulated(one, ranks).counts
    theirs = of_one_rank(launcher, peaks, one, ranks)
    assert counts is not None
    assert counts.totals["peak_tensor_bytes"] == pytest.approx(theirs["Total"], rel=0.02)
    if strategy != "flat":
        found = {ours: sum(theirs.get(name, 0) for name in names) for ours, names in OURS.items()}
        peak = counts.details["peak_tensor_bytes"]
        assert {name: peak.get(name, 0) for name in found} == pytest.approx(found, rel=0.02)


SHARE = {  # elements of words, head and its bias, shift, and three layers; a row of each parameter of the many ranks
    4: 13 * WIDTH + 13 * WIDTH + 13 + 4 + 3 * (4 + 4 + 16 * WIDTH + 16 + 4 * 4 * WIDTH + 4),
    1024: WIDTH + WIDTH + 1 + 1 + 3 * (1 + 1 + WIDTH + 1 + 4 * WIDTH + 1),
}


@pytest.mark.parametrize(
    ("ranks", "rank"), [*(pytest.param(*each, marks=pytest.mark.slow) for each in ((4, 3), (1024, 0))), (1024, 1023)]
)
def test_a_rank_holds_its_share_of_the_rows_rounded_up(simulated: Simulate, ranks: int, rank: int) -> None:
    """Whatever the rank, for FSDP2 fills shards up."""
    counts = simulated(job("fsdp2"), ranks, rank).counts
    assert counts is not None
    assert counts.details["model_state_bytes"]["parameters"] == 4 * SHARE[ranks]


def own_step(ctx: Any) -> Any:
    """Shards by hand; tells the loss as a number, where it is asked to."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = Transformer()
    mesh = init_device_mesh("cpu", (ctx.world_size,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer, (words, targets) = adamw(model.parameters()), batch()

    def step() -> Tensor:
        optimizer.zero_grad()
        value = loss(model(words), targets)
        value.backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()
        return value.detach()

    return step


def telling_step(ctx: Any) -> Any:
    step = own_step(ctx)
    return lambda: step().item()


def test_a_custom_step_is_simulated_with_values_only_if_it_reads_them(simulated: Simulate) -> None:
    silent, telling = (simulated(job(None, build), 64, 63) for build in (own_step, telling_step))
    assert silent.remarks == ()
    (remark,) = telling.remarks
    assert remark.code == "simulated_with_values"
    assert "DataDependentOutputException" in remark.facts["reason"]
    assert silent.counts is not None
    assert telling.counts is not None
    metrics = ("collective_calls", "collective_bytes", "flops", "model_state_bytes", "peak_tensor_bytes")
    assert {m: silent.counts.details[m] for m in metrics} == {m: telling.counts.details[m] for m in metrics}
    assert silent.counts.details["collective_calls"] == {"all_gather": 7, "reduce_scatter": 4}


def test_the_error_of_a_step_is_its_own(simulated: Simulate) -> None:
    def wrong(_ctx: Any) -> Any:
        return lambda: torch.ones(2) @ torch.ones(3)

    with pytest.raises(RankFailed, match=r"inconsistent tensor size|size mismatch|got \[2\] and \[3\]"):
        simulated(job(None, wrong), 8)


@pytest.mark.parametrize(("rows", "ranks"), [(8, 4), (5, 4), (3, 8)])
def test_the_chunks_of_a_parameter_are_torchs(rows: int, ranks: int) -> None:
    from torch.distributed.fsdp._fully_shard._fsdp_common import _chunk_with_empty

    from pytest_ddpperf.planner.simulate.group import Chunks

    tensor = torch.arange(rows * 2).reshape(rows, 2)
    ours = Chunks(tensor, ranks, 0)
    assert [ours[rank].tolist() for rank in range(ranks)] == [
        chunk.tolist() for chunk in _chunk_with_empty(tensor, ranks, 0)
    ]
