"""A transformer under FSDP2 on ranks that nobody has here: how long its simulation takes, and what it finds.

    python benchmarks/simulate.py                      7 billion parameters on 1024 ranks
    python benchmarks/simulate.py --size 70b --plain   70 billion, without the planted faults

Rank 0 is simulated in a process of its own, of which the seconds and the peak of resident memory are told. Then two
faults are planted, and the exact gate has to find both: a layer that is not sharded by itself, and a layer whose
parameters are gathered once more.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  as everybody has it
from torch import Tensor, nn

from pytest_ddpperf import Workload
from pytest_ddpperf.judge.decision import decide_count
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.counts import COUNTS, Counts, quantity_texts
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.simulate.launch import simulate_launch
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.jobs import LaunchJob, PrepareJob, RankPrepared

MAX_SECONDS, MAX_BYTES = 60.0, 8 * 10**9  # of 7 billion parameters
SHOWN = (
    *("parameters", "collective_calls", "collective_bytes", "collective_send_bytes", "flops", "operators"),
    *("model_state_bytes", "peak_tensor_bytes"),
)


SPLIT = ("collective_calls", "collective_bytes", "peak_tensor_bytes")  # whose parts are told


class Shape(NamedTuple):
    """The size of a transformer of Llama's form."""

    layers: int
    width: int
    heads: int
    groups: int  # heads of keys and values
    hidden: int
    words: int = 32_000
    tokens: int = 2048  # of the one sequence of a rank


SHAPES = {
    "tiny": Shape(4, 64, 4, 4, 172, 256, 32),
    "7b": Shape(32, 4096, 32, 32, 11_008),
    "70b": Shape(80, 8192, 64, 8, 28_672),
}


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, inputs: Tensor) -> Tensor:
        """The inputs at one size."""
        return F.rms_norm(inputs, inputs.shape[-1:], self.weight)


class Layer(nn.Module):
    """Attention, and a gated layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, size = shape, shape.width // shape.heads
        linear = partial(nn.Linear, bias=False)
        self.before, self.between = Norm(shape.width), Norm(shape.width)
        self.query, self.out = linear(shape.width, shape.width), linear(shape.width, shape.width)
        self.key, self.value = (linear(shape.width, size * shape.groups) for _ in range(2))
        self.gate, self.up = (linear(shape.width, shape.hidden) for _ in range(2))
        self.down = linear(shape.hidden, shape.width)

    def forward(self, inputs: Tensor) -> Tensor:
        """The inputs with what the layer adds."""
        normed = self.before(inputs)
        query, key, value = (
            project(normed).unflatten(-1, (heads, -1)).transpose(1, 2)
            for project, heads in (
                (self.query, self.shape.heads),
                (self.key, self.shape.groups),
                (self.value, self.shape.groups),
            )
        )
        grouped = self.shape.groups < self.shape.heads
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        hidden = inputs + self.out(seen.transpose(1, 2).flatten(2))
        normed = self.between(hidden)
        changed = self.down(F.silu(self.gate(normed)) * self.up(normed))
        whole: Tensor = hidden + changed
        return whole


class Transformer(nn.Module):
    """Words to words."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.words, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm, self.head = Norm(shape.width), nn.Linear(shape.width, shape.words, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        """The logits of the next words."""
        hidden = self.words(words)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def workload(shape: Shape) -> Workload:
    def batch() -> tuple[Tensor, Tensor]:
        words, following = (torch.randint(shape.words, (1, shape.tokens)) for _ in range(2))
        return words, following

    def forward(model: nn.Module, given: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(given[0]).flatten(0, 1), given[1].flatten())

    def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-4)

    return Workload(
        model=lambda: Transformer(shape),
        batch=batch,
        forward=forward,
        optimizer=adamw,
        samples_per_step=1,
        tokens_per_step=shape.tokens,
    )


def lost_wrap(right: Workload) -> Workload:
    """The first layer is left to the rest of the model."""
    return dataclasses.replace(right, blocks=lambda model: list(model.layers)[1:])  # type: ignore[arg-type]


def gathered_twice(right: Workload) -> Workload:
    """The first layer is gathered, let go, and gathered again when it runs."""
    forward: Any = right.forward

    def doubled(model: nn.Module, given: tuple[Tensor, Tensor]) -> Tensor:
        first = model.layers[0]  # type: ignore[index]
        first.unshard()  # type: ignore[union-attr]
        first.reshard()  # type: ignore[union-attr]
        return forward(model, given)  # type: ignore[no-any-return]

    return dataclasses.replace(right, forward=doubled)


FAULTS: dict[str, Callable[[Workload], Workload]] = {"a lost wrap": lost_wrap, "a doubled all-gather": gathered_twice}


class Simulated(NamedTuple):
    """What a simulated rank found, and what that took."""

    counts: Counts
    seconds: float
    cpu: float  # seconds of its process
    peak: int  # bytes of resident memory of its process


def measured(ctx: object, job: PrepareJob, world_size: int) -> tuple[RankPrepared, float, int]:
    found = simulate_launch(ctx, job, 0, world_size)  # type: ignore[arg-type]
    return found, time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def simulated(launcher: Launcher, subject: Workload, world_size: int) -> Simulated:
    """Rank 0 of so many."""
    job = PrepareJob(LaunchJob(subject, resolve("fsdp2"), Settings(), Plan(warmup=5, steps=1)), counted=True)
    place = {"backend": "gloo", "device": "cpu", "own_group": True}
    start = time.monotonic()
    launched = launcher.run(measured, job, world_size, world_size=1, timeout=3600, **place)  # type: ignore[arg-type]
    ((found, cpu, peak),) = launched.values
    if found.counts is None or found.remarks:
        sys.exit(f"it was not simulated without values: {found.remarks}")
    return Simulated(found.counts, time.monotonic() - start, cpu, peak)


def parts_text(metric: str, counts: Counts) -> str:
    parts = counts.details[metric]
    told = zip(parts, quantity_texts(metric, parts.values()), strict=True)
    return f" ({', '.join(f'{name} {text}' for name, text in told)})"


def worse(then: Counts, now: Counts) -> list[str]:
    """The counts by which the exact gate fails, with both values."""
    return [
        f"{metric} {' -> '.join(quantity_texts(metric, [then.totals[metric], now.totals[metric]]))}"
        for metric in then.totals
        if COUNTS[metric].gated and decide_count(metric, then, now) is Verdict.REGRESSED
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SHAPES, default="7b", help="of the model (default: %(default)s)")
    parser.add_argument("--world-size", type=int, default=1024, help="ranks (default: %(default)s)")
    parser.add_argument("--plain", action="store_true", help="plant no faults")
    options = parser.parse_args()
    right = workload(SHAPES[options.size])
    with Launcher() as launcher:
        launcher.wait()
        found = simulated(launcher, right, options.world_size)
        print(f"a transformer of {options.size} under fsdp2, rank 0 of {options.world_size}, torch {torch.__version__}")
        print(f"  {'simulated in':<24} {found.seconds:.1f} s, {found.cpu:.1f} s of them on the CPU")
        print(f"  {'peak resident memory':<24} {found.peak / 10**9:.2f} GB of this process")
        for metric in SHOWN:
            (text,) = quantity_texts(metric, [found.counts.totals[metric]])
            print(f"  {metric:<24} {text}{parts_text(metric, found.counts) if metric in SPLIT else ''}")
        failed = options.size == "7b" and (found.seconds > MAX_SECONDS or found.peak > MAX_BYTES)
        for name, plant in ({} if options.plain else FAULTS).items():
            lines = worse(found.counts, simulated(launcher, plant(right), options.world_size).counts)
            print(f"  {name:<24} {'; '.join(lines) or 'missed'}")
            failed = failed or not lines
    sys.exit(failed)


if __name__ == "__main__":
    main()
