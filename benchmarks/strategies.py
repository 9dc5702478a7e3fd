"""What the hand-written strategies cost beside torch's DistributedDataParallel: step time and memory, side by side.

    python benchmarks/strategies.py

Gloo ranks train transformers of two sizes in fp32.

Step times: in the same processes, all strategies take turns, a few steps each, in random order, which all ranks draw
alike; a ratio is that of two in the same round, the median over a launch's rounds, with a t interval over launches.
CPU times are those of all threads of a rank: what else runs on the machine disturbs them less, but they know nothing
of waiting. Memory: each strategy in processes of its own, where every tensor's storage is counted from the operator
that made it to its end, so the figures are the same in every run.

Goals: `bucketed` takes no longer than torch's DDP and `overlap` no longer than `naive`; `naive` and `overlap` need no
memory beside the gradients, and `bucketed` no more than one copy of them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.stats.intervals import center
from pytest_ddpperf.strategies.table import resolve, row_of

if TYPE_CHECKING:
    import torch
    from torch import nn

VIEWS = "ddp[gradient_as_bucket_view=true]"
STRATEGIES = ("single", "naive", "flat", "overlap", "overlap_coalesced", "bucketed", "ddp", VIEWS)
FASTER = (("bucketed", "ddp"), ("overlap", "naive"))  # goals: the first takes no longer than the second
COMPARED = (*FASTER, ("bucketed", VIEWS), ("overlap_coalesced", "ddp"), ("flat", "ddp"))
COPIES = {"naive": 0, "overlap": 0, "bucketed": 1}  # goals: of the gradients, above `single`
WARMUP = 3  # steps: DDP lays out its buckets anew after the first, and so do ours
MB = 1e6


@dataclass(frozen=True)
class Transformer:
    """A model and its batch: small enough for steps of a tenth of a second, so that what is sent matters."""

    width: int
    layers: int
    batch: int
    sequence: int
    steps: int  # in a block
    rounds: int  # in a launch

    def build(self) -> nn.Module:
        """The model, always with the same parameters."""
        import torch

        from perf_tests.language_model import LanguageModel, Size

        torch.manual_seed(0)
        return LanguageModel(Size("", self.width, self.width // 32, self.layers, 4 * self.width, self.sequence))


TRANSFORMERS = (
    Transformer(width=256, layers=4, batch=8, sequence=32, steps=3, rounds=12),
    Transformer(width=512, layers=8, batch=4, sequence=32, steps=1, rounds=8),
)


@dataclass(frozen=True)
class Cost:
    """Seconds of a step."""

    wall: float
    cpu: float


Round = dict[str, Cost]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-size", type=int, default=2, help="gloo ranks (default: %(default)s)")
    parser.add_argument("--launches", type=int, default=4, help="fresh groups (default: %(default)s)")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))  # for perf_tests; ranks get this path as well
    reached = True
    with Launcher() as launcher:

        def run(function: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
            ranks = options.world_size
            return launcher.run(function, *args, world_size=ranks, backend="gloo", device="cpu", timeout=600).values

        for transformer in TRANSFORMERS:
            size = run(gradient_bytes, transformer)[0]
            print(
                f"{size / MB:.0f} MB of parameters, {options.world_size} gloo ranks with {transformer.batch} sequences "
                f"of {transformer.sequence}, {options.launches} launches of {transformer.rounds} rounds, 95 % intervals"
            )
            launches = [slowest_rank(run(measure_rounds, transformer, seed)) for seed in range(options.launches)]
            peaks = {strategy: max(run(peak_bytes, transformer, strategy)) for strategy in STRATEGIES}
            reached &= report(launches, peaks, size)
    sys.exit(not reached)


def gradient_bytes(_ctx: RankContext, transformer: Transformer) -> int:
    return sum(parameter.nbytes for parameter in transformer.build().parameters())


def training(ctx: RankContext, transformer: Transformer, strategy: str) -> Callable[[], torch.Tensor]:
    """On a rank: a step of plain training."""
    import torch

    from perf_tests.language_model import VOCABULARY, next_byte_loss

    module = transformer.build()
    resolved = resolve(strategy)
    parallel = import_module(row_of(resolved).module).parallelise(module, ctx, **resolved.options)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    inputs, targets = torch.randint(VOCABULARY, (2, transformer.batch, transformer.sequence))

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = next_byte_loss(parallel.module(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        parallel.synchronise()
        optimizer.step()
        return loss.detach()

    for _ in range(WARMUP):
        step()
    return step


def measure_rounds(ctx: RankContext, transformer: Transformer, seed: int) -> list[Round]:
    """On a rank: seconds per step of a block of each strategy, for every round."""
    import torch.distributed as dist

    from pytest_ddpperf.instruments.clock import collector_paused

    steps = {strategy: training(ctx, transformer, strategy) for strategy in STRATEGIES}

    def block(step: Callable[[], torch.Tensor]) -> Cost:
        dist.barrier()
        start, cpu_start = time.perf_counter(), time.process_time()
        for _ in range(transformer.steps):
            step()
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu_start
        return Cost(wall / transformer.steps, cpu / transformer.steps)

    draw = random.Random(seed)  # noqa: S311  no secret
    with collector_paused():
        return [
            {strategy: block(steps[strategy]) for strategy in draw.sample(STRATEGIES, len(STRATEGIES))}
            for _ in range(transformer.rounds)
        ]


def slowest_rank(by_rank: Sequence[list[Round]]) -> list[Round]:
    """A step is over when it is on all ranks; its CPU time is the mean rank's."""
    return [
        {
            name: Cost(max(one[name].wall for one in ranks), statistics.mean(one[name].cpu for one in ranks))
            for name in STRATEGIES
        }
        for ranks in zip(*by_rank, strict=True)
    ]


def peak_bytes(ctx: RankContext, transformer: Transformer, strategy: str) -> int:
    """On a rank: the most bytes that live tensors had, from the model's making to the end of a few steps."""
    with live_storages() as live:
        training(ctx, transformer, strategy)()
    return live.peak


@dataclass
class LiveStorages:
    """Bytes of the storages that are alive, and the most there were."""

    bytes: int = 0
    peak: int = 0
    known: set[int] = field(default_factory=set)  # by address: a storage may have several Python objects

    def see(self, storage: torch.UntypedStorage) -> None:
        """Count a storage until its end, if it is a new one."""
        address, size = storage._cdata, storage.nbytes()  # noqa: SLF001  torch's own memory tracker tells them apart so
        if address not in self.known:
            self.known.add(address)
            self.bytes += size
            self.peak = max(self.peak, self.bytes)
            weakref.finalize(storage, self.forget, address, size)

    def forget(self, address: int, size: int) -> None:
        """Count it no more."""
        self.known.discard(address)
        self.bytes -= size


@contextmanager
def live_storages() -> Iterator[LiveStorages]:
    """Counts the storages of all tensors that operators give inside."""
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    live = LiveStorages()

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
        def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = func(*args, **(kwargs or {}))
            for leaf in tree_leaves(given):
                if isinstance(leaf, Tensor) and leaf.device.type != "meta":
                    live.see(leaf.untyped_storage())
            return given

    with Watch():  # type: ignore[no-untyped-call]  # the same
        yield live


def report(launches: list[list[Round]], peaks: dict[str, int], size: int) -> bool:
    """Print it all; whether every goal is reached."""
    print(f"\n  {'strategy':<36} {'ms a step':>9} {'CPU ms':>8} {'MB at most':>11} {'above single':>13}")
    for name in STRATEGIES:
        costs = [one[name] for launch in launches for one in launch]
        wall, cpu = statistics.median(cost.wall for cost in costs), statistics.median(cost.cpu for cost in costs)
        above = (peaks[name] - peaks["single"]) / MB
        print(f"  {name:<36} {1e3 * wall:9.2f} {1e3 * cpu:8.2f} {peaks[name] / MB:11.2f} {above:+13.2f}")
    print()
    reached = [time_goal(launches, new, base) for new, base in COMPARED]
    for name, copies in COPIES.items():
        above = peaks[name] - peaks["single"]
        kept = above <= copies * size
        reached.append(kept)
        print(
            f"  {name}: {above / size:.2f} copies of the gradients above single; "
            f"goal, at most {copies}: {'reached' if kept else 'missed'}"
        )
    print()
    return all(reached)


def time_goal(launches: list[list[Round]], new: str, base: str) -> bool:
    """Print a ratio of step times; whether it keeps its goal, if it has one."""
    ratio, interval = center(
        [statistics.median(one[new].wall / one[base].wall for one in launch) for launch in launches], "ratio"
    )
    cpu, cpu_interval = center(
        [statistics.median(one[new].cpu / one[base].cpu for one in launch) for launch in launches], "ratio"
    )
    print(f"  {new} / {base}: {ratio:.3f}{ends(interval)}, CPU {cpu:.3f}{ends(cpu_interval)}", end="")
    if (new, base) not in FASTER:
        print()
        return True
    kept = ratio <= 1
    shown = interval is not None and (interval.high <= 1 if kept else interval.low > 1)
    print(f"; goal, at most 1.00: {'reached' if kept else 'missed'}{'' if shown else ', though not for certain'}")
    return kept


def ends(interval: Interval | None) -> str:
    return f" [{interval.low:.3f} .. {interval.high:.3f}]" if interval else ""


if __name__ == "__main__":
    main()
