"""How far CPU times of the same code lie apart by where the memory of its processes lies.

    python benchmarks/layout.py

All ranks of a side are forked from one process, so they share its addresses and its hashes of strings. Pairs of such
processes are started, of the same code, and launches of both alternate: once with memory laid out alike, as the plugin
starts them, and once as the system lays it out. The steps unpack and turn small pictures, as those of
``perf_tests/test_data_loading.py`` do. What is printed is the scatter of the quotient of both sides over the pairs, and
what a single pair could know of it by the scatter of its own launches.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import statistics
import time
import zlib
from collections.abc import Iterator
from unittest import mock

from pytest_ddpperf.launch import processes
from pytest_ddpperf.launch.launcher import Launcher

ITEMS, CHUNKS = 40, 24  # pictures of a chunk; of a launch
SIDE = 64  # pixels
KINDS = ("laid out alike", "as the system does")


def cpu_time(_ctx: object) -> float:
    """CPU seconds of a chunk: the mean of the least third of them."""
    import torch
    from torch.nn import functional

    torch.manual_seed(0)
    packed = [zlib.compress((torch.rand(SIDE, SIDE) * 255).to(torch.uint8).numpy().tobytes()) for _ in range(ITEMS)]

    def turned(picture: bytes, angle: float) -> torch.Tensor:
        pixels = torch.frombuffer(bytearray(zlib.decompress(picture)), dtype=torch.uint8).view(1, 1, SIDE, SIDE) / 255
        rotation = torch.tensor([[[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]]])
        grid = functional.affine_grid(rotation, list(pixels.shape), align_corners=False)
        return functional.grid_sample(pixels, grid, align_corners=False)

    seconds = []
    for _ in range(CHUNKS + 1):
        begun = time.process_time()
        for number, picture in enumerate(packed):
            turned(picture, 0.1 * number)
        seconds.append(time.process_time() - begun)
    least = sorted(seconds[1:])[: CHUNKS // 3]
    return sum(least) / len(least)


@contextlib.contextmanager
def laid_out(kind: str) -> Iterator[None]:
    """Around the start of processes of a kind."""
    alike = kind == KINDS[0]
    as_started = (
        contextlib.nullcontext() if alike else mock.patch.object(processes, "laid_out_alike", contextlib.nullcontext)
    )
    with as_started, mock.patch.dict(os.environ, {"PYTHONHASHSEED": "" if alike else "random"}):
        yield


def pair(kind: str, launches: int) -> tuple[float, float]:
    """The logarithm of the quotient of both sides, and its standard error by the scatter of the launches."""
    with laid_out(kind), Launcher() as one, Launcher() as other:
        one.wait()
        other.wait()
        quotients = []
        for _ in range(launches):
            first, second = (
                min(side.run(cpu_time, world_size=1, device="cpu", backend="gloo", timeout=60).values)
                for side in (one, other)
            )
            quotients.append(math.log(second / first))
    return statistics.fmean(quotients), statistics.stdev(quotients) / math.sqrt(launches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12, help="of each kind (default: %(default)s)")
    parser.add_argument("--launches", type=int, default=5, help="of each side (default: %(default)s)")
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for number in range(options.pairs):
        for kind in random.Random(number).sample(KINDS, len(KINDS)):  # noqa: S311 - an order is no secret
            found[kind].append(pair(kind, options.launches))
    print("memory                pairs lie apart by   their own launches tell   the farthest")
    for kind, pairs in found.items():
        apart = math.sqrt(statistics.fmean(quotient**2 for quotient, _ in pairs))
        told = math.sqrt(statistics.fmean(error**2 for _, error in pairs))
        print(f"{kind:22}{apart:18.1%}{told:26.1%}{max(abs(quotient) for quotient, _ in pairs):15.1%}")


if __name__ == "__main__":
    main()
