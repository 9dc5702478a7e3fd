"""How often 95 % intervals cover the truth, and what launches scatter by: recorded, and simulated.

    python benchmarks/intervals.py record --file pairs.jsonl.gz --minutes 10 --length 12ms
    python benchmarks/intervals.py report

``record`` launches a training step (DDP, two gloo ranks), again and again: a pair of the same that takes turns, and one
that runs alone, in random order; it adds to the file if it is there. ``report`` reads such files and those of
``verdict_quality.py gather``, by default all that lie in ``benchmarks/results``, and prints

- how often intervals of pairs cover 0, with what their blocks tell and by the launches alone, and how often either side
  of them errs at a test's level,
- what pairs scatter by, what their blocks make of it, and what is left as a launch's own part (``OWN_IN_TURNS``),
- the same of launches that ran alone (``OWN_ALONE``), by how much stretches of them deviate beyond what their launches
  explain, and how often the interval between two such stretches covers 0 (``DRIFT``),
- by simulation, what launches that add far more or far less of their own than is assumed make of intervals, for several
  values of ``CERTAINTY``, and how often launches deny what is expected of them (``DENIED``).
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.quality.launches import Campaign

RESULTS = Path(__file__).parent / "results"
RANKS = 2
WIDTH = 120


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality; ranks get this path as well
    options = _parser().parse_args()
    from benchmarks.quality.launches import BrokenFile
    from pytest_ddpperf.errors import DdpperfError

    try:
        options.command(options)
    except (BrokenFile, DdpperfError, OSError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("stopped; what was recorded so far is in the file")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, metavar="record|report")
    record = verbs.add_parser("record", help="measure pairs and launches alone, and keep them")
    record.add_argument("--file", type=Path, required=True, help="if it is there, launches are added")
    record.add_argument("--minutes", type=float, default=10, help="how long, calibration apart (default: %(default)s)")
    record.add_argument("--length", default="12ms", metavar="NAME", help="of the step (default: %(default)s)")
    record.set_defaults(command=_record)
    report = verbs.add_parser("report", help="print what the recorded launches and the simulations say")
    report.add_argument("files", type=Path, nargs="*", help="(default: those in benchmarks/results)")
    report.add_argument("--runs", type=int, default=20_000, help="simulated ones of each kind (default: %(default)s)")
    report.set_defaults(command=_report)
    return parser


def _record(options: argparse.Namespace) -> None:
    from benchmarks.quality.conditions import LENGTHS, UNCHANGED, Condition
    from benchmarks.quality.gather import Wanted, gather
    from benchmarks.quality.launches import Cell
    from pytest_ddpperf.errors import SettingError

    if options.length not in LENGTHS:
        raise SettingError(f"--length {options.length}: there are {', '.join(LENGTHS)}")
    same = Condition(UNCHANGED, alarm=False)
    wanted = Wanted((Cell(options.length, RANKS),), (same,), 60 * options.minutes)
    gather(options.file, wanted, environ=dict(os.environ))


def _report(options: argparse.Namespace) -> None:
    from benchmarks.quality.intervals_report import tables
    from benchmarks.quality.launches import read
    from pytest_ddpperf.reports.terminal import render

    files = options.files or sorted([*RESULTS.glob("verdict_quality*.jsonl.gz"), *RESULTS.glob("pairs*.jsonl.gz")])
    campaigns = {file.name.removesuffix(".jsonl.gz").removeprefix("verdict_"): read(file) for file in files}
    print(head(campaigns))
    for table in tables(campaigns, options.runs):
        print(f"\n{render(table, WIDTH)}", flush=True)


def head(campaigns: Mapping[str, Campaign]) -> str:
    """The date, the machines, and what was recorded."""
    from pytest_ddpperf.baselines.fingerprint import environment_key

    machines = {environment_key(env) for one in campaigns.values() for env in one.environments.values()}
    lines = [f"python benchmarks/intervals.py report, {dt.datetime.now(tz=dt.timezone.utc):%Y-%m-%d}"]
    lines += [f"recorded on {machine}" for machine in sorted(machines)]
    for name, one in campaigns.items():
        turns = sum(launch.pair is not None for launch in one.launches) // 2
        lines.append(
            f"{name}: {turns} pairs in turns, {len(one.launches) - 2 * turns} launches alone, {one.began[:16]}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
