"""What the tests of a bisection share: outcomes of made-up probes, and histories of commits."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddpperf.cli.bisect.commits import CommitRange, commits_between
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Interval, Measurement, Plan
from pytest_ddpperf.records.results import Comparison, PairedRevision, Provenance, Result, record_of
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.session.probe import Outcome
from pytest_ddpperf.stats.intervals import t_quantile
from tests import factories
from tests.factories import make_environment, make_series

CPU = make_environment(cpu_model="AMD EPYC", cores=2)
LAUNCHES = 8


def timed(change: float, *, error: float = 0.002, tolerance: float = 0.03) -> Comparison:
    """A step time that changed by so many parts of one, known with that standard error."""
    half = t_quantile(0.975, LAUNCHES - 1) * error
    shift = math.log1p(change)
    worse = change > tolerance and shift > half
    verdict = Verdict.REGRESSED if worse else Verdict.UNCHANGED if half < tolerance else Verdict.INCONCLUSIVE
    interval = Interval(low=math.expm1(shift - half), high=math.expm1(shift + half), confidence=0.95)
    return Comparison(
        series=make_series("step_time", 0.04 * (1 + change)),
        baseline=0.04,
        change=change,
        change_interval=interval,
        standard_error=error,
        tolerance=tolerance,
        verdict=verdict,
        gated=True,
        df=7,
    )


def counted(before: float, now: float) -> Comparison:
    """So many calls then, and so many now."""
    series = make_series("collective_calls", now, unit="1", family="counted", scale="exact", samples=(now,))
    verdict = Verdict.REGRESSED if now > before else Verdict.IMPROVED if now < before else Verdict.UNCHANGED
    note = Finding(f"all_reduce {before:.0f} -> {now:.0f} calls per step") if now != before else None
    return Comparison(
        series=series,
        baseline=before,
        change=now - before,
        tolerance=0.0,
        mde=0.0,
        verdict=verdict,
        gated=True,
        note=note,
    )


def outcome(
    *comparisons: Comparison, lacking: str = "", broken: str = "", number: int = LAUNCHES, seconds: float = 10.0
) -> Outcome:
    """What came of a probe of one benchmark with a number of launches."""
    launches = tuple(Launch(round=i, ranks=(), seconds=1.0) for i in range(number))
    measured = Measurement(
        name="ddp",
        strategy="ddp",
        mode=None,
        plan=Plan(warmup=5, steps=60),
        environment=CPU,
        launches=() if lacking or broken else launches,
    )
    record = None if lacking else record_of(measured, Provenance(date="", commit=None))
    verdict = Verdict.BROKEN if broken else max((c.verdict for c in comparisons), key=lambda v: v.severity)
    result = Result(
        test="t.py::test_a",
        measurement=measured,
        comparisons=comparisons,
        verdict=verdict,
        findings=(Finding("broken", {"reason": broken}),) if broken else (),
        reference=PairedRevision(revision="1234567", commit=None, record=record, launches=number, lacking=lacking),
        seconds=seconds,
    )
    return Outcome((result,), {}, Path("/root"))


@pytest.fixture
def made() -> Any:
    """What makes outcomes."""
    return SimpleNamespace(timed=timed, counted=counted, outcome=outcome)


Git = Callable[..., str]
Parents = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class History:
    """Commits with names, in a repository.

    Attributes:
        hashes: by name.
        parents: names of each commit's parents, by name.
    """

    root: Path
    hashes: Mapping[str, str]
    parents: Parents

    def between(self, good: str, bad: str, *, first_parent: bool = False) -> CommitRange:
        """The range between two of the commits."""
        return commits_between(self.hashes[good], self.hashes[bad], self.root, first_parent=first_parent)

    def name(self, commit: str) -> str:
        """The name of the commit of that hash."""
        return next(name for name, known in self.hashes.items() if known == commit)

    def names(self, commits: Iterable[str]) -> tuple[str, ...]:
        """The names of the commits of these hashes."""
        return tuple(map(self.name, commits))


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Parents], History]:
    """Makes a repository from the parents of each commit, parents first; each name is a tag, too."""

    def make(parents: Parents) -> History:
        root = tmp_path_factory.mktemp("history")
        factories.git(root, "init", "-q")
        marks = {name: f":{number}" for number, name in enumerate(parents, 1)}
        lines = []
        for name, before in parents.items():
            lines += ["reset refs/heads/main", "commit refs/heads/main", f"mark {marks[name]}"]
            lines += ["committer Ada <a@b> 0 +0000", f"data {len(name)}", name]
            words = ("from", *["merge"] * len(before))
            lines += [f"{word} {marks[parent]}" for word, parent in zip(words, before, strict=False)]
            lines += [f"reset refs/tags/{name}", f"from {marks[name]}"]
        marked = root / ".git" / "marks"
        command = ["git", "fast-import", "--quiet", f"--export-marks={marked}"]
        subprocess.run(command, cwd=root, input="\n".join([*lines, ""]), text=True, check=True)
        hashes = dict(map(str.split, marked.read_text().splitlines()))
        return History(root, {name: hashes[mark] for name, mark in marks.items()}, parents)

    return make


@pytest.fixture(scope="session")
def line(history: Callable[[Parents], History]) -> History:
    """Commits ``c0`` to ``c16`` in a line."""
    return history({f"c{number}": (f"c{number - 1}",) if number else () for number in range(17)})


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """Runs git in the project."""
    folder = tmp_path / "project"
    folder.mkdir()
    return partial(factories.git, folder)


@pytest.fixture
def repository(git: Git, line: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a project of commits ``c0`` to ``c16`` in a line."""
    root = tmp_path / "project"
    monkeypatch.chdir(root)
    shutil.copytree(line.root / ".git", root / ".git")
    return root
