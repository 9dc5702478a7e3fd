"""Real runs against another commit, of what is counted and of the example suite: how often they are right, how long.

    python benchmarks/against.py run --data runs.json.gz
    python benchmarks/against.py run --data suite.json.gz --changes perf_tests --budget 9min --runs 10
    python benchmarks/against.py report --data runs.json.gz

``run`` makes a throw-away git project whose benchmark trains under DDP with two gloo ranks, and whose branches are
slower by 10 %, send one all-reduce more, or hold 12 MiB more than the base. It runs pytest there against another branch
(the base also against itself), with default settings, in rounds of nine runs in random order, for an hour, and keeps
every run's figures; it may be called again to add more. Where the step is only slower, nothing is counted
(``--ddpperf-counted=false``): counts would tell at once. ``--changes perf_tests`` runs the example suite of this
checkout against its own commit. ``--load N`` has N other processes compute beside the runs. ``report`` prints what the
runs came to, those of several files together. What small and large slowdowns come to: ``verdicts_real.py``.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
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
    run.add_argument("--changes", nargs="+", metavar="NAME", help="default: all but perf_tests; ? lists them")
    run.add_argument("--length", default="12ms", choices=LENGTHS, help="of steps (default: %(default)s)")
    run.add_argument("--max-time", type=float, metavar="S", help="of a benchmark (default: the plugin's own)")
    run.add_argument("--budget", default="", metavar="TIME", help="of a whole run: 5min (default: none)")
    run.add_argument("--load", type=int, default=0, metavar="N", help="busy processes beside the runs (default: 0)")
    run.add_argument("--seed", type=int, default=0, help="of the order (default: %(default)s)")
    run.set_defaults(command=_run)
    told = verbs.add_parser("report", help="print what the runs came to")
    told.add_argument("--data", type=Path, nargs="+", required=True, help="what run has written, of one machine")
    told.set_defaults(command=_report)
    return parser


def _run(options: argparse.Namespace) -> None:
    changes, terms = picked(options.changes), _terms(options)
    old = read(options.data) if options.data.exists() else None
    here = _here(terms.length, {} if old is None else old.calibrations)
    if old is not None:
        require_same(options.data, old, here)
        here = replace(old, calibrations={**old.calibrations, **here.calibrations})
    order = islice(in_turn(changes, f"{options.seed} {len(here.runs)}"), options.runs)
    until = time.monotonic() + 60 * (options.minutes or MINUTES)
    with tempfile.TemporaryDirectory(prefix="ddpperf-real-runs-") as folder:
        project = Path(folder) / "project"
        make_project(project, terms.length, here.calibrations[terms.length])
        for run in made(project, order, terms):
            here = replace(here, runs=(*here.runs, run))
            write(here, options.data)
            verdicts = ", ".join(result["verdict"] for result in run.results)
            print(f"{run.began} {run.change}: {verdicts} ({run.seconds:.0f} s)", flush=True)
            if time.monotonic() >= until:
                break


def _terms(options: argparse.Namespace) -> Terms:
    """What runs are made under; options that do not go together are refused."""
    limits = (options.minutes, options.runs, options.max_time)
    if options.load < 0 or any(limit is not None and limit <= 0 for limit in limits):
        raise SettingError("--minutes, --runs and --max-time take more than 0, --load 0 or more")
    if not options.data.parent.is_dir():
        raise SettingError(f"--data {options.data}: there is no folder {options.data.parent}")
    return Terms(options.length, options.max_time, options.load, options.budget)


def _here(length: str, known: Mapping[str, Calibration]) -> Runs:
    """A file without runs for this machine and version; what makes steps longer is measured unless it is known."""
    with launcher() as ranks:
        env = environment_here(ranks, RANKS)
        calibrations = {length: known.get(length) or calibrated(ranks, Cell(length, RANKS))}
    return Runs(environment_key(env), code_version(), calibrations)


def _report(options: argparse.Namespace) -> None:
    found = joined([read(file) for file in options.data])
    if not found.runs:
        sys.exit(f"{', '.join(map(str, options.data))}: there are no runs in it yet")
    print(report(found))


if __name__ == "__main__":
    main()
