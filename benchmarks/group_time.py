"""How long functional tests of ranks take: by ``ddpperf_group``, beside torch's ``MultiProcessTestCase``.

Both run the same tests, each one all-reduce on fresh gloo ranks, in alternating rounds of one run. What is measured is
the time of a whole pytest process, import of torch included. Torch's test case needs the package expecttest.

    python benchmarks/group_time.py --tests 100 --rounds 3
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL, GOAL_RATIO = 15.0, 10  # seconds of a hundred tests; times faster
OURS = """
import pytest


def all_reduce(ctx):
    import torch

    ones = torch.ones(1)
    torch.distributed.all_reduce(ones)
    return ones.item()


@pytest.mark.ddpperf(world_size=2, device="cpu", backend="gloo")
@pytest.mark.parametrize("number", range({tests}))
def test_sum(ddpperf_group, number):
    assert ddpperf_group.run(all_reduce).values == (2, 2)
"""
TORCHS = """
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase


class TestSum(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def all_reduce(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        ones = torch.ones(1)
        dist.all_reduce(ones)
        assert ones.item() == 2
        dist.destroy_process_group()


for number in range({tests}):
    setattr(TestSum, f"test_sum_{{number}}", lambda self: self.all_reduce())
"""


def seconds_of(text: str, tests: int) -> float:
    """The seconds of a pytest process that runs the tests."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_sum.py").write_text(text.format(tests=tests))
        start = time.monotonic()
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder],
            check=False,
            capture_output=True,
            text=True,
            cwd=folder,
        )
        seconds = time.monotonic() - start
    if run.returncode or f"{tests} passed" not in run.stdout:
        raise SystemExit(run.stdout + run.stderr)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=100, help="of each of the two (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each of the two (default: %(default)s)")
    options = parser.parse_args()
    ours, torchs = [], []
    for _ in range(options.rounds):
        ours.append(seconds_of(OURS, options.tests))
        torchs.append(seconds_of(TORCHS, options.tests))
    print(f"{options.tests} tests of 2 fresh gloo ranks, one all-reduce each, {options.rounds} rounds (low .. high)")
    for name, times in (("ddpperf_group", ours), ("torch's MultiProcessTestCase", torchs)):
        print(f"  {name:<29} {statistics.median(times):7.2f} s  ({min(times):.2f} .. {max(times):.2f})")
    ratio = statistics.median(torchs) / statistics.median(ours)
    print(f"  {'ratio of the medians':<29} {ratio:7.1f}    (goals: {GOAL_RATIO}, and {GOAL:.0f} s for a hundred)")
    sys.exit(ratio < GOAL_RATIO or statistics.median(ours) > GOAL)


if __name__ == "__main__":
    main()
