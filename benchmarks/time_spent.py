"""Where a benchmark's seconds go: preparing launches, timed steps, and all that is neither.

    python benchmarks/time_spent.py

Runs pytest in a throw-away project that trains a workload under DDP over gloo ranks: with nothing to be held against,
beside the baseline that this stored, and side by side with the same commit, with a tolerance so small that it takes
all of its time. Each moment counts once, as the first of these that any rank is at, so that launches of two sides which
take turns are told apart: timed steps, diagnosis of where their time goes, steps that tell if memory grows, warm-up,
building, starting and ending ranks, anything else. What is left are moments in which all wait for each other.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_ddpperf.reports.table import Table

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

CASES: Mapping[str, tuple[str, ...]] = {
    "alone": ("--ddpperf-save",),
    "stored": (),
    "side by side": ("--ddpperf-against=HEAD",),
}
UNDECIDED = "--ddpperf-tolerance=0.01%"  # no verdict comes before the time is up


@dataclass(frozen=True)
class Span:
    """What a launch was at, from when to when, in seconds of a clock that all processes share."""

    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class Launched:
    """One launch: the whole of it and, where steps were timed, what its first rank did when.

    Attributes:
        measuring: whether steps were timed that the verdict may rest on; else it prepared.
        timed: seconds of these steps.
    """

    measuring: bool
    spans: tuple[Span, ...]
    timed: float = 0.0

    @property
    def whole(self) -> Span:
        """From the call to its return."""
        return self.spans[0]


@dataclass(frozen=True)
class Spent:
    """Where the seconds of one benchmark went.

    Attributes:
        test: all of its test, with the start of what ranks are forked from.
        preparing: while any launch ran that prepared.
        checking: of these, verification and counting.
        measuring: from the first launch that timed steps to the end of the last one.
        parts: of these, by name.
        launches: how many prepared, and how many were measured, those of both sides.
        missing: functions of the plugin that were not there to be noted: their seconds are in others' parts.
    """

    test: float
    preparing: float
    checking: float
    measuring: float
    parts: Mapping[str, float]
    launches: tuple[int, int]
    missing: tuple[str, ...] = ()


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality
    from benchmarks.quality.conditions import LENGTHS
    from benchmarks.quality.processes import RunError
    from pytest_ddpperf.reports.terminal import render

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
        print(
            render(table(found, f"a step of {options.length}, {ranks} ranks", options.max_time)), end="\n\n", flush=True
        )


def measured(length: str, max_time: float, ranks: int) -> dict[str, Spent]:
    """What became of the seconds of each case; the second one is held against what the first one stored."""
    from benchmarks.quality.processes import ROOT, pytest_results
    from benchmarks.quality.project import TESTS, make_workload_project

    found = {}
    with tempfile.TemporaryDirectory(prefix="ddpperf-time-spent-") as folder:
        project, log = Path(folder) / "project", Path(folder) / "log"
        make_workload_project(project, length)
        for name, options in CASES.items():
            plugin = ("-p", "benchmarks.quality.time_log", f"--time-log={log}")
            arguments = (*plugin, TESTS, f"--ddpperf-max-time={max_time:g}", UNDECIDED, *options)
            pytest_results(name, project, arguments, (project / "src", ROOT), ranks)
            found[name] = spent(log.read_text(encoding="utf-8").splitlines())
    return found


def spent(lines: Iterable[str]) -> Spent:
    """Where the seconds went, from the lines that ``benchmarks.quality.time_log`` has written of one test."""
    noted: list[dict[str, Any]] = [json.loads(line) for line in lines]
    tests = [line for line in noted if "test" in line]
    launches = [
        Launched("timed" in line, tuple(Span(*span) for span in line["spans"]), line.get("timed", 0.0))
        for line in noted
        if "spans" in line
    ]
    measuring = [one for one in launches if one.measuring]
    preparing = [one.whole for one in launches if not one.measuring]
    whole = 0.0
    if measuring:
        whole = max(one.whole.end for one in measuring) - min(one.whole.start for one in measuring)
    return Spent(
        test=sum(line["seconds"] for line in tests),
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
    for span in sorted(spans, key=lambda one: one.start):
        seconds += max(0.0, span.end - max(until, span.start))
        until = max(until, span.end)
    return seconds


def parts(launches: Sequence[Launched], whole: float) -> dict[str, float]:
    """The seconds of all parts, by the names of ``ROWS``; together they are ``whole``."""
    seconds = dict.fromkeys(ROWS.values(), 0.0)
    for group in overlapping(launches):
        for kind, taken in at(group).items():
            seconds[ROWS[kind]] += taken
    # Beside steps, what times them waits for all ranks to begin together.
    steps = sum(one.timed for one in launches)
    seconds[TURNS] += seconds[STEPS] - steps
    seconds[STEPS] = steps
    seconds[OTHER] += whole - union(one.whole for one in launches)  # judging, between launches
    return seconds


def overlapping(launches: Sequence[Launched]) -> list[list[Launched]]:
    """Launches that ran at the same time, together."""
    groups: list[list[Launched]] = []
    until = float("-inf")
    for one in sorted(launches, key=lambda one: one.whole.start):
        if one.whole.start >= until:
            groups.append([])
        groups[-1].append(one)
        until = max(until, one.whole.end)
    return groups


def at(launches: Sequence[Launched]) -> dict[str, float]:
    """For how many seconds launches were at what, by kind; of several the one that is first in ``ROWS``."""
    order = list(ROWS)
    seconds = dict.fromkeys(order, 0.0)
    edges = sorted({edge for one in launches for span in one.spans for edge in (span.start, span.end)})
    for start, end in pairwise(edges):
        kinds = [kind for one in launches if (kind := _kind(one, (start + end) / 2)) is not None]
        if kinds:
            seconds[min(kinds, key=order.index)] += end - start
    return seconds


def _kind(launch: Launched, moment: float) -> str | None:
    """What a launch was at: of calls within calls the innermost, which began last, or ended first."""
    around = [span for span in launch.spans if span.start <= moment < span.end]
    return max(around, key=lambda span: (span.start, -span.end)).kind if around else None


def table(found: Mapping[str, Spent], what: str, max_time: float) -> Table:
    """A column of seconds and of shares for each case."""
    from pytest_ddpperf.reports.table import Table

    names = tuple(ROWS.values())
    rows = [
        ("all of the test", [_cells(one.test, max_time) for one in found.values()]),
        ("preparing", [_cells(one.preparing, max_time) for one in found.values()]),
        ("  verifying and counting", [_cells(one.checking, max_time) for one in found.values()]),
        ("measuring", [_cells(one.measuring, max_time, one.measuring) for one in found.values()]),
        *(
            (f"  {name}", [_cells(one.parts[name], max_time, one.measuring) for one in found.values()])
            for name in names
        ),
    ]
    launches = [("+".join(map(str, one.launches)), "", "") for one in found.values()]
    missing = sorted({name for one in found.values() for name in one.missing})
    units = ("s", f"of {max_time:g} s", "of it")
    return Table(
        headers=("", *(f"{'' if i else name}\n{unit}" for name in found for i, unit in enumerate(units))),
        rows=tuple((name, *(cell for cells in row for cell in cells)) for name, row in [*rows, ("launches", launches)]),
        title=f"{what}, max_time {max_time:g} s; launches: those that prepare, and those that are measured",
        notes=tuple(f"not told apart, for the plugin has none: {name}" for name in missing),
        right=0,
    )


def _cells(seconds: float, max_time: float, whole: float | None = None) -> tuple[str, str, str]:
    of_it = "" if not whole else f"{seconds / whole:.0%}"
    return f"{seconds:.1f}", f"{seconds / max_time:.0%}", of_it


if __name__ == "__main__":
    main()
