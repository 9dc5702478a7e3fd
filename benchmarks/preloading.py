"""How long launches take whose ranks import a large package, beside launches of the same ranks without the import.

    pip install lightning && python benchmarks/preloading.py --module lightning

Launches with and without the import alternate in one run. What is measured is the time from the call in the parent to
the end of an all-reduce on the slowest rank. The first launch with the import is reported apart, with the time that
preloading took after it.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time

from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.launchers import AUTO, Launchers

GOAL = 1.5  # times the seconds without the import
FILE = "test_it.py"


def first_step(_ctx: object, *modules: str) -> float:
    """Import modules, and do one all-reduce; the time of this machine's clock when it was done."""
    import torch
    import torch.distributed as dist

    for module in modules:
        importlib.import_module(module)
    dist.all_reduce(torch.ones(1))
    return time.monotonic()


def seconds(launchers: Launchers, world_size: int, *modules: str) -> float:
    start = time.monotonic()
    result = launchers[0].run(first_step, *modules, world_size=world_size, device="cpu", backend="gloo", timeout=120)
    launchers.note(FILE, result.imports)
    return max(result.values) - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", default="lightning", help="what ranks import (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="launches of each kind (default: %(default)s)")
    parser.add_argument("--world-size", type=int, default=2, help="ranks (default: %(default)s)")
    options = parser.parse_args()
    launchers = Launchers(lambda first: Launcher(like=first), [AUTO])
    plain = Launchers(lambda _first: Launcher(like=launchers[0]))  # its zygote imports torch alone
    plain.wait(1)
    first = seconds(launchers, options.world_size, options.module)
    start = time.monotonic()
    launchers.wait(1, FILE, options.world_size)
    preloading = time.monotonic() - start
    without, importing = [], []
    for _ in range(options.rounds):
        without.append(seconds(plain, options.world_size))
        importing.append(seconds(launchers, options.world_size, options.module))
    plain.close()
    launchers.close()
    print(f"{options.world_size} gloo ranks until the first step has been run, {options.rounds} rounds (low .. high)")
    for name, times in (("without an import", without), (f"import {options.module}", importing)):
        print(f"  {name:<28} {statistics.median(times):6.3f} s  ({min(times):.3f} .. {max(times):.3f})")
    ratio = statistics.median(importing) / statistics.median(without)
    print(f"  {'ratio of the medians':<28} {ratio:6.2f}    (goal: at most {GOAL})")
    print(f"  {'first launch with the import':<28} {first:6.3f} s")
    print(f"  {'once: preloading':<28} {preloading:6.3f} s")
    sys.exit(ratio > GOAL)


if __name__ == "__main__":
    main()
