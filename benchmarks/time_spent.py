"""Where a benchmark's seconds go: preparing launches, timed steps, and all that is neither.

    python benchmarks/time_spent.py

Runs pytest in a throw-away project that trains a workload under DDP over gloo ranks: with nothing to be held against,
and side by side with the same commit, with a tolerance so small that it takes all of its time. Each moment counts once,
as the first of these that any rank is at, so that launches of two sides which take turns are told apart: timed steps,
diagnosis of where their time goes, steps that tell if memory grows, warm-up, building, starting and ending ranks,
anything else. What is left are moments in which all wait for each other.

This file is also the pytest plugin that writes down what each launch did when. Ranks import it in each launch anew, so
that heavy imports stay inside functions.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pytest_ddpperf.reports.table import Table

OPTION = "--time-log"
STEPS, STARTING, TURNS, OTHER = "timed steps", "start and end of ranks", "turns, waiting", "other"
ROWS = {
    "timed": STEPS,
    "diagnosis": "diagnosis",
    "growth": "growth of memory",
    "warm-up": "warm-up",
    "build": "building",
    "launch": STARTING,
    "rank": OTHER,
    "waiting": TURNS,
}
"""What is printed for what a rank is at, in the order of who counts where launches are at several things."""

FUNCTIONS = (
    ("pytest_ddpperf.training.step", "build_step", "build"),
    ("pytest_ddpperf.training.loop", "warm_up", "warm-up"),
    ("pytest_ddpperf.training.loop", "timed_blocks", "timed"),
    ("pytest_ddpperf.training.loop", "held_after_steps", "growth"),
    ("pytest_ddpperf.training.loop", "_diagnosis", "diagnosis"),
    ("pytest_ddpperf.launch.interleaving", "TurnClient.wait", "waiting"),
)
"""What a rank does, by module and name of the function that does it."""

MEASURING = "run_launch"  # what ranks are told to run where steps are timed; anything else prepares
CASES: Mapping[str, tuple[str, ...]] = {"alone": ("--ddpperf-save",), "side by side": ("--ddpperf-against=HEAD",)}
UNDECIDED = "--ddpperf-tolerance=0.01%"  # no verdict comes before the time is up


class Span(NamedTuple):
    """What a launch was at, from when to when, in seconds of a clock that all processes share."""

    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class Launched:
    """One launch: the whole of it and, where steps were timed, what its first rank did when."""

    measuring: bool  # whether steps were timed that the verdict may rest on
    spans: tuple[Span, ...]  # the first is from the call to its return
    timed: float = 0.0  # seconds of these steps


@dataclass(frozen=True)
class Spent:
    """Where the seconds of one benchmark went."""

    test: float  # all of its test, with the start of what ranks are forked from
    preparing: float  # while any launch ran that prepared
    checking: float  # of these, verification and counting
    measuring: float  # from the first launch that timed steps to the end of the last one
    parts: Mapping[str, float]  # of these, by name
    launches: tuple[int, int]  # that prepared, and that were measured, those of both sides
    missing: tuple[str, ...] = ()  # functions of the plugin that were not there: their seconds are in others' parts


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality
    from benchmarks.quality.project import RunError
    from benchmarks.quality.steps import LENGTHS
    from pytest_ddpperf.reports.table import render

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", choices=LENGTHS, default="60ms", help="of a step (default: 60ms)")
    parser.add_argument("--max-time", type=float, default=20.0, help="seconds of measuring (default: %(default)g)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="sizes of groups (default: 2 4)")
    options = parser.parse_args()
    for ranks in options.ranks:
        try:
            found = measured(options.length, options.max_time, ranks)
        except RunError as error:
            sys.exit(str(error))
        title = f"a step of {options.length}, {ranks} ranks"
        print(render(table(found, title, options.max_time)), end="\n\n", flush=True)


def measured(length: str, max_time: float, ranks: int) -> dict[str, Spent]:
    """Where the seconds of each case went, measured one after the other."""
    from benchmarks.quality.project import ROOT, TESTS, make_workload_project, pytest_results

    found = {}
    with tempfile.TemporaryDirectory(prefix="ddpperf-time-spent-") as folder:
        project, log = Path(folder) / "project", Path(folder) / "log"
        make_workload_project(project, length)
        for name, options in CASES.items():
            plugin = ("-p", "benchmarks.time_spent", f"{OPTION}={log}")
            arguments = (*plugin, TESTS, f"--ddpperf-max-time={max_time:g}", UNDECIDED, *options)
            pytest_results(name, project, arguments, (project / "src", ROOT), ranks)
            found[name] = spent(log.read_text(encoding="utf-8").splitlines())
    return found


def spent(lines: Iterable[str]) -> Spent:
    """Where the seconds went, from the lines that the plugin has written of one test."""
    noted: list[dict[str, Any]] = [json.loads(line) for line in lines]
    launches = [
        Launched("timed" in line, tuple(Span(*span) for span in line["spans"]), line.get("timed", 0.0))
        for line in noted
        if "spans" in line
    ]
    measuring = [launch for launch in launches if launch.measuring]
    preparing = [launch.spans[0] for launch in launches if not launch.measuring]
    ends = [launch.spans[0] for launch in measuring]
    whole = max(span.end for span in ends) - min(span.start for span in ends) if ends else 0.0
    return Spent(
        test=sum(line["seconds"] for line in noted if "test" in line),
        preparing=union(preparing),
        checking=sum(line.get("checked", 0.0) for line in noted),
        measuring=whole,
        parts=parts(measuring, whole),
        launches=(len(preparing), len(measuring)),
        missing=tuple(dict.fromkeys(name for line in noted for name in line.get("missing", ()))),
    )


def union(spans: Iterable[Span]) -> float:
    """For how many seconds there was any."""
    seconds, until = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.start):
        seconds += max(0.0, span.end - max(until, span.start))
        until = max(until, span.end)
    return seconds


def parts(launches: Sequence[Launched], whole: float) -> dict[str, float]:
    """The seconds of all parts, by the names of ``ROWS``; together they are ``whole``."""
    seconds = {ROWS[kind]: taken for kind, taken in at(launches).items()}
    # Beside steps, what times them waits for all ranks to begin together.
    steps = sum(launch.timed for launch in launches)
    seconds[TURNS] += seconds[STEPS] - steps
    seconds[STEPS] = steps
    seconds[OTHER] += whole - union(launch.spans[0] for launch in launches)  # judging, between launches
    return seconds


def at(launches: Sequence[Launched]) -> dict[str, float]:
    """For how many seconds launches were at what, by kind; of several the one that is first in ``ROWS``."""
    seconds = dict.fromkeys(ROWS, 0.0)
    edges = sorted({edge for launch in launches for span in launch.spans for edge in (span.start, span.end)})
    for start, end in pairwise(edges):
        kinds = {_kind(launch, (start + end) / 2) for launch in launches}
        first = next((kind for kind in ROWS if kind in kinds), None)
        if first is not None:
            seconds[first] += end - start
    return seconds


def _kind(launch: Launched, moment: float) -> str | None:
    """What a launch was at: of calls within calls the innermost, which began last, or ended first."""
    around = [span for span in launch.spans if span.start <= moment < span.end]
    return max(around, key=lambda span: (span.start, -span.end)).kind if around else None


def table(found: Mapping[str, Spent], what: str, max_time: float) -> Table:
    """A column of seconds and of shares for each case."""
    from pytest_ddpperf.reports.table import Table

    def seconds(spent: float, whole: float = 0.0) -> tuple[str, str, str]:
        return f"{spent:.1f}", f"{spent / max_time:.0%}", f"{spent / whole:.0%}" if whole else ""

    columns = [
        {
            "all of the test": seconds(case.test),
            "preparing": seconds(case.preparing),
            "  verifying and counting": seconds(case.checking),
            "measuring": seconds(case.measuring, case.measuring),
            **{f"  {name}": seconds(spent, case.measuring) for name, spent in case.parts.items()},
            "launches": ("+".join(map(str, case.launches)), "", ""),
        }
        for case in found.values()
    ]
    units = ("s", f"of {max_time:g} s", "of it")
    missing = sorted({name for case in found.values() for name in case.missing})
    return Table(
        headers=("", *(f"{'' if number else name}\n{unit}" for name in found for number, unit in enumerate(units))),
        rows=tuple((name, *(cell for column in columns for cell in column[name])) for name in columns[0]),
        title=f"{what}, max_time {max_time:g} s; launches: those that prepare, and those that are measured",
        notes=tuple(f"not told apart, for the plugin has none: {name}" for name in missing),
        right=0,
    )


_lines: list[dict[str, Any]] = []  # of this pytest: one for each launch, and one for each test


def pytest_addoption(parser: Any) -> None:
    """Take the name of the file."""
    parser.addoption(OPTION, metavar="FILE", help="write down here what launches did when")


def pytest_configure() -> None:
    """Note each launch from now on: all of them go through ``BenchmarkLaunches.launch``."""
    from benchmarks.quality.verdicts import BenchmarkLaunches

    launch = BenchmarkLaunches.launch

    def noted(self: Any, variant: Any, function: Any, *args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        measuring = getattr(function, "name", "") == MEASURING
        call = (on_rank, function, *args) if measuring else (function, *args)
        line: dict[str, Any] = {"spans": []}
        start = time.monotonic()
        try:
            result = launch(self, variant, *call, **options)
            if measuring:
                _, line["spans"], line["missing"] = result.values[0]  # the first rank asks for turns
                result = replace(result, values=tuple(value for value, _, _ in result.values))
                line["timed"] = math.fsum(result.values[0].step_times)
            else:
                line["checked"] = max((getattr(value, "seconds", 0.0) for value in result.values), default=0.0)
            return result
        finally:
            line["spans"] = [("launch", start, time.monotonic()), *line["spans"]]
            _lines.append(line)

    BenchmarkLaunches.launch = noted  # type: ignore[method-assign]


def pytest_runtest_logreport(report: Any) -> None:
    """Note how long a test took, with all that it did."""
    if report.when == "call":
        _lines.append({"test": report.nodeid, "seconds": report.duration})


def pytest_unconfigure(config: Any) -> None:
    """Write it all down."""
    file = config.getoption(OPTION)
    if file is not None:
        Path(file).write_text("".join(f"{json.dumps(line)}\n" for line in _lines), encoding="utf-8")


def on_rank(ctx: Any, function: Callable[..., Any], *args: Any) -> tuple[Any, list[Span], list[str]]:
    """On a rank, of which the launch is the only one: what ``function`` gives, what was done when, what is missing."""
    spans: list[Span] = []
    missing = [name for module, name, kind in FUNCTIONS if not _note(module, name, kind, spans)]
    start = time.monotonic()
    value = function(ctx, *args)
    return value, [Span("rank", start, time.monotonic()), *spans], missing


def _note(module: str, name: str, kind: str, spans: list[Span]) -> bool:
    """Have each call of a function noted from now on; False where there is no such function."""
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    function = getattr(owner, last, None)
    if function is None:
        return False

    @functools.wraps(function)
    def noted(*args: Any, **options: Any) -> Any:
        start = time.monotonic()
        try:
            return function(*args, **options)
        finally:
            spans.append(Span(kind, start, time.monotonic()))

    setattr(owner, last, noted)
    return True


if __name__ == "__main__":
    main()
