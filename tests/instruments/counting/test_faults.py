"""Small faults in a training step of two ranks: counts alone find each of them and say what it is.

Every variant is counted on the same two ranks, one after another; its counts are then judged, as those of a run are,
against the counts of another variant as baseline.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from pytest_ddpperf.instruments.counting.counting import Countable
from pytest_ddpperf.judge.benchmark import compare
from pytest_ddpperf.judge.decision import DecisionContext
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.metrics.table import counted_series
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.ranks import merged
from pytest_ddpperf.records.results import Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.count_changes import difference_text
from pytest_ddpperf.reports.findings import finding_text
from pytest_ddpperf.strategies.table import parallelise
from tests.counted import count_step
from tests.factories import make_baseline_record, make_environment, make_measurement, runnable

RANKS = 2
FEW = 6  # steps are looked at: none has a period of more than two
WIDTH = 16
SEQUENCE = 8


class Layer(nn.Module):
    """Attention between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.split = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        queries, keys, values = self.split(inputs).unsqueeze(1).chunk(3, dim=-1)
        mixed = functional.scaled_dot_product_attention(queries, keys, values)
        hidden: Tensor = self.out(mixed.squeeze(1))
        return inputs + hidden


class Wide(nn.Module):
    """Layers of one MiB each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(3)))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs[:, 0].repeat(1, 512 // WIDTH))
        return outputs


def layers() -> nn.Module:
    return nn.Sequential(Layer(), Layer())


@dataclass(frozen=True)
class Variant:
    """A training step, sound unless told otherwise."""

    strategy: str = "ddp"
    model: Callable[[], nn.Module] = layers
    micro_steps: int = 1
    no_sync: bool = True
    updates: int = 1
    retain_graph: bool = False
    evaluated: bool = False
    no_grad: bool = True
    also: Callable[[Tensor, list[Any]], object] | None = None
    batch_seed: int = 0


def reduce_loss(loss: Tensor, _kept: list[Any]) -> None:
    dist.all_reduce(loss.detach())


def reduce_every_second_loss(loss: Tensor, kept: list[Any]) -> None:
    kept.append(None)
    if len(kept) % 2:
        reduce_loss(loss, kept)


def keep_graph(loss: Tensor, kept: list[Any]) -> None:
    kept.append(loss)


def keep_value(loss: Tensor, kept: list[Any]) -> None:
    kept.append(loss.detach().expand(512).clone())


def read(loss: Tensor, _kept: list[Any]) -> None:
    loss.item()


def read_on_the_first_rank(loss: Tensor, _kept: list[Any]) -> None:
    if dist.get_rank() == 0:
        loss.item()


VARIANTS = {
    "sound": Variant(),
    "extra all-reduce": Variant(also=reduce_loss),
    "extra all-reduce in every second step": Variant(also=reduce_every_second_loss),
    "accumulating": Variant(micro_steps=2),
    "lost no_sync": Variant(micro_steps=2, no_sync=False),
    "bf16": Variant(strategy="ddp[comm_hook=bf16]"),
    "large buckets": Variant(strategy="ddp[bucket_cap_mb=25]", model=Wide),
    "small buckets": Variant(strategy="ddp[bucket_cap_mb=1]", model=Wide),
    "unused parameters looked for": Variant(strategy="ddp[find_unused_parameters=true]"),
    "two updates": Variant(updates=2),
    "retained graph": Variant(also=keep_graph, retain_graph=True),
    "kept tensor": Variant(also=keep_value),
    "evaluated": Variant(evaluated=True),
    "evaluated with gradients": Variant(evaluated=True, no_grad=False),
    "sharded": Variant(strategy="fsdp2[reshard_after_forward=false]"),
    "gathered twice": Variant(strategy="fsdp2[reshard_after_forward=true]"),
    "item": Variant(also=read),
    "item on the first rank": Variant(also=read_on_the_first_rank),
    "other batch": Variant(batch_seed=1),
}


def step_of(ctx: RankContext, variant: Variant) -> Callable[[], None]:
    model = variant.model()
    blocks = list(model) if isinstance(model, nn.Sequential) else []
    parallel = parallelise(variant.strategy, model, ctx, blocks)
    optimizer = torch.optim.SGD(parallel.module.parameters(), lr=1e-3, momentum=0.9)
    inputs = torch.randn(4, SEQUENCE, WIDTH, generator=torch.Generator().manual_seed(variant.batch_seed))
    many = inputs.repeat(8, 1, 1)
    kept: list[Any] = []

    def run() -> None:
        optimizer.zero_grad()
        for left in reversed(range(variant.micro_steps)):
            quiet = parallel.no_sync if left and variant.no_sync else None
            with nullcontext() if quiet is None else quiet():
                loss = parallel.module(inputs).square().mean()
                loss.backward(retain_graph=variant.retain_graph)
        if variant.also is not None:
            variant.also(loss, kept)
        for _ in range(variant.updates):
            optimizer.step()
        if variant.evaluated:
            with torch.set_grad_enabled(not variant.no_grad):
                model(many).square().mean()

    return run


def count_variants(ctx: RankContext, variants: dict[str, Variant]) -> dict[str, Counts]:
    gc.freeze()  # collections, of which each counted step has one, are fast
    return {
        name: count_step(step_of(ctx, variant), Countable(device=ctx.device), steps=FEW)
        for name, variant in variants.items()
        if runnable([variant.strategy])
    }


@pytest.fixture(scope="module")
def counted(launcher: Launcher) -> dict[str, Counts]:
    """The counts of all ranks by variant."""
    ranks = launcher.run(count_variants, VARIANTS, world_size=RANKS, backend="gloo", device="cpu", timeout=120).values
    return {name: merged([rank[name] for rank in ranks]) for name in ranks[0]}


ENVIRONMENT = make_environment(cpu_model="some cpu", cores=2, world_size=RANKS)


def judged(then: Counts, now: Counts) -> Result:
    """The judgement on counts against a baseline of others."""
    plan = Plan(warmup=5, steps=16)
    base = make_baseline_record(plan=plan, environment=ENVIRONMENT, series=counted_series(then), counts=then)
    run = make_measurement(plan=plan, environment=ENVIRONMENT, series=counted_series(now), counts=now)
    found = StoredBaseline(record=base, origin="the baseline", counted=base)
    return compare("test_training.py::test_step", run, found, DecisionContext(tolerance=0.03, alpha=0.01))


def at(source: str, function: str) -> str:
    """The words for the line of this file that begins with a text."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = next(i for i, line in enumerate(lines, start=1) if line.strip().startswith(source))
    return f"tests/instruments/counting/test_faults.py:{number} in {function}"


BACKWARD = at("loss.backward(", "run") + ", under backward"
COMPRESSED = f"8.50 KiB new at {BACKWARD}, 4.25 KiB gone from pytest_ddpperf/strategies/ddp.py:"
REDUCED = at("dist.all_reduce(", "reduce_loss")
READ = at("loss.item(", "read")
KEPT = at("kept.append(loss.detach", "keep_value")
DDP = "DistributedDataParallel"

# Of the baseline, the faulty step and the count. Gradients of two layers, 1088 parameters each, are 8704 bytes.
FAULTS = {
    "sound, extra all-reduce, collective_calls": [f"all_reduce 1 -> 2 calls per step (+1): the new one at {REDUCED}"],
    "accumulating, lost no_sync, collective_calls": [f"all_reduce 1 -> 2 calls per step (+1): all at {BACKWARD}"],
    "bf16, sound, collective_bytes": [
        f"{DDP} has no comm_hook=_compress_to_bf16 any more",
        f"all_reduce 4.25 KiB -> 8.50 KiB per step (+4.25 KiB, +100 %), calls unchanged: {COMPRESSED}",
    ],
    "large buckets, small buckets, ddp_buckets": [
        f"{DDP} has bucket_cap_mb=1 now",
        "1 -> 3 buckets, 3.00 MiB -> 1.00 MiB + 1.00 MiB + 1.00 MiB",
    ],
    "sound, unused parameters looked for, collective_calls": [
        f"{DDP} has find_unused_parameters=True now",
        f"all_reduce 1 -> 2 calls per step (+1): all at {BACKWARD}",
    ],
    "sound, two updates, optimizer_steps": [f"SGD 1 -> 2 per step (+1): all at {at('optimizer.step()', 'run')}"],
    "item on the first rank, item, synchronisations": [
        f"rank 1 0 -> 1 waits for the device per step (+1): the new one at {READ}"
    ],
    "sound, kept tensor, retained_bytes": [
        f"kept_tensors 0 KiB -> 2.00 KiB per step (+2.00 KiB): 2.00 KiB new at {KEPT}"
    ],
    "sharded, gathered twice, collective_calls": [
        "fully_shard of Layer has no reshard_after_forward=False any more",
        f"all_gather 2 -> 4 calls per step (+2): 2 new ones at {BACKWARD}",
    ],
    "sound, item, synchronisations": [f"item 0 -> 1 waits for the device per step (+1): the new one at {READ}"],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(counted: dict[str, Counts], fault: str) -> None:
    then, now, metric = fault.split(", ")
    if not runnable([VARIANTS[now].strategy]):
        pytest.skip("fsdp2 on the CPU needs torch 2.7")
    result = judged(counted[then], counted[now])
    assert result.verdict is result[metric].verdict is Verdict.REGRESSED
    assert result[metric].gated
    told = difference_text(metric, counted[then], counted[now])
    assert finding_text(result[metric].note) == "; ".join(told)
    # The rest is for that file to say.
    assert [re.sub(r"(strategies/ddp.py:).*", r"\1", line) for line in told] == FAULTS[fault]
    assert metric not in {**counted[then].unstable, **counted[now].unstable}


def test_a_fault_of_every_second_step_is_found_and_named(counted: dict[str, Counts]) -> None:
    told = judged(counted["sound"], counted["extra all-reduce in every second step"])["collective_calls"]
    assert (told.verdict, told.gated) == (Verdict.REGRESSED, True)
    assert finding_text(told.note) == f"all_reduce 1 -> 2 calls in 1 of 2 steps (+1): the new one at {REDUCED}"


def test_a_retained_graph_shows_as_tensors_that_every_step_keeps(counted: dict[str, Counts]) -> None:
    """Of 32 rows: queries, keys and values, attention and its 32 logarithms, the sum of each layer; and the loss."""
    kept = 2 * (4 * 4 * SEQUENCE * (3 * WIDTH + WIDTH + WIDTH) + 4 * 4 * SEQUENCE) + 4
    retained = counted["retained graph"]
    assert retained.details["retained_bytes"] == {"kept_tensors": kept}
    assert "retained_bytes" not in retained.unstable
    assert counted["sound"].totals["retained_bytes"] == 0
    told = judged(counted["sound"], retained)["retained_bytes"]
    assert (told.verdict, told.gated) == (Verdict.REGRESSED, True)
    assert finding_text(told.note) == (
        "kept_tensors 0 KiB -> 20.3 KiB per step (+20.3 KiB): "  # 20740 bytes
        f"12.0 KiB new at {at('queries, keys', 'forward')}, "
        f"4.25 KiB new at {at('mixed = ', 'forward')}, "
        f"4.00 KiB new at {at('return inputs + hidden', 'forward')}, and 1 other line"
    )


def test_an_evaluation_in_each_step_shows_as_floating_point_operations(counted: dict[str, Counts]) -> None:
    """Eight forward passes: of 32 rows 49,152 FLOPs by 16 x 48, 16,384 by 16 x 16, 16,384 of attention; two layers."""
    told = judged(counted["sound"], counted["evaluated"])["flops"]
    assert (told.verdict, told.gated) == (Verdict.REGRESSED, True)
    more = "flops 0.4424 MFLOP -> 1.753 MFLOP per step (+1.311 MFLOP, +296 %)"
    assert finding_text(told.note).startswith(f"{more}: 1.311 MFLOP new at {at('model(many)', 'run')}")


def test_a_forgotten_no_grad_shows_as_activations_at_the_peak(counted: dict[str, Counts]) -> None:
    told = judged(counted["evaluated"], counted["evaluated with gradients"])["peak_tensor_bytes"]
    assert (told.verdict, told.gated) == (Verdict.REGRESSED, True)
    assert finding_text(told.note).startswith("activations ")


def test_each_fault_changes_only_the_counts_that_it_affects(counted: dict[str, Counts]) -> None:
    for fault in ("extra all-reduce", "two updates", "kept tensor", "item", "unused parameters looked for"):
        assert counted[fault].totals["flops"] == counted["sound"].totals["flops"], fault
        assert counted[fault].details["ddp_buckets"] == counted["sound"].details["ddp_buckets"], fault
    assert counted["unused parameters looked for"].totals["synchronisations"] == 0, "DDP's table stays on the host"


def test_another_batch_changes_nothing(counted: dict[str, Counts]) -> None:
    assert counted["other batch"] == counted["sound"]
    result = judged(counted["sound"], counted["other batch"])
    assert {comparison.verdict for comparison in result.comparisons} == {Verdict.UNCHANGED}
    assert (result.verdict, result.findings) == (Verdict.UNCHANGED, ())


def test_steps_of_every_variant_have_the_same_counts(counted: dict[str, Counts]) -> None:
    """Except for the peak if each step adds to it; retained_bytes says how much."""
    found = {(name, metric) for name, counts in counted.items() for metric in counts.unstable if "second" not in name}
    assert found == {("retained graph", "peak_tensor_bytes"), ("kept tensor", "peak_tensor_bytes")}


def test_both_ranks_have_the_same_counts(counted: dict[str, Counts]) -> None:
    assert counted["sound"].by_rank == {}
