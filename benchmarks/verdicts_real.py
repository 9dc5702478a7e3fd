"""Whether verdicts are right in real runs, added up over days.

    python benchmarks/verdicts_real.py run --all --minutes 60
    python benchmarks/verdicts_real.py run --cell same-20s-quiet --number 5
    python benchmarks/verdicts_real.py run --cell suite-same
    python benchmarks/verdicts_real.py table

Each run makes a small git project whose test trains with two gloo ranks, in two commits: the same code, slower code, or
code that pauses in some steps. It runs pytest there against the first commit or beside a baseline of it, and keeps what
the verdict was and what both sides' own step times say. What is slower is only timed (``--ddpperf-counts=off``):
counts would tell at once. "Busy" runs have two processes beside them that compute, with short rests. Runs on a quiet
machine wait while others use it, and do not count if others took more than a tenth of the cores meanwhile; the table
says how many these are. Runs add up in one file, a line for each benchmark, with the git tree of the package; ``run
--all`` makes those that the package's own tree lacks, in turn. It may be stopped at any time. ``--package`` is the
folder of another checkout whose package is run in place of this one's.

Cells whose names begin with "suite" run the example suite under a budget, in a clone of what the checkout has
committed: against its own commit, beside times that were saved there, or with 10 % planted in three of its tests. A
run takes minutes, so ``run --all`` makes those only with ``--suites``.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.verdicts

from benchmarks.common.project import RESULTS, ROOT, BrokenFile
from benchmarks.verdicts.cells import CELLS, SUITES
from benchmarks.verdicts.outcomes import read, report
from benchmarks.verdicts.runs import Bench, machine_here, made, tree_of
from pytest_ddpperf.against.git import GitError
from pytest_ddpperf.errors import DdpperfError, SettingError
from pytest_ddpperf.parsers import argument, positive_int

FILE = RESULTS / "verdicts_real.jsonl"
DAYS = 60.0 * 24 * 30


def main() -> None:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # pytest and busy processes are ended too
    try:
        options.command(options)
    except (BrokenFile, GitError, DdpperfError, OSError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("stopped; the runs that have ended are kept, and can be added to")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, metavar="run|table")
    run = verbs.add_parser("run", help="make runs and keep them")
    which = run.add_mutually_exclusive_group(required=True)
    cells = [*CELLS, *SUITES]
    which.add_argument("--cell", metavar="NAME", choices=cells, help="runs of this cell; a wrong name lists all")
    which.add_argument("--all", action="store_true", help="runs of all cells that lack some, in turn")
    run.add_argument("--suites", action="store_true", help="with --all: those that run the example suite, too")
    run.add_argument(
        "--number", type=argument(positive_int), metavar="N", help="so many of each that count (default: what it lacks)"
    )
    run.add_argument("--minutes", type=float, default=DAYS, metavar="M", help="after which no run is begun")
    run.add_argument("--package", type=Path, default=ROOT, metavar="FOLDER", help="a checkout (default: this one)")
    run.set_defaults(command=_run)
    table = verbs.add_parser("table", help="print what the runs came to")
    table.add_argument("--tree", metavar="HASH", help="of the package (default: all, one after the other)")
    table.set_defaults(command=lambda options: print(report(read(options.file), options.tree)))
    for verb in (run, table):
        verb.add_argument("--file", type=Path, default=FILE, help="what runs are kept in (default: %(default)s)")
    return parser


def _run(options: argparse.Namespace) -> None:
    every = {**CELLS, **SUITES}
    cells = [every[options.cell]] if options.cell else [*(every if options.suites else CELLS).values()]
    if not options.file.parent.is_dir():
        raise SettingError(f"--file {options.file}: there is no folder {options.file.parent}")
    package = options.package.resolve()
    bench = Bench(options.file, package, tree_of(package), machine_here())
    for each in made(bench, cells, time.monotonic() + 60 * options.minutes, options.number):
        first, verdicts = each[0], Counter(one.verdict for one in each)
        why = f" (left out: {first.left_out})" if first.left_out else ""
        found = ", ".join(f"{times} {verdict}" for verdict, times in verdicts.items())
        print(f"{first.began} {first.cell} #{first.number}: {found}, {first.seconds:.0f} s{why}", flush=True)


if __name__ == "__main__":
    main()
