"""Real runs of pytest, against another revision or a stored baseline, written down as they end."""

from __future__ import annotations

import dataclasses
import datetime as dt
import gzip
import json
import random
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.quality.conditions import Calibration
from benchmarks.quality.launches import BrokenFile, calibration_from
from benchmarks.quality.processes import ROOT, RunError, busy, pytest_results
from benchmarks.quality.project import BASE, BASELINES, CHANGES, Change, check_out, node_id
from pytest_ddpperf.against.git import git
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.records.verdict import Verdict

SCHEMA = "pytest-ddpperf/real-runs/1"
SUITE = "perf_tests"
PACKAGE = "pytest_ddpperf"
RANKS = 2
TOLD = (Verdict.REGRESSED, Verdict.BROKEN, Verdict.INCONCLUSIVE, Verdict.UNCHANGED, Verdict.IMPROVED)
KEPT = ("test", "verdict", "metrics", "launches", "seconds", "findings")
"""What is kept of a result of ``--ddpperf-json``."""
STORED_RUNS = 5  # beside a baseline, before it is stored anew


@dataclass(frozen=True)
class Terms:
    """What a run is made under.

    Attributes:
        lengths: of steps, by name: a run measures each in a benchmark of its own, in this order.
        max_time: seconds that measuring may take in each; None for the plugin's default.
        load: other processes that compute all the time beside the run.
    """

    lengths: tuple[str, ...]
    max_time: float | None = None
    load: int = 0

    @property
    def options(self) -> tuple[str, ...]:
        """Those of pytest."""
        return () if self.max_time is None else (f"--ddpperf-max-time={self.max_time:g}",)


@dataclass(frozen=True)
class Run:
    """One run of pytest.

    Attributes:
        change: by name, or ``perf_tests``: the example suite of this checkout against its own commit.
        length: of the step, by name; of several, in the order measured, with spaces between; empty for the example
            suite.
        began: UTC, ISO 8601.
        seconds: that the whole run took, with start-up and all that is not measuring.
        results: those of ``--ddpperf-json``, as far as they are kept; one for each length.
        max_time: as of ``Terms``; ``load`` likewise.
    """

    change: str
    length: str
    began: str
    seconds: float
    results: tuple[Mapping[str, Any], ...]
    max_time: float | None = None
    load: int = 0

    def by_length(self) -> list[Run]:
        """Itself, or one for each of its lengths; seconds that none of them took are shared alike."""
        lengths = self.length.split()
        if len(lengths) < 2:
            return [self]
        beside = (self.seconds - sum(result["seconds"] for result in self.results)) / len(lengths)
        each = [(length, tuple(one for one in self.results if one["test"] == node_id(length))) for length in lengths]
        return [
            dataclasses.replace(
                self, length=length, results=found, seconds=beside + sum(result["seconds"] for result in found)
            )
            for length, found in each
        ]


@dataclass(frozen=True)
class Runs:
    """What a file holds: runs on one machine, judged by one version of the rules.

    Attributes:
        environment: key of it.
        code: which version of the plugin: the git tree of its package.
        calibrations: what the work that is added was made from, by length of the step.
        runs: in the order made.
    """

    environment: str
    code: str
    calibrations: Mapping[str, Calibration] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()


def in_turn(changes: Sequence[str], seed: str, *, alike: bool = False) -> Iterator[str]:
    """Endless: rounds of all changes in random order, each as often as its weight says, or all of them once."""
    draw = random.Random(seed)  # noqa: S311  no secret
    once = [name for name in changes for _ in range(CHANGES[name].weight if name in CHANGES and not alike else 1)]
    while True:
        yield from draw.sample(once, len(once))


def made(project: Path, changes: Iterable[str], terms: Terms) -> Iterator[Run]:
    """Runs of one change after the other, by name; a baseline is stored before those that it is for.

    Raises:
        SettingError: as of ``run_suite``.
        RunError: pytest came to no verdict.
    """
    stored = 0
    for number, name in enumerate(changes):
        # What comes first in a run finds another machine than what comes last: each length is either.
        ordered = dataclasses.replace(terms, lengths=terms.lengths[:: -1 if number % 2 else 1])
        if name != SUITE and CHANGES[name].against is None:
            if stored % STORED_RUNS == 0:
                save_baseline(project, ordered)
            stored += 1
        yield run_suite(ordered) if name == SUITE else run_change(project, CHANGES[name], ordered)


def run_change(project: Path, change: Change, terms: Terms, options: Sequence[str] = ()) -> Run:
    """Measure one change of the throw-away project; ``options`` are pytest's.

    Raises:
        RunError: pytest came to no verdict.
    """
    check_out(project, change.here)
    times_only = ("--ddpperf-counted=false",) if change.times_only else ()
    against = () if change.against is None else (f"--ddpperf-against={change.against}",)
    run = _run(change.name, terms, project, (*_tests(terms), *against, *times_only, *options), (project / "src", ROOT))
    if [result["verdict"] in TOLD for result in run.results] != [True] * len(terms.lengths):
        told = [(result["verdict"], *result["findings"]) for result in run.results]
        raise RunError(f"{change.name}: nothing was compared: {told}")
    return run


def save_baseline(project: Path, terms: Terms, options: Sequence[str] = ()) -> None:
    """Store the base's figures, for the runs that follow, in place of those there are; ``options`` are pytest's.

    Always in quiet: what a busy machine does to runs must not be in what they are held against.

    Raises:
        RunError: pytest came to no verdict.
    """
    check_out(project, BASE)
    shutil.rmtree(project / BASELINES, ignore_errors=True)
    quiet = dataclasses.replace(terms, load=0)
    _run(BASE, quiet, project, (*_tests(terms), *options, "--ddpperf-save"), (project / "src", ROOT))
    if not (project / BASELINES).is_dir():
        raise RunError(f"{BASE}: nothing was stored")


def run_suite(terms: Terms) -> Run:
    """Measure the example suite of this checkout against its own commit.

    Raises:
        SettingError: this checkout has changes, so that both sides would differ.
        RunError: pytest came to no verdict.
    """
    if git(ROOT, "status", "--porcelain"):
        raise SettingError(f"--changes {SUITE}: {ROOT} has changes that are not committed: both sides would differ")
    return _run(SUITE, dataclasses.replace(terms, lengths=()), ROOT, (SUITE, "--ddpperf-against=HEAD"), (ROOT,))


def _tests(terms: Terms) -> list[str]:
    return [node_id(length) for length in terms.lengths]


def _run(name: str, terms: Terms, folder: Path, arguments: Sequence[str], paths: Sequence[Path]) -> Run:
    began, start = dt.datetime.now(tz=dt.timezone.utc), time.monotonic()
    with busy(terms.load):
        results = pytest_results(name, folder, (*arguments, *terms.options), paths, RANKS)
    return Run(
        change=name,
        length=" ".join(terms.lengths),
        began=began.isoformat(timespec="seconds"),
        seconds=time.monotonic() - start,
        results=tuple({key: one[key] for key in KEPT} for one in results),
        max_time=terms.max_time,
        load=terms.load,
    )


def code_version() -> str:
    """Which version of the plugin judges: the git tree of its package.

    Raises:
        GitError: this is no git checkout.
        SettingError: the package has changes that no commit tells from others.
    """
    if git(ROOT, "status", "--porcelain", "--", PACKAGE):
        raise SettingError(f"{ROOT / PACKAGE} has changes: commit them, so that runs of other rules can be told apart")
    return git(ROOT, "rev-parse", "--short", f"HEAD:{PACKAGE}")


def require_same(file: Path, there: Runs, here: Runs) -> None:
    """Refuse to add to runs that these could not be counted with.

    Raises:
        SettingError: they are of another machine, or were judged by other rules.
    """
    for what, then, now in (
        ("machine", there.environment, here.environment),
        (f"version of {PACKAGE}", there.code, here.code),
    ):
        if then != now:
            raise SettingError(f"--data {file} is of another {what} ({then}, here {now}): give another file")


def joined(files: Sequence[Runs]) -> Runs:
    """The runs of several files of one machine, to be reported together; ``code`` names all versions.

    Raises:
        SettingError: they are of several machines.
    """
    first = files[0]
    others = [one.environment for one in files if one.environment != first.environment]
    if others:
        raise SettingError(f"--data: files of several machines ({first.environment}, {others[0]}): give those of one")
    code = ", ".join(dict.fromkeys(one.code for one in files))
    return dataclasses.replace(first, code=code, runs=tuple(run for one in files for run in one.runs))


def write(runs: Runs, file: Path) -> None:
    """Write a file anew, whole or not at all."""
    document = json.dumps({"schema": SCHEMA, **dataclasses.asdict(runs)}, separators=(",", ":"))
    partial = file.with_name(f".{file.name}.partial")
    partial.write_bytes(gzip.compress(document.encode()))
    partial.replace(file)


def read(file: Path) -> Runs:
    """The runs in a file.

    Raises:
        BrokenFile: it is none of ours.
    """
    try:
        data = json.loads(gzip.decompress(file.read_bytes()))
        if not isinstance(data, dict) or data.pop("schema", None) != SCHEMA:
            raise BrokenFile(f"{file}: not a file of real runs; it does not say {SCHEMA}")
        calibrations = {length: calibration_from(one) for length, one in data.pop("calibrations").items()}
        runs = tuple(Run(**{**one, "results": tuple(one["results"])}) for one in data.pop("runs"))
        return Runs(**data, calibrations=calibrations, runs=runs)
    except (KeyError, TypeError, AttributeError, ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        if isinstance(error, BrokenFile):
            raise
        raise BrokenFile(f"{file}: not a file of real runs: {type(error).__name__}: {error}") from None
