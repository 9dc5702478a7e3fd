"""Real runs against another commit, or a stored baseline: how often they are right, and how long they take.

    python benchmarks/against.py run --data runs.json.gz
    python benchmarks/against.py report --data runs.json.gz

``run`` makes a throw-away git project whose benchmark trains under DDP with two gloo ranks, and whose branches are
slower by 5 or 10 %, send one all-reduce more, or hold 12 MiB more than the base. It runs pytest there against another
branch (the base also against itself), and beside a baseline that was stored on the base up to five such runs before,
with default settings, in rounds of 18 runs in random order, for an hour, and keeps every run's figures; it may be
called again to add more. Where the step is only slower, nothing is counted
(``--ddpperf-counted=false``): counts would tell at once. ``--changes perf_tests`` runs the example suite of this
checkout against its own commit instead. ``report`` prints what the runs came to, those of several files together.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.quality.conditions import Calibration
    from benchmarks.quality.runs import Runs


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality
    options = _parser().parse_args()
    from benchmarks.quality.launches import BrokenFile
    from benchmarks.quality.runs import RunError
    from pytest_ddpperf.errors import DdpperfError
    from pytest_ddpperf.revision.git import GitError

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
    run.add_argument("--minutes", type=_positive, default=60, help="after which no run is begun (default: %(default)s)")
    run.add_argument("--runs", type=_positive, help="no more than so many")
    run.add_argument("--changes", nargs="+", metavar="NAME", help="default: all but perf_tests; ? lists them")
    run.add_argument("--length", default="12ms", metavar="NAME", help="of the step: 4ms, 12ms, 78ms (default: 12ms)")
    run.add_argument("--seed", type=int, default=0, help="of the order (default: %(default)s)")
    run.set_defaults(command=_run)
    report = verbs.add_parser("report", help="print what the runs came to")
    report.add_argument("--data", type=Path, nargs="+", required=True, help="what run has written, of one machine")
    report.set_defaults(command=_report)
    return parser


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: takes more than 0")
    return number


def _run(options: argparse.Namespace) -> None:
    from benchmarks.quality.conditions import LENGTHS
    from benchmarks.quality.project import CHANGES, make_project
    from benchmarks.quality.runs import (
        STORED_RUNS,
        SUITE,
        in_turn,
        read,
        require_same,
        run_change,
        run_suite,
        save_baseline,
        write,
    )
    from pytest_ddpperf.errors import SettingError

    changes = options.changes or list(CHANGES)
    for setting, given, there in (
        ("--changes", changes, (*CHANGES, SUITE)),
        ("--length", [options.length], tuple(LENGTHS)),
    ):
        for name in given:
            if name not in there:
                raise SettingError(f"{setting} {name!r}: there are {', '.join(map(repr, there))}")
    if not options.data.parent.is_dir():
        raise SettingError(f"--data {options.data}: there is no folder {options.data.parent}")
    old = read(options.data) if options.data.exists() else None
    here = _here(options.length, None if old is None else old.calibrations.get(options.length))
    if old is not None:
        require_same(options.data, old, here)
        here = replace(old, calibrations={**old.calibrations, **here.calibrations})
    order = in_turn(changes, f"{options.seed} {len(here.runs)}")
    until, made, stored = time.monotonic() + 60 * options.minutes, 0, 0
    with tempfile.TemporaryDirectory(prefix="ddpperf-real-runs-") as folder:
        project = Path(folder) / "project"
        make_project(project, options.length, here.calibrations[options.length])
        while time.monotonic() < until and (options.runs is None or made < options.runs):
            name = next(order)
            if name != SUITE and CHANGES[name].against is None:
                if stored % STORED_RUNS == 0:
                    save_baseline(project, options.length)
                stored += 1
            one = run_suite() if name == SUITE else run_change(project, CHANGES[name], options.length)
            here = replace(here, runs=(*here.runs, one))
            write(here, options.data)
            made += 1
            told = ", ".join(result["verdict"] for result in one.results)
            print(f"{one.began} {name}: {told} ({one.seconds:.0f} s)", flush=True)


def _here(length: str, known: Calibration | None) -> Runs:
    """A file without runs for this machine and version; what makes a step longer is measured unless it is known."""
    from benchmarks.quality.gather import calibrated
    from benchmarks.quality.launches import Cell
    from benchmarks.quality.runs import RANKS, Runs, code_version
    from pytest_ddpperf.baselines.fingerprint import environment, environment_key
    from pytest_ddpperf.baselines.machine import machine_facts
    from pytest_ddpperf.launch import Launcher
    from pytest_ddpperf.launch.environment import thread_count

    with Launcher(preload=("benchmarks.quality.steps",)) as launcher:
        env = environment(
            machine_facts(),
            device="cpu",
            backend="gloo",
            world_size=RANKS,
            threads=thread_count(dict(os.environ)),
            torch_version=launcher.machine().torch,
        )
        calibration = known or calibrated(launcher, Cell(length, RANKS))
    return Runs(environment_key(env), code_version(), {length: calibration})


def _report(options: argparse.Namespace) -> None:
    from benchmarks.quality.runs import joined, read
    from benchmarks.quality.runs_report import report

    found = joined([read(file) for file in options.data])
    if not found.runs:
        sys.exit(f"{', '.join(map(str, options.data))}: there are no runs in it yet")
    print(report(found))


if __name__ == "__main__":
    main()
