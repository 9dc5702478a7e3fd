"""Real runs of pytest, against another revision or a stored baseline, written down as they end."""

from __future__ import annotations

import dataclasses
import datetime as dt
import gzip
import json
import os
import random
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.quality.conditions import Calibration
from benchmarks.quality.launches import BrokenFile, calibration_from
from benchmarks.quality.project import BASE, BASELINES, CHANGES, TESTS, Change, check_out
from pytest_ddpperf.bisection.processes import exit_status
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.revision.git import git
from pytest_ddpperf.verdict import Verdict

SCHEMA = "pytest-ddpperf/real-runs/1"
SUITE = "perf_tests"
ROOT = Path(__file__).parents[2]
PACKAGE = "pytest_ddpperf"
RANKS = 2
TOLD = (Verdict.REGRESSED, Verdict.BROKEN, Verdict.INCONCLUSIVE, Verdict.UNCHANGED, Verdict.IMPROVED)
KEPT = ("test", "verdict", "metrics", "launches", "seconds", "findings")
"""What is kept of a result of ``--ddpperf-json``."""
NOT_OURS = ("PYTEST_ADDOPTS", "PERF_TESTS_SLOW")  # of the shell's environment: they would change what is measured
STORED_RUNS = 5  # beside a baseline, before it is stored anew
END_SECONDS = 60.0  # for a pytest that is interrupted to end its ranks and to remove its checkouts
FAILED = 1  # pytest's exit status where a test failed


@dataclass(frozen=True)
class Run:
    """One run of pytest.

    Attributes:
        change: by name, or ``perf_tests``: the example suite of this checkout against its own commit.
        length: of the step, by name; empty for the example suite.
        began: UTC, ISO 8601.
        seconds: that the whole run took, with start-up and all that is not measuring.
        results: those of ``--ddpperf-json``, as far as they are kept.
    """

    change: str
    length: str
    began: str
    seconds: float
    results: tuple[Mapping[str, Any], ...]


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


class RunError(RuntimeError):
    """Pytest came to no verdict; the message holds what it printed."""


def in_turn(changes: Sequence[str], seed: str) -> Iterator[str]:
    """Endless: rounds of all changes, each as often as its weight says, in random order."""
    draw = random.Random(seed)  # noqa: S311  no secret
    once = [name for name in changes for _ in range(CHANGES[name].weight if name in CHANGES else 1)]
    while True:
        yield from draw.sample(once, len(once))


def run_change(project: Path, change: Change, length: str, options: Sequence[str] = ()) -> Run:
    """Measure one change of the throw-away project; ``options`` are pytest's.

    Raises:
        RunError: pytest came to no verdict.
    """
    check_out(project, change.here)
    times_only = ("--ddpperf-counted=false",) if change.times_only else ()
    against = () if change.against is None else (f"--ddpperf-against={change.against}",)
    run = _run(change.name, length, project, (TESTS, *against, *times_only, *options), (project / "src", ROOT))
    if [result["verdict"] in TOLD for result in run.results] != [True]:
        told = [(result["verdict"], *result["findings"]) for result in run.results]
        raise RunError(f"{change.name}: nothing was compared: {told}")
    return run


def save_baseline(project: Path, length: str, options: Sequence[str] = ()) -> None:
    """Store the base's figures, for the runs that follow, in place of those there are; ``options`` are pytest's.

    Raises:
        RunError: pytest came to no verdict.
    """
    check_out(project, BASE)
    shutil.rmtree(project / BASELINES, ignore_errors=True)
    _run(BASE, length, project, (TESTS, *options, "--ddpperf-save"), (project / "src", ROOT))
    if not (project / BASELINES).is_dir():
        raise RunError(f"{BASE}: nothing was stored")


def run_suite() -> Run:
    """Measure the example suite of this checkout against its own commit.

    Raises:
        SettingError: this checkout has changes, so that both sides would differ.
        RunError: pytest came to no verdict.
    """
    if git(ROOT, "status", "--porcelain"):
        raise SettingError(f"--changes {SUITE}: {ROOT} has changes that are not committed: both sides would differ")
    return _run(SUITE, "", ROOT, (SUITE, "--ddpperf-against=HEAD"), (ROOT,))


def _run(name: str, length: str, folder: Path, arguments: Sequence[str], paths: Sequence[Path]) -> Run:
    with tempfile.TemporaryDirectory() as aside:
        report, printed = Path(aside) / "results.json", Path(aside) / "printed"
        options = ("--ddpperf-device=cpu", "--ddpperf-backend=gloo", f"--ddpperf-world-size={RANKS}")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments, *options]
        began, start = dt.datetime.now(tz=dt.timezone.utc), time.monotonic()
        with printed.open("wb") as output:
            status = exit_status([*command, f"--ddpperf-json={report}"], output, folder, _environ(paths), END_SECONDS)
        seconds = time.monotonic() - start
        results = json.loads(report.read_text(encoding="utf-8"))["results"] if report.exists() else []
        if status not in (0, FAILED) or not results:
            said = printed.read_text(encoding="utf-8", errors="replace")
            raise RunError(f"{name}: pytest ended with status {status}\n{said}")
    return Run(
        change=name,
        length=length,
        began=began.isoformat(timespec="seconds"),
        seconds=seconds,
        results=tuple({key: one[key] for key in KEPT} for one in results),
    )


def _environ(paths: Sequence[Path]) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
    before = [ours["PYTHONPATH"]] if ours.get("PYTHONPATH") else []
    return {**ours, "PYTHONPATH": os.pathsep.join([*map(str, paths), *before])}


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
