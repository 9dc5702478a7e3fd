"""Small faults in a training step of two ranks: counts alone find each of them and say what it is.

Every variant is counted on the same two ranks, one after another; its counts are then judged, as those of a run are,
against the counts of another variant as baseline.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
    """Attention between two linear layers; ``padded`` doubles keys and values, and masks the second half of them."""

    def __init__(self, *, padded: bool = False) -> None:
        super().__init__()
        self.split = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.padded = padded

    def forward(self, inputs: Tensor) -> Tensor:
        queries, keys, values = self.split(inputs).unsqueeze(1).chunk(3, dim=-1)
        mask = None
        if self.padded:
            keys, values = torch.cat([keys, keys], dim=2), torch.cat([values, values], dim=2)
            mask = torch.arange(2 * SEQUENCE).expand(SEQUENCE, -1) < SEQUENCE
        mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        hidden: Tensor = self.out(mixed.squeeze(1))
        return inputs + hidden


class Renamed(Layer):
    """The same under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.result = self.out
        del self.out

    def forward(self, inputs: Tensor) -> Tensor:
        queries, keys, values = self.split(inputs).unsqueeze(1).chunk(3, dim=-1)
        mixed = functional.scaled_dot_product_attention(queries, keys, values)
        hidden: Tensor = self.result(mixed.squeeze(1))
        return inputs + hidden


class OtherOrder(Layer):
    """The same with its attributes set in another order."""

    def __init__(self) -> None:
        super().__init__()
        split = self.split
        del self.split
        self.split = split


class Wide(nn.Module):
    """Layers of one MiB each."""

    def __init__(self, number: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(number)))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs[:, 0].repeat(1, 512 // WIDTH))
        return outputs


class Normed(nn.Module):
    """Has buffers: mean and variance, 64 bytes each, and a counter of 8."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(SEQUENCE * 2)
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.norm(inputs.repeat(1, 2, 1)))
        return outputs


def layers(kind: Callable[[], nn.Module] = Layer) -> nn.Module:
    return nn.Sequential(kind(), kind())


@dataclass(frozen=True)
class Variant:
    """A training step, sound unless told otherwise."""

    strategy: str = "ddp"
    model: Callable[[], nn.Module] = layers
    micro_steps: int = 1
    no_sync: bool = True
    updates: int = 1
    retain_graph: bool = False
    recomputed: bool = False
    evaluated: bool = False
    no_grad: bool = True
    also: Callable[[Tensor, list[Any]], object] | None = None
    batch_seed: int = 0


def reduce_loss(loss: Tensor, _kept: list[Any]) -> None:
    dist.all_reduce(loss.detach())


def broadcast_loss(loss: Tensor, _kept: list[Any]) -> None:
    dist.broadcast(loss.detach(), src=0)


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
    "extra broadcast": Variant(also=broadcast_loss),
    "extra all-reduce in every second step": Variant(also=reduce_every_second_loss),
    "accumulating": Variant(micro_steps=4),
    "lost no_sync": Variant(micro_steps=4, no_sync=False),
    "bf16": Variant(strategy="ddp[comm_hook=bf16]"),
    "large buckets": Variant(strategy="ddp[bucket_cap_mb=25]", model=Wide),
    "small buckets": Variant(strategy="ddp[bucket_cap_mb=1]", model=Wide),
    "even buckets": Variant(strategy="ddp[bucket_cap_mb=2]", model=partial(Wide, 4)),
    "uneven buckets": Variant(strategy="ddp[bucket_cap_mb=3]", model=partial(Wide, 4)),
    "unused parameters looked for": Variant(strategy="ddp[find_unused_parameters=true]"),
    "buffers kept": Variant(strategy="ddp[broadcast_buffers=false]", model=Normed),
    "buffers broadcast": Variant(strategy="ddp[broadcast_buffers=true]", model=Normed),
    "two updates": Variant(updates=2),
    "recomputed": Variant(recomputed=True),
    "padded attention": Variant(model=partial(layers, partial(Layer, padded=True))),
    "retained graph": Variant(also=keep_graph, retain_graph=True),
    "kept tensor": Variant(also=keep_value),
    "evaluated": Variant(evaluated=True),
    "evaluated with gradients": Variant(evaluated=True, no_grad=False),
    "sharded": Variant(strategy="fsdp2[reshard_after_forward=false]"),
    "gathered twice": Variant(strategy="fsdp2[reshard_after_forward=true]"),
    "item": Variant(also=read),
    "item on the first rank": Variant(also=read_on_the_first_rank),
    "renamed": Variant(model=partial(layers, Renamed)),
    "attributes in another order": Variant(model=partial(layers, OtherOrder)),
    "other batch": Variant(batch_seed=1),
}


def step_of(ctx: RankContext, variant: Variant) -> Callable[[], None]:
    model = variant.model()
    blocks = list(model) if isinstance(model, nn.Sequential) else []
    if variant.recomputed:
        inner = blocks[0].forward
        blocks[0].forward = partial(torch.utils.checkpoint.checkpoint, inner, use_reentrant=False)
    parallel = parallelise(variant.strategy, model, ctx, blocks)
    optimizer = torch.optim.SGD(parallel.module.parameters(), lr=1e-3, momentum=0.9)
    inputs = torch.randn(4, SEQUENCE, WIDTH, generator=torch.Generator().manual_seed(variant.batch_seed))
    many = inputs.repeat(8, 1, 1)
    kept: list[Any] = []

    def micro_step() -> None:
        loss = parallel.module(inputs).square().mean()
        loss.backward(retain_graph=variant.retain_graph)
        if variant.also is not None:
            variant.also(loss, kept)

    def run() -> None:
        optimizer.zero_grad()
        for left in reversed(range(variant.micro_steps)):
            if left and variant.no_sync and parallel.no_sync is not None:
                with parallel.no_sync():
                    micro_step()
            else:
                micro_step()
        for _ in range(variant.updates):
            optimizer.step()
        if variant.evaluated:
            with torch.set_grad_enabled(not variant.no_grad):
                model(many).square().mean()

    return run


def count_variants(ctx: RankContext, variants: dict[str, Variant]) -> dict[str, Counts]:
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


BACKWARD = at("loss.backward(", "micro_step") + ", under backward"
COMPRESSED = f"8.50 KiB new at {BACKWARD}, 4.25 KiB gone from pytest_ddpperf/strategies/ddp.py:"
REDUCED = at("dist.all_reduce(", "reduce_loss")
READ = at("loss.item(", "read")
DDP = "DistributedDataParallel"

# Parameters of a layer: 16 x 48 + 48 + 16 x 16 + 16 = 1088, so two layers' gradients are 8704 bytes in 8 tensors.
FAULTS = [
    (
        "sound",
        "extra all-reduce",
        "collective_calls",
        [f"all_reduce 1 -> 2 calls per step (+1): the new one at {REDUCED}"],
    ),
    ("accumulating", "lost no_sync", "collective_calls", [f"all_reduce 1 -> 4 calls per step (+3): all at {BACKWARD}"]),
    (
        "bf16",
        "sound",
        "collective_bytes",
        [
            f"{DDP} has no comm_hook=_compress_to_bf16 any more",
            f"all_reduce 4.25 KiB -> 8.50 KiB per step (+4.25 KiB, +100 %), calls unchanged: {COMPRESSED}",
        ],
    ),
    (
        "large buckets",
        "small buckets",
        "collective_calls",
        [f"all_reduce 1 -> 3 calls per step (+2), bytes unchanged: all at {BACKWARD}"],
    ),
    (
        "large buckets",
        "small buckets",
        "ddp_buckets",
        [f"{DDP} has bucket_cap_mb=1 now", "1 -> 3 buckets, 3.00 MiB -> 1.00 MiB + 1.00 MiB + 1.00 MiB"],
    ),
    (  # one int32 for each of 8 parameters
        "sound",
        "unused parameters looked for",
        "collective_calls",
        [f"{DDP} has find_unused_parameters=True now", f"all_reduce 1 -> 2 calls per step (+1): all at {BACKWARD}"],
    ),
    (
        "buffers kept",
        "buffers broadcast",
        "collective_bytes",
        ["broadcast 0 B -> 136 B per step (+136 B)"],  # those of one type together
    ),
    ("sound", "two updates", "optimizer_steps", [f"SGD 1 -> 2 per step (+1): all at {at('optimizer.step()', 'run')}"]),
    (  # 32 rows by 16 x 48: 49,152 FLOPs; attention 4 sequences x 2 x 2 x 8 x 8 x 16. torch stops before the last layer
        "sound",
        "recomputed",
        "flops_forward",
        [
            "0.split 49.15 kFLOP -> 98.3 kFLOP per step (+49.15 kFLOP, +100 %)",
            "recomputed in backward 0 kFLOP -> 16.38 kFLOP per step (+16.38 kFLOP)",
        ],
    ),
    (
        "sound",
        "padded attention",
        "flops_forward",
        [f"module {layer} 16.38 kFLOP -> 32.77 kFLOP per step (+16.38 kFLOP, +100 %)" for layer in "01"],
    ),
    (
        "even buckets",
        "uneven buckets",
        "ddp_buckets",
        [
            f"{DDP} has bucket_cap_mb=3 now, 2 before",
            "2 buckets as before, bucket 0 2.00 MiB -> 3.00 MiB, bucket 1 2.00 MiB -> 1.00 MiB",
        ],
    ),
    (
        "extra all-reduce",
        "extra broadcast",
        "collective_calls",
        [
            f"all_reduce 2 -> 1 calls per step (-1): 1 gone from {REDUCED}, a line of the reference",
            f"broadcast 0 -> 1 calls per step (+1): the new one at {at('dist.broadcast(', 'broadcast_loss')}",
        ],
    ),
    (
        "item on the first rank",
        "item",
        "synchronisations",
        [f"rank 1 0 -> 1 waits for the device per step (+1): the new one at {READ}"],
    ),
    (
        "sound",
        "kept tensor",
        "retained_bytes",
        [
            (
                "kept_tensors 0 KiB -> 2.00 KiB per step (+2.00 KiB): 2.00 KiB new at "
                f"{at('kept.append(loss.detach', 'keep_value')}"
            )
        ],
    ),
    (
        "sharded",
        "gathered twice",
        "collective_calls",
        [
            "fully_shard of Layer has no reshard_after_forward=False any more",
            f"all_gather 2 -> 4 calls per step (+2): 2 new ones at {BACKWARD}",
        ],
    ),
    (
        "sound",
        "item",
        "synchronisations",
        [f"item 0 -> 1 waits for the device per step (+1): the new one at {at('loss.item(', 'read')}"],
    ),
]


GATE = {"flops_forward": "flops"}  # where the one with the clearer words is not gated


@pytest.mark.parametrize(("then", "now", "metric", "words"), FAULTS, ids=[f"{fault[1]}-{fault[2]}" for fault in FAULTS])
def test_a_fault_is_found_and_named(
    counted: dict[str, Counts], then: str, now: str, metric: str, words: list[str]
) -> None:
    if not runnable([VARIANTS[now].strategy]):
        pytest.skip("fsdp2 on the CPU needs torch 2.7")
    result = judged(counted[then], counted[now])
    assert result.verdict is Verdict.REGRESSED
    assert result[GATE.get(metric, metric)].gated
    assert result[GATE.get(metric, metric)].verdict is Verdict.REGRESSED
    told = difference_text(metric, counted[then], counted[now])
    assert finding_text(result[metric].note) == "; ".join(told)
    told = [re.sub(r"(strategies/ddp.py:).*", r"\1", line) for line in told]  # the rest is for that file to say
    assert told == words
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
        f"4.00 KiB new at {at('return inputs + hidden', 'forward')}, and 1 more"
    )


def test_a_forgotten_no_grad_shows_as_activations_at_the_peak(counted: dict[str, Counts]) -> None:
    told = judged(counted["evaluated"], counted["evaluated with gradients"])["peak_tensor_bytes"]
    assert (told.verdict, told.gated) == (Verdict.REGRESSED, True)
    assert finding_text(told.note).startswith("activations ")


def test_each_fault_changes_nothing_that_it_has_nothing_to_do_with(counted: dict[str, Counts]) -> None:
    for fault in ("extra all-reduce", "two updates", "kept tensor", "item", "unused parameters looked for"):
        assert counted[fault].totals["flops"] == counted["sound"].totals["flops"], fault
        assert counted[fault].details["ddp_buckets"] == counted["sound"].details["ddp_buckets"], fault
    assert counted["unused parameters looked for"].totals["synchronisations"] == 0, "DDP's table stays on the host"
    assert counted["lost no_sync"].totals["flops"] == counted["accumulating"].totals["flops"]


@pytest.mark.parametrize("harmless", ["sound", "other batch", "renamed", "attributes in another order"])
def test_what_is_harmless_changes_nothing(counted: dict[str, Counts], harmless: str) -> None:
    result = judged(counted["sound"], counted[harmless])
    assert {comparison.verdict for comparison in result.comparisons} == {Verdict.UNCHANGED}
    assert (result.verdict, result.findings) == (Verdict.UNCHANGED, ())


def test_another_batch_changes_no_detail(counted: dict[str, Counts]) -> None:
    assert counted["other batch"] == counted["sound"]


def test_another_name_is_another_detail(counted: dict[str, Counts]) -> None:
    assert "0.result" in counted["renamed"].details["flops"]


def test_two_steps_of_every_variant_are_alike(counted: dict[str, Counts]) -> None:
    """But for the peak where each step adds to it, of which retained_bytes tells how much."""
    unstable = {
        (name, metric) for name, counts in counted.items() for metric in counts.unstable if "second" not in name
    }
    assert unstable == {("retained graph", "peak_tensor_bytes"), ("kept tensor", "peak_tensor_bytes")}


def test_both_ranks_do_the_same(counted: dict[str, Counts]) -> None:
    assert counted["sound"].by_rank == {}
