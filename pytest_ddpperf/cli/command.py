"""The command ``ddpperf``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from pytest_ddpperf.baselines.codec import BaselineFile
from pytest_ddpperf.baselines.store import Store
from pytest_ddpperf.cli import cluster, history, report
from pytest_ddpperf.cli.bisect import command as bisection
from pytest_ddpperf.cli.init import command as init_command
from pytest_ddpperf.cli.options import add_folder, add_option, project
from pytest_ddpperf.errors import BaselineError, DdpperfError
from pytest_ddpperf.launch.environment import current_folder
from pytest_ddpperf.parsers import set_name, several, whole_number, world_sizes
from pytest_ddpperf.records.results import BaselineRecord
from pytest_ddpperf.reports import lines, table
from pytest_ddpperf.reports.stored import list_tables, record_table
from pytest_ddpperf.settings import KNOBS, Settings, overlay

FAILED = 2  # the exit status, as of argparse for wrong arguments
INTERRUPTED = 130  # as of a shell for a command that Ctrl-C ends


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command ``ddpperf`` with these arguments (default: sys.argv); returns the exit status."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not options.passes_on:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = [word for word in rest if word != "--"]
    status = 0
    try:
        current_folder()
        if "baselines" in options:
            options.folder, options.set_name = _place(options)
        status = options.run(options)
        sys.stdout.flush()
    except DdpperfError as error:
        return _failed(error)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would complain once more at exit
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    except (OSError, MemoryError) as error:  # of a file that no command expects, such as one whose name is too long
        return _failed(DdpperfError(f"{str(error) or 'a file is too large'}; name another file or folder"))
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ddpperf",
        description="Shows and compares stored results, calibrates benchmarks, measures networks, and predicts steps.",
    )
    parser.add_argument("--version", action="version", version=f"ddpperf {version('pytest-ddpperf')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (text, add_arguments) in COMMANDS.items():
        subparser = commands.add_parser(name, help=text, description=text)
        add_arguments(subparser)
        subparser.set_defaults(passes_on=not subparser.allow_abbrev)
    return parser


def _add_store(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    add_folder(parser)
    default = f"{KNOBS['baseline_set'].ini} of the ini file, else the unnamed set"
    add_option(parser, "--set", set_name, "NAME", f"named set of baselines (default: {default})")
    parser.set_defaults(run=run)


def _add_show(parser: argparse.ArgumentParser) -> None:
    text = "a test's node id, a part of a test's or variant's name, or a baseline file"
    parser.add_argument("test", metavar="TEST|FILE", help=text)
    _add_store(parser, _show)


def _list(options: argparse.Namespace) -> int:
    """Lists all readable baselines and reports unreadable ones; returns the exit status, 0 if all are readable."""
    store = _store(options)
    files = store.files()
    contents: list[BaselineFile] = []
    for file in files:
        try:
            contents.append(store.read(file))
        except BaselineError as error:  # noqa: PERF203 - the others are listed
            _failed(error)
    if contents:
        print("\n\n".join(table.render(each, table.terminal_width()) for each in list_tables(contents)))
    elif not files:
        print(lines.printable(f"no baselines in {store.folder}; pytest --ddpperf-save stores some"))
    return 0 if len(contents) == len(files) else FAILED


def _show(options: argparse.Namespace) -> int:
    chosen = _chosen(options.test, options)
    shown = ((record_table(*each), history.stale(*each, save=options.set)) for each in chosen)
    print("\n\n".join(table.render(each, table.terminal_width()) + stale for each, stale in shown))
    return 0


def _chosen(text: str, options: argparse.Namespace) -> list[tuple[str, BaselineRecord]]:
    """Returns (test, baseline) pairs of file or test ``text``, else of tests or benchmarks that contain ``text``."""
    if Path(text).suffix == ".json" and Path(text).is_file():
        content = Store(options.folder, options.set_name).read(Path(text).absolute())
        return [(content.test, record) for record in content.records]
    store = _store(options)
    stored = [(content.test, record) for content in map(store.read, store.files()) for record in content.records]
    chosen = [(test, record) for test, record in stored if test == text]
    chosen = chosen or [(test, record) for test, record in stored if text in f"{test} {record.name}"]
    if not chosen:
        raise BaselineError(f"no baseline in {store.folder} has {text} in its name; ddpperf list shows all names")
    return chosen


def _place(options: argparse.Namespace) -> tuple[Path, str]:
    """Returns the folder of the baselines and the name of their set, from options or the project's ini file."""
    folder, name = options.baselines, getattr(options, "set", None)
    root, ini = project(Path.cwd()) if None in {folder, name} else (Path(), {})
    if folder is None:
        folder = Path(os.path.relpath(root / str(ini.get(KNOBS["baseline_dir"].ini) or Settings().baseline_dir)))
    if name is None:
        given = {"baseline_set": value} if (value := ini.get(KNOBS["baseline_set"].ini)) else {}
        name = overlay(Settings(), given, lambda knob, raw: f"{knob.ini} = {raw}").compared
    return folder, name


def _store(options: argparse.Namespace) -> Store:
    store = Store(options.folder, options.set_name)
    if not store.folder.is_dir():
        reason = f"the folder of baselines {store.folder} does not exist"
        cure = "write baselines with pytest --ddpperf-save, or name another folder with --baselines"
        raise BaselineError(f"{reason}; {cure}")
    return store


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.usage = "ddpperf calibrate [-h] [--runs N] [TESTS and options of pytest, such as -k small ...]"
    add_option(parser, "--runs", several, "N", "how often each benchmark is measured", default=5)
    parser.set_defaults(run=lambda options: _become_pytest({"calibrate": options.runs}, options.rest))
    parser.allow_abbrev = False


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    parser.usage = "ddpperf simulate [-h] --world-size N[,N...] [options] [TESTS and options of pytest ...]"
    text = "numbers of ranks, such as 8,64,1024"
    add_option(parser, "--world-size", world_sizes, "N[,N...]", text, required=True)
    add_option(parser, "--rank", whole_number, "N", "the rank", default=0)
    cluster.add_cluster(parser, "none, which predicts no times")
    parser.set_defaults(run=_simulate)
    parser.allow_abbrev = False


def _simulate(options: argparse.Namespace) -> int:
    sizes = ",".join(map(str, options.world_size))
    chosen = {name: getattr(options, name) for name in cluster.CLUSTER}
    _become_pytest({"simulate": sizes, "simulate_rank": options.rank, **chosen}, options.rest)


def _become_pytest(settings: Mapping[str, object], arguments: Sequence[str]) -> NoReturn:
    """Replaces this process by pytest with these settings and arguments, so that pytest imports its plugins itself."""
    given = [f"-o{KNOBS[name].ini}={value}" for name, value in settings.items() if value is not None]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *given, *arguments])  # noqa: S606 - no shell is wanted


def _failed(error: DdpperfError) -> int:
    print(*lines.wrapped(f"ddpperf: error: {error}".split("\n"), None), sep="\n", file=sys.stderr)
    return FAILED


COMMANDS: Mapping[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "init": ("write a first test file, and a CI job, for the project in this folder", init_command.add_arguments),
    "list": ("list the stored baselines", lambda parser: _add_store(parser, _list)),
    "show": ("show all metrics of a stored baseline", _add_show),
    "report": ("make reports from the JSON file of a run", report.add_report_arguments),
    "compare": ("show how far the metrics of two runs differ", report.add_compare_arguments),
    "schema": ("print the JSON schema of the results of a run, or of a trend", report.add_schema_arguments),
    "trend": ("show a metric over commits, and the commits that changed it", history.add_trend_arguments),
    "history": (
        "add runs from JSON files to a history, or print the history of one benchmark as CSV",
        history.add_history_arguments,
    ),
    "calibrate": (
        "compare benchmarks with themselves, to see their false alarms and the slowdowns that they can find",
        _add_calibrate,
    ),
    "network": (
        "measure collectives of many sizes, fit and store their costs, and name slow ranks and links",
        cluster.add_network_arguments,
    ),
    "simulate": ("count the operations of one rank in a group of any number of ranks, in one process", _add_simulate),
    "advise": (
        "say which strategy, precision and batch size to train with, on any number of ranks",
        cluster.add_advise_arguments,
    ),
    "trace": ("summarise the traces of ranks, or compare two runs", report.add_trace_arguments),
    "bisect": ("find the commit or package that made a benchmark worse, by side-by-side runs", bisection.add_arguments),
}
"""By name, the help text of each subcommand, and a function that declares its arguments and its function ``run``.

A subcommand whose options may not be abbreviated gets unknown arguments as ``rest``, and passes them on to pytest.
"""
