"""What counting a step takes, as multiples of a plain step: counted whole, watched, surveyed.

    python benchmarks/counting.py                    two ranks of this machine, with gloo
    python benchmarks/counting.py --ranks 1

A small transformer with DistributedDataParallel and AdamW. All kinds of steps are timed in each of some rounds; the
figures are medians over steps of rank 0. Counting four steps whole is what it took before others were looked at.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpperf.instruments.counting import counting
from pytest_ddpperf.instruments.counting.counting import SEEN_STEPS, Countable, count_warm_step
from pytest_ddpperf.parsers import argument, positive_int

ROUNDS, WARMUP, WHOLE = 5, 5, 4
WIDTH, CLASSES, LENGTH = 64, 100, 32


def make_step() -> Callable[[], None]:
    """A whole step of training."""
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True)
    model = DistributedDataParallel(nn.Sequential(nn.TransformerEncoder(layer, 4), nn.Linear(WIDTH, CLASSES)))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, targets = torch.randn(4, LENGTH, WIDTH), torch.randint(CLASSES, (4 * LENGTH,))

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs).flatten(0, 1), targets).backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()

    return step


def on_any_rank(here: bool) -> bool:  # noqa: FBT001  as counting asks
    """Whether it is so on any rank."""
    found = torch.tensor(int(here))
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return bool(found)


def seconds(step: Callable[[], None], *, surveys: bool) -> list[float]:
    """The seconds of each step of a counted pass, with what counting does between them; the last one is left out."""
    marks: list[float] = []

    def marked() -> None:
        marks.append(time.perf_counter())
        step()

    # after torch.compile has compiled, steps are surveyed at once
    vars(counting)["compiled_graphs"] = lambda: int(surveys)
    count_warm_step(marked, Countable(device=torch.device("cpu")), {}, on_any_rank=on_any_rank)
    assert len(marks) == SEEN_STEPS, "steps of this program do not differ"  # noqa: S101
    return [after - before for before, after in pairwise(marks)]


def rank(number: int, ranks: int, store: str) -> None:
    """Times all kinds of steps on a rank; the first one prints the figures."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=ranks)
    step = make_step()
    plain: list[float] = []
    whole: list[float] = []
    watched: list[float] = []
    surveyed: list[float] = []
    for _ in range(WARMUP):
        step()
    gc.freeze()  # as ranks inherit it: to collect garbage is to look at what steps have made
    for _ in range(ROUNDS):
        for _ in range(SEEN_STEPS):
            begun = time.perf_counter()
            step()
            plain.append(time.perf_counter() - begun)
        for others, surveys in (watched, False), (surveyed, True):
            found = seconds(step, surveys=surveys)
            whole += found[: WHOLE - 1]
            others.extend(found[WHOLE:])
    if number:
        return
    of = statistics.median(plain)
    print(f"{ranks} ranks, a plain step {1000 * of:.1f} ms; each as multiples of it")
    kinds = {"counted whole": whole, "watched": watched, "surveyed": surveyed}
    times = {kind: statistics.median(found) / of for kind, found in kinds.items()}
    for kind, multiple in times.items():
        print(f"  {kind:<14} {multiple:5.2f}")
    four, more = WHOLE * times["counted whole"], SEEN_STEPS - WHOLE
    for kind in ("watched", "surveyed"):
        print(f"20 steps, {more} of them {kind}: {1 + more * times[kind] / four:.2f} times what four whole ones take")


def main() -> None:
    """Starts the ranks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=argument(positive_int), default=2)
    ranks = parser.parse_args().ranks
    with TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        spawn(rank, args=(ranks, store), nprocs=ranks)  # type: ignore[no-untyped-call]  # torch's


if __name__ == "__main__":
    main()
