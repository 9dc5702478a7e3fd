"""``ddpperf calibrate``: pytest, with every benchmark held against itself."""

from __future__ import annotations

import argparse
import os
import sys

from pytest_ddpperf.parsers import argument, several
from pytest_ddpperf.settings import KNOBS

RUNS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes; all else is pytest's."""
    parser.usage = "ddpperf calibrate [-h] [--runs N] [TESTS and options of pytest, such as -k small ...]"
    parser.add_argument(
        "--runs",
        type=argument(several),
        default=RUNS,
        metavar="N",
        help="how often each benchmark is measured (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Become pytest: a process of its own, for pytest wants to see its plugins imported."""
    command = [sys.executable, "-m", "pytest", f"{KNOBS['calibrate'].option}={options.runs}", *options.rest]
    sys.stdout.flush()
    os.execv(sys.executable, command)  # noqa: S606 - no shell is wanted
