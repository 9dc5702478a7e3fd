"""``ddpperf network`` and ``ddpperf advise``: measure collectives between ranks, and find the best way to train."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from pytest_ddpperf.baselines.network import network_file, read_network, save_network
from pytest_ddpperf.cli.options import add_folder, add_option
from pytest_ddpperf.errors import BaselineError, RanksTimedOut, SettingError, extended, in_a_line
from pytest_ddpperf.instruments.deadlines import watched
from pytest_ddpperf.instruments.host import interface_speeds
from pytest_ddpperf.launch.context import BACKENDS, DEVICES
from pytest_ddpperf.launch.environment import thread_variables
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.parsers import byte_count, closest, duration, positive_int, sizes_of_groups
from pytest_ddpperf.planner import hardware, network, slowness
from pytest_ddpperf.planner.advising import PRECISIONS, STRATEGIES, advised
from pytest_ddpperf.planner.predicting import Predictor
from pytest_ddpperf.records.measurement import Environment
from pytest_ddpperf.records.network import COLLECTIVES, CollectiveFit, RankSweep, SweepPlan
from pytest_ddpperf.reports import calls, files, lines, phrases, progress, table
from pytest_ddpperf.run.call.requests import VerbCall
from pytest_ddpperf.run.session.session import Session
from pytest_ddpperf.settings import ACCELERATORS, CLUSTERS, Settings, overlay
from pytest_ddpperf.units import format_count, format_percent, format_value, significant

_AUTO = "auto"


def add_network_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``ddpperf network``."""
    text = "numbers of ranks, each at least 2 (default: one per GPU, else 2)"
    add_option(parser, "--world-size", sizes_of_groups, "N[,N...]", text)
    text = f"collectives to measure, separated by commas (default: {','.join(COLLECTIVES)})"
    add_option(parser, "--collectives", lambda names: tuple(str(names).split(",")), "NAMES", text)
    add_option(parser, "--min-size", byte_count, "BYTES", "smallest size", default="1KiB")
    add_option(parser, "--max-size", byte_count, "BYTES", "largest size", default="32MiB")  # above DDP's buckets
    add_option(parser, "--rounds", positive_int, "N", "rounds; each measures all sizes", default=10)
    add = parser.add_argument
    add("--device", choices=DEVICES, default=_AUTO, help="device of the ranks (default: %(default)s)")
    add("--backend", choices=BACKENDS, default=_AUTO, help="backend of the process group (default: %(default)s)")
    add_option(parser, "--timeout", duration, "TIME", "deadline for each number of ranks", default="300s")
    add(
        "--check",
        nargs="?",
        const=_AUTO,
        choices=(_AUTO, *hardware.HARDWARE),
        metavar="LINK",
        help="report slow ranks, links and interfaces, and a busbw below half of LINK's bandwidth (default: the GPUs' "
        f"link; known: {', '.join(hardware.HARDWARE)}). The exit status is 1 if there is a fault",
    )
    add_option(parser, "--predict", byte_count, "BYTES", "print each collective's time at this size by the stored fit")
    add("--no-save", action="store_true", help="store nothing, as with --check")
    add_folder(parser)
    parser.set_defaults(run=measure)


def measure(options: argparse.Namespace) -> int:
    """Measures the network, prints and stores the result; returns the exit status: 1 if ``--check`` finds a fault."""
    names = tuple(dict.fromkeys(options.collectives or COLLECTIVES))
    if not set(names) <= {*COLLECTIVES}:
        raise SettingError(f"--collectives={','.join(names)}: expected some of {', '.join(COLLECTIVES)}")
    if options.predict is not None and options.check is not None:
        raise SettingError("--check measures the network, and --predict uses a stored measurement: give one of them")
    found: list[str] = []
    with Launcher(threads=thread_variables(os.environ)) as launcher:
        for ranks in options.world_size or (max(len(launcher.machine().gpus.names), network.MIN_RANKS),):
            here = network.network_environment(launcher, ranks, options.device, options.backend)
            if options.predict is None:
                found += _measured(launcher, here, names, options)
            else:
                print(*_stored(here, names if options.collectives else None, options), sep="\n")
    return int(bool(found))


def _stored(here: Environment, names: Sequence[str] | None, options: argparse.Namespace) -> list[str]:
    """Returns a line for each collective in ``names`` (None: for all), with the time that the stored fit predicts."""
    file = network_file(options.folder, here)
    if (stored := read_network(file)) is None:
        measure = f"ddpperf network --world-size={here.world_size}"
        raise BaselineError(f"--predict: there is no stored fit {file}; measure this network with {measure}")
    size = format_value(options.predict, "B")
    return [
        f"{fit.collective} of {size}: {format_value(fit.seconds(options.predict), 's')}, "
        f"median error {format_percent(fit.error)}"
        for fit in (stored.fits if names is None else map(stored.fit, names))
    ]


def _measured(launcher: Launcher, here: Environment, names: tuple[str, ...], options: argparse.Namespace) -> list[str]:
    """Measures the network and prints the result; with ``--check``, returns lines on faults, else stores the result."""
    sizes = network.sizes_between(options.min_size, options.max_size, here.world_size)
    plan = SweepPlan(collectives=names, sizes=sizes, rounds=options.rounds)
    file = network_file(options.folder, here)
    if stores := not options.no_save and options.check is None:
        files.ensure_folder(file.parent, "--baselines")
    line = progress.command_line()
    what = f"{format_count(len(names), 'collective')} of {len(sizes)} sizes, {format_count(plan.rounds, 'round')}"
    line.show(f"measuring {format_count(here.world_size, 'rank')}: {what}")
    try:
        measured, ranks = network.measure_network(launcher, here, plan, options.timeout)
    except RanksTimedOut as error:
        raise extended(
            error,
            before=f"{here.world_size} ranks were not measured within --timeout={options.timeout:g} s; raise it, "
            "or give fewer --rounds or --collectives, or a smaller --max-size\n\n",
        ) from None
    finally:
        line.clear()
    print(table.render(network_table(here, measured.fits), table.terminal_width()))
    print(
        f"a collective usually takes {measured.usual:.2f} times its fastest time; during an all-reduce, computation "
        f"makes {format_percent(measured.taken)} less progress"
    )
    found: list[str] = []
    if options.check is not None:
        found = _check_lines(here, measured.fits, ranks, options.check, launcher.machine().gpus.names)
        print(*lines.wrapped(found or ["check: nothing found"], table.terminal_width()), sep="\n")
    if stores:
        save_network(file, measured)
        print(lines.printable(f"stored in {file}"))
    elif not options.no_save:
        print(lines.printable(f"--check stores nothing; without --check the fit is stored in {file}"))
    return found


def _check_lines(
    here: Environment, fits: Sequence[CollectiveFit], ranks: Sequence[RankSweep], check: str, gpus: Sequence[str]
) -> list[str]:
    """Returns a sentence for each reason why a network is slow; ``check``: the type of link, or ``auto``."""
    best = max(fits, key=lambda fit: network.largest_bandwidths(fit)[1])
    link = hardware.link_of(here.device, gpus) if check == _AUTO else check
    on_cores = here.device == "cpu" and here.cores >= network.MIN_RANKS  # of ranks that share cores only links count
    slow = slowness.slow_links(ranks) if on_cores or not here.oversubscribed else []
    texts = (
        slowness.backend_line(here, len(gpus)),
        slowness.interface_line(os.environ, interface_speeds(), here.backend),
        *(slow if slow or here.oversubscribed else slowness.late_ranks(ranks)),
        "" if link is None else slowness.reach_line(best, link),
    )
    return [line for line in texts if line]


def network_table(environment: Environment, fits: Sequence[CollectiveFit]) -> table.Table:
    """Returns a table with a row for each collective: range of sizes, latency, bandwidths, and error of the fit."""
    return table.table_of(
        fits,
        {
            "collective": lambda fit: fit.collective,
            "sizes": lambda fit: " to ".join(format_value(end, "B") for end in (fit.min_bytes, fit.max_bytes)),
            "latency": lambda fit: format_value(fit.segments[0].latency, "s"),
            "algbw\nGB/s": lambda fit: significant(network.largest_bandwidths(fit)[0] / hardware.GB),
            "busbw\nGB/s": lambda fit: significant(network.largest_bandwidths(fit)[1] / hardware.GB),
            "lines": lambda fit: str(len(fit.segments)),
            "error\n%": lambda fit: format_percent(fit.error).removesuffix(" %"),
        },
        title=f"{phrases.environment_text(environment)}, {format_count(environment.world_size, 'rank')}",
        right=0,
        legend={
            "latency": "fitted time of an empty message; fits use the fastest call of each size, on its slowest rank",
            "algbw": "largest size divided by its time, as in nccl-tests",
            "busbw": "algbw converted to the load on each link, as in nccl-tests",
            "lines": "number of straight lines in the fit; with two, the first is for small messages",
            "error": "the median relative error at sizes that the fit did not use",
        },
    )


CLUSTER = ("network", "accelerator", "ranks_per_node")  # settings of predictions


def add_advise_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``ddpperf advise``."""
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
    text = "batch sizes of a rank to compare, if NAME is a function batch_size -> Workload"
    add_option(parser, "--batch-sizes", lambda sizes: [*map(positive_int, str(sizes).split(","))], "N[,N...]", text)
    add_option(parser, "--timeout", str, "TIME", "deadline of a launch", default="600s")
    add_folder(parser)
    parser.set_defaults(run=advise)


def add_cluster(parser: argparse.ArgumentParser, network: str) -> None:
    """Declares the options that describe a cluster; the help text names ``network`` as the default network."""
    add = parser.add_argument
    add("--network", choices=CLUSTERS, help=f"network to predict for (default: {network})")
    add("--accelerator", choices=ACCELERATORS, help="accelerator to predict for (default: time this machine)")
    add_option(parser, "--ranks-per-node", positive_int, "N", "ranks on each node (default: 8)")


def advise(options: argparse.Namespace) -> int:
    """Prints a table of all candidates; returns the exit status, 1 if no candidate fits or could be predicted."""
    names = ("world_size", "timeout", *CLUSTER)
    given = {"baseline_dir": options.folder.resolve(), **{name: getattr(options, name) for name in names}}
    given = {name: value for name, value in given.items() if value is not None}
    settings = overlay(Settings(), given, lambda knob, raw: f"{knob.name}={raw}")
    subject = _found(options.workload, settings.timeout)
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
    return f"{told}{where}; let the file only define the workload, and run nothing outside of functions"


def _found(named: str, seconds: float) -> Any:
    """Returns the object that ``FILE.py:NAME`` or ``MODULE:NAME`` names; ranks must be able to import its module.

    After ``seconds``, an interrupt ends the import.
    """
    where, _, name = named.rpartition(":")
    if not where or not name.isidentifier():
        raise SettingError(f"{named!r}: expected FILE.py:NAME or MODULE:NAME, such as train.py:workload")
    file = Path(where)
    module, place = (file.stem, file.resolve().parent) if where.endswith(".py") else (where, Path.cwd())
    if where.endswith(".py") and not file.is_file():
        raise SettingError(f"{named!r}: there is no file {file}")
    sys.path.insert(0, str(place))
    late = f"{named!r}: the import of {module} had not ended within --timeout={seconds:g} s"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job ignores
    try:
        with watched(late, seconds, partial(signal.pthread_kill, threading.get_ident(), signal.SIGINT)) as ended:
            found = importlib.import_module(module)
    except KeyboardInterrupt:
        if not ended.is_set():
            raise
        raise SettingError(f"{late}; raise it, or let the file only define the workload") from None
    except (Exception, SystemExit) as error:
        raise SettingError(f"{named!r}: {module} cannot be imported: {_reason(error)}") from error
    finally:
        signal.signal(signal.SIGINT, before)
    other = getattr(found, "__file__", None) or "built into Python"
    if where.endswith(".py") and Path(other).resolve() != file.resolve():
        raise SettingError(f"{named!r}: the name {module} imports another module, {other}; rename the file")
    if not hasattr(found, name):
        meant = closest(name, vars(found))
        raise SettingError(f"{named!r}: {module} has no {name}{': ' * bool(meant)}{meant}")
    return getattr(found, name)
