"""How well a fitted network tells sizes that it has not seen.

    python benchmarks/network.py

Two gloo ranks sweep all collectives from 1 KiB to 16 MiB, half as far as `ddpperf network`; about two minutes. Then
fresh ranks measure sizes that lie between those of the fit, and the fit has to tell them. Its own figure, of sizes that
are left out in turn, stands beside.

Goal: the median relative error over all collectives and sizes is at most 15 %.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from itertools import pairwise

from pytest_ddpperf.analysis.costs import COLLECTIVES
from pytest_ddpperf.launch.environment import thread_variables
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.network import SweepPlan
from pytest_ddpperf.reports.phrases import environment_text
from pytest_ddpperf.run.predict.network import measure_network, network_environment, sizes_between
from pytest_ddpperf.units import format_value

GOAL = 0.15
TIMEOUT = 600.0  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="of either sweep (default: %(default)s)")
    rounds = parser.parse_args().rounds
    sizes = sizes_between(2**10, 2**24, 2)
    between = tuple(round(math.sqrt(one * two)) for one, two in pairwise(sizes))
    with Launcher(threads=thread_variables(os.environ)) as launcher:
        here = network_environment(launcher, 2, "cpu", "gloo")
        print(environment_text(here), "2 ranks", f"{rounds} rounds", sep=", ")
        print(f"load of the machine: {os.getloadavg()[0]:.1f} on {here.cores} cores\n")
        plans = [SweepPlan(collectives=COLLECTIVES, sizes=each, rounds=rounds) for each in (sizes, between)]
        fitted, unseen = (measure_network(launcher, here, plan, TIMEOUT) for plan in plans)
    print(f"  {'collective':<16}{'lines':>6}{'left out':>10}{'unseen: median':>16}{'worst':>8}  {'of':<10}")
    every = []
    for fit in fitted.fits:
        found = [(abs(fit.seconds(one.nbytes) / one.seconds - 1), one.nbytes) for one in unseen.timings
                 if one.collective == fit.collective]  # fmt: skip
        median, (worst, size) = statistics.median(error for error, _ in found), max(found)
        every += [error for error, _ in found]
        told = f"{fit.error:>10.1%}{median:>16.1%}{worst:>8.0%}  {format_value(size, 'B'):<10}"
        print(f"  {fit.collective:<16}{len(fit.segments):>6}{told}")
    median = statistics.median(every)
    print(f"\n  median error of {len(every)} unseen sizes: {median:.1%}: {'reached' if median <= GOAL else 'missed'}")
    sys.exit(median > GOAL)


if __name__ == "__main__":
    main()
