"""``ddpperf advise``: finds the best strategy, precision and batch size for training a workload."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import traceback
from contextlib import closing
from pathlib import Path
from typing import Any

from pytest_ddpperf.cli.options import add_folder, add_option
from pytest_ddpperf.errors import SettingError, in_a_line
from pytest_ddpperf.parsers import byte_count, closest, positive_int
from pytest_ddpperf.planner.advising import PRECISIONS, STRATEGIES, advised
from pytest_ddpperf.planner.predicting import Predictor
from pytest_ddpperf.reports import calls, progress, table
from pytest_ddpperf.run.call.requests import VerbCall
from pytest_ddpperf.run.session.session import Session
from pytest_ddpperf.settings import ACCELERATORS, CLUSTERS, Settings, overlay

CLUSTER = ("network", "accelerator", "ranks_per_node")  # settings of predictions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    text = "a Workload in a file of Python or in a module, or a function batch_size -> Workload"
    parser.add_argument("workload", metavar="FILE.py:NAME", help=text)
    add_option(parser, "--world-size", positive_int, "N", "number of ranks", required=True)
    add_cluster(parser, "the one that ddpperf network has stored")
    text = "memory of a rank, such as 80GB (default: the accelerator's memory, else no limit)"
    add_option(parser, "--memory", byte_count, "BYTES", text)
    text = f"strategies, separated by commas (default: {','.join(STRATEGIES)})"
    # Not at commas between the brackets of options.
    add_option(parser, "--strategies", lambda names: re.split(r"[,;](?![^\[]*\])", str(names)), "NAMES", text)
    text = f"precisions, separated by commas (default: {','.join(PRECISIONS)})"
    add_option(parser, "--precisions", lambda names: str(names).split(","), "NAMES", text)
    text = "batch sizes of a rank, for a function batch_size -> Workload"
    add_option(parser, "--batch-sizes", lambda sizes: [*map(positive_int, str(sizes).split(","))], "N[,N...]", text)
    add_option(parser, "--timeout", str, "TIME", "deadline of a launch", default="600s")
    add_folder(parser)
    parser.set_defaults(run=run)


def add_cluster(parser: argparse.ArgumentParser, network: str) -> None:
    """Declares the options that describe a cluster; the help text names ``network`` as the default network."""
    add = parser.add_argument
    add("--network", choices=CLUSTERS, help=f"network to predict for (default: {network})")
    add("--accelerator", choices=ACCELERATORS, help="accelerator to predict for (default: time this machine)")
    add_option(parser, "--ranks-per-node", positive_int, "N", "ranks on each node (default: 8)")


def run(options: argparse.Namespace) -> int:
    """Prints a table of all candidates; returns the exit status, 1 if no candidate fits or could be predicted."""
    subject = _found(options.workload)
    names = ("world_size", "timeout", *CLUSTER)
    given = {"baseline_dir": options.folder.resolve(), **{name: getattr(options, name) for name in names}}
    given = {name: value for name, value in given.items() if value is not None}
    settings = overlay(Settings(), given, lambda knob, raw: f"{knob.name}={raw}")
    asked = {name: getattr(options, name) for name in ("strategies", "precisions", "batch_sizes", "memory")}
    with closing(Session(settings, Path.cwd(), progress.command_line())) as session:
        found = advised(Predictor(session, "", []), VerbCall(settings=settings, knobs=given), subject, **asked)
    print(table.render(calls.advice_table(found), table.terminal_width()))
    if found.best is None:
        if any(candidate.fits for candidate in found.candidates):
            print("no candidate could be timed here: give --accelerator and --network")
        else:
            print("no candidate fits in memory: use more ranks, a smaller batch or activation_checkpointing=true")
        return 1
    print(calls.best_line(found))
    return 0


def _reason(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return f"there is no module {error.name!r}: install it, or name a file or module that can be imported from here"
    told = in_a_line(error)
    if isinstance(error, SyntaxError):  # which names the line
        return told
    passed = ("<frozen", __file__, importlib.__file__)
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(passed)]
    where = f" in line {lines[0]}" if lines else ""
    return f"{told}{where}; the file may only define the workload, and nothing may run outside of functions"


def _found(named: str) -> Any:
    """Returns the object that ``FILE.py:NAME`` or ``MODULE:NAME`` names; ranks must be able to import its module."""
    where, _, name = named.rpartition(":")
    if not where or not name.isidentifier():
        raise SettingError(f"{named!r}: expected FILE.py:NAME or MODULE:NAME, such as train.py:workload")
    file = Path(where)
    module, place = (file.stem, file.resolve().parent) if where.endswith(".py") else (where, Path.cwd())
    if where.endswith(".py") and not file.is_file():
        raise SettingError(f"{named!r}: there is no file {file}")
    sys.path.insert(0, str(place))
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise SettingError(f"{named!r}: {module} cannot be imported: {_reason(error)}") from error
    other = getattr(found, "__file__", None) or "built into Python"
    if where.endswith(".py") and Path(other).resolve() != file.resolve():
        raise SettingError(f"{named!r}: the name {module} imports another module, {other}; rename the file")
    if not hasattr(found, name):
        meant = closest(name, vars(found))
        raise SettingError(f"{named!r}: {module} has no {name}{': ' * bool(meant)}{meant}")
    return getattr(found, name)
