"""What loading the plugin costs a pytest run that does not use it: beside the same run with the plugin switched off.

The time of the processor tells it on a busy machine too, where the time that passes is mostly that of others.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL = 0.010  # seconds above plain pytest


def run(folder: Path, *, plugin: bool) -> tuple[float, float]:
    """Seconds that a whole pytest process takes for one empty test: those that pass, and those of the processor."""
    # As an installed plugin is loaded: through its entry point. Naming it with -p would make pytest read all entry
    # points on one side only.
    switch = [] if plugin else ["-p", "no:ddpperf"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *switch, str(folder)]
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder, env={})
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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
    times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_empty.py").write_text("def test_empty():\n    pass\n")
        for i in range(-2, rounds):  # the first two rounds fill caches and do not count
            for plugin in random.sample([False, True], 2):
                seconds = run(folder, plugin=plugin)
                if i >= 0:
                    times[plugin].append(seconds)
    print(f"medians of {rounds} processes, and of pairs with their 95 % interval; goal: at most {GOAL * 1e3:.0f} ms")
    late = False
    for column, kind in enumerate(("passed", "of the processor")):
        plain, loaded = ([each[column] for each in times[plugin]] for plugin in (False, True))
        pairs = [b - a for a, b in zip(plain, loaded, strict=True)]
        paired, (low, high) = statistics.median(pairs), median_interval(pairs)
        late = late or paired > GOAL
        print(
            f"{kind:17} pytest alone {statistics.median(plain) * 1e3:.1f} ms, "
            f"with pytest_ddpperf {statistics.median(loaded) * 1e3:.1f} ms, "
            f"difference {paired * 1e3:+.1f} ms [{low * 1e3:+.1f} .. {high * 1e3:+.1f}]"
        )
    sys.exit(late)


if __name__ == "__main__":
    main()
