"""Real runs of pytest against another revision, written down as they end."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.quality.campaign import calibration_from, reading, require_schema
from benchmarks.quality.project import CHANGES, ROOT, SUITE, TESTS, Change, RunError, busy, check_out, pytest_results
from benchmarks.quality.steps import Calibration
from pytest_ddpperf.against.git import git
from pytest_ddpperf.errors import SettingError

SCHEMA = "pytest-ddpperf/real-runs/1"
PACKAGE = "pytest_ddpperf"
RANKS = 2
TOLD = ("regressed", "broken", "inconclusive", "unchanged", "ok", "improved")
KEPT = ("test", "verdict", "metrics", "launches", "seconds", "findings")  # of a result of --ddpperf-json


@dataclass(frozen=True)
class Terms:
    """What a run is made under."""

    length: str  # of steps
    max_time: float | None = None  # for each benchmark; None for the plugin's default
    load: int = 0  # processes that compute all the time beside the run
    budget: str = ""  # of a session: 5min; empty for none

    @property
    def options(self) -> tuple[str, ...]:
        """Those of pytest."""
        max_time = () if self.max_time is None else (f"--ddpperf-max-time={self.max_time:g}",)
        return (*max_time, f"--ddpperf-budget={self.budget}") if self.budget else max_time


@dataclass(frozen=True)
class Run:
    """One run of pytest: of a change, by name, or of the example suite against its own commit."""

    change: str
    length: str  # of the steps; empty for the example suite
    began: str  # UTC, ISO 8601
    seconds: float  # with start-up and all that is not measuring
    results: tuple[Mapping[str, Any], ...]  # of --ddpperf-json, as far as they are kept
    max_time: float | None = None
    load: int = 0
    budget: str = ""


@dataclass(frozen=True)
class Runs:
    """What a file holds: runs on one machine, judged by one version of the rules."""

    environment: str  # its key
    code: str  # the git tree of the plugin's package
    calibrations: Mapping[str, Calibration] = field(default_factory=dict)  # by length
    runs: tuple[Run, ...] = ()


def in_turn(changes: Sequence[str], seed: str) -> Iterator[str]:
    """Endless: rounds of all changes in random order, each as often as its weight says."""
    draw = random.Random(seed)  # noqa: S311  no secret
    once = [name for name in changes for _ in range(CHANGES[name].weight if name in CHANGES else 1)]
    while True:
        yield from draw.sample(once, len(once))


def made(project: Path, changes: Iterable[str], terms: Terms) -> Iterator[Run]:
    """Runs of one change after the other, by name."""
    for name in changes:
        yield run_suite(terms) if name == SUITE else run_change(project, CHANGES[name], terms)


def run_change(project: Path, change: Change, terms: Terms, options: Sequence[str] = ()) -> Run:
    """Measure one change of the throw-away project; ``options`` are pytest's."""
    check_out(project, change.here)
    times_only = ("--ddpperf-counted=false",) if change.times_only else ()
    arguments = (TESTS, f"--ddpperf-against={change.against}", *times_only, *options)
    run = _run(change.name, terms, project, arguments, (project / "src", ROOT))
    if [result["verdict"] in TOLD for result in run.results] != [True]:
        verdicts = [(result["verdict"], *result["findings"]) for result in run.results]
        raise RunError(f"{change.name}: nothing was compared: {verdicts}")
    return run


def run_suite(terms: Terms) -> Run:
    """Measure the example suite of this checkout against its own commit."""
    if git(ROOT, "status", "--porcelain"):
        raise SettingError(f"--changes {SUITE}: {ROOT} has changes that are not committed: both sides would differ")
    return _run(SUITE, replace(terms, length=""), ROOT, (SUITE, "--ddpperf-against=HEAD"), (ROOT,))


def _run(name: str, terms: Terms, folder: Path, arguments: Sequence[str], paths: Sequence[Path]) -> Run:
    began, start = dt.datetime.now(tz=dt.timezone.utc), time.monotonic()
    with busy(terms.load):
        results = pytest_results(name, folder, (*arguments, *terms.options), paths, RANKS)
    return Run(
        name,
        terms.length,
        began.isoformat(timespec="seconds"),
        time.monotonic() - start,
        tuple({key: result[key] for key in KEPT} for result in results),
        terms.max_time,
        terms.load,
        terms.budget,
    )


def code_version() -> str:
    """Which version of the plugin judges: the git tree of its package."""
    if git(ROOT, "status", "--porcelain", "--", PACKAGE):
        raise SettingError(f"{ROOT / PACKAGE} has changes: commit them, so that runs of other rules can be told apart")
    return git(ROOT, "rev-parse", "--short", f"HEAD:{PACKAGE}")


def require_same(file: Path, there: Runs, here: Runs) -> None:
    """Refuse to add to runs that these could not be counted with."""
    facts = {"machine": (there.environment, here.environment), f"version of {PACKAGE}": (there.code, here.code)}
    for what, (then, now) in facts.items():
        if then != now:
            raise SettingError(f"--data {file} is of another {what} ({then}, here {now}): give another file")


def joined(files: Sequence[Runs]) -> Runs:
    """The runs of several files of one machine, to be reported together; ``code`` names all versions."""
    first = files[0]
    for other in files:
        if other.environment != first.environment:
            machines = f"{first.environment}, {other.environment}"
            raise SettingError(f"--data: files of several machines ({machines}): give those of one")
    code = ", ".join(dict.fromkeys(found.code for found in files))
    return replace(first, code=code, runs=tuple(run for found in files for run in found.runs))


def write(runs: Runs, file: Path) -> None:
    """Write a file anew, whole or not at all."""
    document = json.dumps({"schema": SCHEMA, **asdict(runs)}, separators=(",", ":"))
    partial = file.with_name(f".{file.name}.partial")
    partial.write_bytes(gzip.compress(document.encode()))
    partial.replace(file)


def read(file: Path) -> Runs:
    """The runs in a file."""
    with reading(file, "real runs"):
        data = json.loads(gzip.decompress(file.read_bytes()))
        require_schema(file, "real runs", data, SCHEMA)
        calibrations = {length: calibration_from(found) for length, found in data["calibrations"].items()}
        runs = tuple(map(_run_from, data["runs"]))
        return Runs(data["environment"], data["code"], calibrations, runs)


def _run_from(data: Mapping[str, Any]) -> Run:
    """A run as it was written, other fields apart."""
    known = {column.name: data[column.name] for column in fields(Run) if column.name in data}
    return Run(**{**known, "results": tuple(data["results"])})
