"""Real runs against another commit, or a stored baseline: how often they are right, and how long they take.

    python benchmarks/against.py run --data runs.json.gz
    python benchmarks/against.py run --data gross.json.gz --changes gross --length 12ms 60ms --max-time 20 --each 20
    python benchmarks/against.py report --data runs.json.gz

``run`` makes a throw-away git project whose benchmark trains under DDP with two gloo ranks, and whose branches are
slower by 5 or 10 %, send one all-reduce more, or hold 12 MiB more than the base. It runs pytest there against another
branch (the base also against itself), and beside a baseline that was stored on the base up to five such runs before,
with default settings, in rounds of 18 runs in random order, for an hour, and keeps every run's figures; it may be
called again to add more. Where the step is only slower, nothing is counted
(``--ddpperf-counted=false``): counts would tell at once. ``--changes gross`` makes it slower by 20, 50 or 100 %
instead, beside the base and beside a stored baseline; ``--changes perf_tests`` runs the example suite of this checkout
against its own commit. Given several lengths, each run measures steps of all of them, in benchmarks of their own.
``--load N`` has N other processes compute beside the runs, but not while a baseline is stored; with ``--others``
these are processes that run already, such as a simulation. ``--project FOLDER``
keeps the project and the baseline that the first call stores there: calls that take turns have one baseline, whose age
each run tells. ``report`` prints what the runs came to, those of several files together.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality

from benchmarks.quality.campaign import BrokenFile, Cell
from benchmarks.quality.project import RunError, make_project, picked
from benchmarks.quality.record import calibrated, environment_here
from benchmarks.quality.runs import RANKS, Runs, Terms, code_version, in_turn, joined, made, read, require_same, write
from benchmarks.quality.runs_report import report
from benchmarks.quality.steps import LENGTHS, Calibration
from benchmarks.quality.verdicts import launcher
from pytest_ddpperf.against.git import GitError
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.errors import DdpperfError, SettingError

MINUTES = 60.0


def main() -> None:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # pytest is ended as well
    try:
        options.command(options)
    except (BrokenFile, RunError, GitError, DdpperfError, OSError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("stopped; the runs that were written so far can be reported, and added to")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, metavar="run|report")
    run = verbs.add_parser("run", help="run pytest and keep what it found")
    run.add_argument("--data", type=Path, required=True, help="the file; if it is there, runs are added")
    run.add_argument("--minutes", type=float, help=f"after which no run is begun (default: {MINUTES:g})")
    run.add_argument("--runs", type=int, metavar="N", help="no more than so many")
    run.add_argument("--each", type=int, metavar="N", help="in place of these two: so many runs of each change")
    run.add_argument(
        "--changes", nargs="+", metavar="NAME", help="default: all but those of gross, and perf_tests; ? lists them"
    )
    run.add_argument(
        "--length", nargs="+", default=["12ms"], metavar="NAME", help="of steps: 4ms, 12ms, 60ms, 78ms (default: 12ms)"
    )
    run.add_argument("--max-time", type=float, metavar="S", help="of a benchmark (default: the plugin's own)")
    run.add_argument("--budget", default="", metavar="TIME", help="of a whole run: 5min (default: none)")
    run.add_argument("--project", type=Path, metavar="FOLDER", help="kept with its baseline (default: a temporary one)")
    run.add_argument("--load", type=int, default=0, metavar="N", help="busy processes beside the runs (default: 0)")
    run.add_argument("--others", action="store_true", help="those of --load run already: none is started")
    run.add_argument("--seed", type=int, default=0, help="of the order (default: %(default)s)")
    run.set_defaults(command=_run)
    told = verbs.add_parser("report", help="print what the runs came to")
    told.add_argument("--data", type=Path, nargs="+", required=True, help="what run has written, of one machine")
    told.set_defaults(command=_report)
    return parser


def _run(options: argparse.Namespace) -> None:
    changes = picked(options.changes)
    terms = _terms(options)
    old = read(options.data) if options.data.exists() else None
    here = _here(terms.lengths, {} if old is None else old.calibrations)
    if old is not None:
        require_same(options.data, old, here)
        here = replace(old, calibrations={**old.calibrations, **here.calibrations})
    order = in_turn(changes, f"{options.seed} {len(here.runs)}", alike=options.each is not None)
    number = options.runs if options.each is None else options.each * len(changes)
    until = float("inf") if options.each else time.monotonic() + 60 * (options.minutes or MINUTES)
    with tempfile.TemporaryDirectory(prefix="ddpperf-real-runs-") as folder:
        project = options.project or Path(folder) / "project"
        if not project.exists():
            make_project(project, {length: here.calibrations[length] for length in terms.lengths})
        for run in made(project, islice(order, number), terms, kept=options.project is not None):
            here = replace(here, runs=(*here.runs, run))
            write(here, options.data)
            verdicts = ", ".join(result["verdict"] for result in run.results)
            print(f"{run.began} {run.change}: {verdicts} ({run.seconds:.0f} s)", flush=True)
            if time.monotonic() >= until:
                break


def _terms(options: argparse.Namespace) -> Terms:
    """What runs are made under; options that do not go together are refused."""
    unknown = [name for name in options.length if name not in LENGTHS]
    if unknown:
        raise SettingError(f"--length {unknown[0]!r}: there are {', '.join(map(repr, LENGTHS))}")
    if options.each is not None and (options.minutes or options.runs):
        raise SettingError("--each tells how many runs there are: give it without --minutes and --runs")
    limits = (options.minutes, options.runs, options.each, options.max_time)
    if options.load < 0 or any(limit is not None and limit <= 0 for limit in limits):
        raise SettingError("--minutes, --runs, --each and --max-time take more than 0, --load 0 or more")
    if options.others and not options.load:
        raise SettingError("--others tells that the processes of --load run already: give it with --load")
    if options.project is not None and options.project.exists() != options.data.exists():
        raise SettingError(
            f"--project {options.project}: give it with the --data file that it was made for, or new ones"
        )
    if not options.data.parent.is_dir():
        raise SettingError(f"--data {options.data}: there is no folder {options.data.parent}")
    lengths = tuple(dict.fromkeys(options.length))
    return Terms(lengths, options.max_time, options.load, options.budget, options.others)


def _here(lengths: Sequence[str], known: Mapping[str, Calibration]) -> Runs:
    """A file without runs for this machine and version; what makes steps longer is measured unless it is known."""
    with launcher() as ranks:
        env = environment_here(ranks, RANKS)
        calibrations = {length: known.get(length) or calibrated(ranks, Cell(length, RANKS)) for length in lengths}
    return Runs(environment_key(env), code_version(), calibrations)


def _report(options: argparse.Namespace) -> None:
    found = joined([read(file) for file in options.data])
    if not found.runs:
        sys.exit(f"{', '.join(map(str, options.data))}: there are no runs in it yet")
    print(report(found))


if __name__ == "__main__":
    main()
