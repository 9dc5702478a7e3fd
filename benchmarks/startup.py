"""How long ranks take to run their first step: by ``Launcher``, beside ``torch.multiprocessing.spawn``.

Both start the same gloo ranks, join them and do one all-reduce, in alternating rounds of one run; what is measured is
the time from the call in the parent to the end of that all-reduce on the slowest rank. Then how long more launchers
take to be ready: as copies of a first one, and each with an import of torch of its own.

    python benchmarks/startup.py --rounds 7 --world-size 4
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.launchers import COPY_BYTES, LAUNCHER_BYTES, Launchers

GOAL = 10  # times faster
STRATEGIES = [f"pytest_ddpperf.strategies.{name}" for name in ("ddp", "zero1", "fsdp1", "fsdp2")]  # import most
MORE = 8  # launchers beside the first: what a comparison of nine strategies takes


def first_step(*_: object) -> float:
    """One all-reduce; the time of this machine's clock when it was done, which all processes share."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1))
    return time.monotonic()


def spawned(rank: int, world_size: int, port: int, ends: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    ends.put(first_step())
    dist.destroy_process_group()


def seconds_by_launcher(launcher: Launcher, world_size: int) -> float:
    start = time.monotonic()
    result = launcher.run(first_step, world_size=world_size, device="cpu", backend="gloo")
    return max(result.values) - start


def seconds_by_spawn(world_size: int) -> float:
    from torch.multiprocessing.spawn import spawn

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ends = multiprocessing.get_context("spawn").SimpleQueue()
    start = time.monotonic()
    spawn(spawned, args=(world_size, port, ends), nprocs=world_size)  # type: ignore[no-untyped-call]  # torch's
    finished: list[float] = [ends.get() for _ in range(world_size)]
    return max(finished) - start


def more_launchers(*, copied: bool) -> tuple[float, int, int]:
    """The seconds until ``MORE`` launchers are ready beside a first one, and the bytes that the last one has alone.

    The second number of bytes is of the same launcher after a launch that imported strategies.
    """
    from pytest_ddpperf.run.session.sides import (
        PRELOADED,  # not above: each spawned rank would import it, and take longer
    )

    launchers = Launchers(lambda first: Launcher(preload=PRELOADED, like=first if copied else None))
    try:
        launchers.wait(1)
        start = time.monotonic()
        launchers.start(1 + MORE)
        launchers.wait(1 + MORE)
        seconds = time.monotonic() - start
        alone = private_bytes(launchers[MORE].pid)
        launchers[MORE].run(first_step, world_size=2, device="cpu", backend="gloo", preload=STRATEGIES)
        return seconds, alone, private_bytes(launchers[MORE].pid)
    finally:
        launchers.close()


def private_bytes(pid: int | None) -> int:
    """What a process shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="launches by each of the two (default: %(default)s)")
    parser.add_argument("--world-size", type=int, default=4, help="ranks (default: %(default)s)")
    options = parser.parse_args()
    by_launcher, by_spawn = [], []
    with Launcher() as launcher:
        seconds_by_launcher(launcher, options.world_size)  # imports torch once
        for _ in range(options.rounds):
            by_launcher.append(seconds_by_launcher(launcher, options.world_size))
            by_spawn.append(seconds_by_spawn(options.world_size))
    print(f"{options.world_size} gloo ranks until the first step has been run, {options.rounds} rounds (low .. high)")
    for name, times in (("Launcher", by_launcher), ("torch.multiprocessing.spawn", by_spawn)):
        print(f"  {name:<28} {statistics.median(times):6.3f} s  ({min(times):.3f} .. {max(times):.3f})")
    ratio = statistics.median(by_spawn) / statistics.median(by_launcher)
    print(f"  {'ratio of the medians':<28} {ratio:6.1f}    (goal: at least {GOAL})")
    print(f"{MORE} more launchers, beside a first one, until they are ready, and the memory that one has for itself")
    more = {"copies of the first": more_launchers(copied=True), "torch imported by each": more_launchers(copied=False)}
    for name, (seconds, alone, imported) in more.items():
        mebibytes = f"{alone / 2**20:4.0f} MiB, {imported / 2**20:.0f} MiB after strategies were imported"
        print(f"  {name:<28} {seconds:6.3f} s  {mebibytes}")
    for name, nbytes in (("a copy", COPY_BYTES), ("any other", LAUNCHER_BYTES)):
        print(f"  {'reckoned with for ' + name:<28} {'':6}    {nbytes / 2**20:4.0f} MiB")
    sys.exit(ratio < GOAL)


if __name__ == "__main__":
    main()
