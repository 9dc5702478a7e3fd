"""What loading the plugin costs a pytest run that does not use it: beside the same run with the plugin switched off."""

from __future__ import annotations

import argparse
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL = 0.010  # seconds above plain pytest


def run(folder: Path, *, plugin: bool) -> float:
    """Seconds that a whole pytest process takes for one empty test."""
    # As an installed plugin is loaded: through its entry point. Naming it with -p would make pytest read all entry
    # points on one side only.
    switch = [] if plugin else ["-p", "no:ddpperf"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *switch, str(folder)]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder, env={})
    return time.perf_counter() - start


def median_interval(values: list[float]) -> tuple[float, float]:
    """A 95 % interval of the median: order statistics by the normal approximation of the binomial."""
    ordered = sorted(values)
    reach = 0.98 * math.sqrt(len(ordered))
    low = max(0, math.floor(len(ordered) / 2 - reach) - 1)
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + reach))
    return ordered[low], ordered[high]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    times: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_empty.py").write_text("def test_empty():\n    pass\n")
        for i in range(-2, rounds):  # the first two rounds fill caches and do not count
            for plugin in random.sample([False, True], 2):
                seconds = run(folder, plugin=plugin)
                if i >= 0:
                    times[plugin].append(seconds)
    plain, loaded = statistics.median(times[False]), statistics.median(times[True])
    pairs = [b - a for a, b in zip(times[False], times[True], strict=True)]
    paired, (low, high) = statistics.median(pairs), median_interval(pairs)
    print(f"pytest alone        {plain * 1e3:7.1f} ms  (median of {rounds} processes)")
    print(f"with pytest_ddpperf {loaded * 1e3:7.1f} ms  (ratio {loaded / plain:.3f})")
    print(
        f"difference          {paired * 1e3:+7.1f} ms  [{low * 1e3:+.1f} .. {high * 1e3:+.1f}]"
        f"  (median of pairs and its 95 % interval; goal: at most {GOAL * 1e3:.0f} ms)"
    )
    sys.exit(paired > GOAL)


if __name__ == "__main__":
    main()
