"""What many counted tests take: seconds, the size of their JSON and of their page, and to read the JSON again.

    python benchmarks/many.py                       200 tests, each of a program that is counted anew
    python benchmarks/many.py --same --tests 3000   tests of one function, which is counted once and remembered

Each trains a small step with DistributedDataParallel on two ranks. Goals for 3,000: 150 s, 15 MB of JSON, a page of
4 MB.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.common

from benchmarks.common.project import pytest_run, write
from pytest_ddpperf.parsers import argument, positive_int
from pytest_ddpperf.reports.documents.run_file import read_run

TEST = """\
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def build(ctx, number=0):
    torch.manual_seed(number)
    model = DistributedDataParallel(nn.Linear(16, 16))
    optimizer, batch = torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(4, 16)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("number", range({tests}))
def test_it(ddpperf, number):
    ddpperf.check({step}, world_size=2)
"""
OPTIONS = ("-p", "no:randomly", "--ddpperf-counts=only", "--ddpperf-device=cpu")


def main() -> None:
    """Runs the tests and prints what they took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=argument(positive_int), default=200, metavar="N")
    parser.add_argument("--same", action="store_true", help="test one function, which is counted once")
    given = parser.parse_args()
    step = "build" if given.same else "lambda ctx: build(ctx, number)"
    with tempfile.TemporaryDirectory(prefix="ddpperf-many-") as aside:
        folder = Path(aside)
        write(folder, {"test_many.py": TEST.format(tests=given.tests, step=step)})
        run, page = folder / "run.json", folder / "page.html"
        begun = time.monotonic()
        ran = pytest_run(folder, [*OPTIONS, f"--ddpperf-report=json:{run}", f"--ddpperf-report=html:{page}"])
        if ran.status:
            sys.exit(ran.printed)
        took, sizes = time.monotonic() - begun, [file.stat().st_size / 1e6 for file in (run, page)]
        begun = time.monotonic()
        found = read_run(run).results
        read = f"read in {time.monotonic() - begun:.2f} s"
    what = f"{len(found)} tests{' of one function' * given.same}: {took:.0f} s"
    print(f"{what}; JSON {sizes[0]:.1f} MB, {read}; page {sizes[1]:.1f} MB")


if __name__ == "__main__":
    main()
