"""What the tests of a bisection share: outcomes of made-up probes, and histories of commits."""

from __future__ import annotations

import math
import random
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddpperf.cli.bisect.commits import CommitRange, commits_between
from pytest_ddpperf.judge.decision import decide
from pytest_ddpperf.judge.detection import looks_worse
from pytest_ddpperf.judge.sequential import PAIRED_ALPHA, STOP, Action, Phase, next_action, phase_after
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Interval, Measurement, Plan, Series
from pytest_ddpperf.records.results import Comparison, PairedRevision, Provenance, Result, record_of
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.session.probe import Outcome, Probe
from pytest_ddpperf.stats.intervals import interval_at, paired
from tests.factories import make_environment, make_series

CPU = make_environment(cpu_model="AMD EPYC", cores=2)
LAUNCHES = 8


def step_time(change: float) -> Series:
    """The step time of a commit that changed it by so many parts of one."""
    now = 0.04 * (1 + change)
    return make_series("step_time", now)


def timed(change: float, *, error: float = 0.002, tolerance: float = 0.03) -> Comparison:
    """A step time that changed by so many parts of one, known with that standard error."""
    from pytest_ddpperf.stats.intervals import t_quantile

    half = t_quantile(0.975, LAUNCHES - 1) * error
    shift = math.log1p(change)
    series = step_time(change)
    worse = change > tolerance and shift > half
    verdict = Verdict.REGRESSED if worse else Verdict.UNCHANGED if half < tolerance else Verdict.INCONCLUSIVE
    interval = Interval(low=math.expm1(shift - half), high=math.expm1(shift + half), confidence=0.95)
    return Comparison(
        series=series,
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


class Simulated:
    """Runs probes of commits whose launches scatter, by the rule that real ones stop by.

    Args:
        changes: of the step time, by commit.
        scatter: standard deviation of a launch's, on either side.
        seed: of all that is drawn.

    Attributes:
        rounds: that all probes together took.
    """

    round_seconds = 2.5

    def __init__(self, changes: Mapping[str, float], scatter: float, seed: int) -> None:
        self._changes = changes
        self._scatter = scatter
        self._drawn = random.Random(seed)  # noqa: S311  launches, not secrets
        self.rounds = 0

    def __call__(self, probe: Probe, against: str) -> Outcome:
        settings: dict[str, Any] = {"launches": 6, "max_time": 60.0, "tolerance": "1.5%", **probe.settings}
        tolerance = float(settings["tolerance"].rstrip("%")) / 100
        phase, wanted, before = Phase.SCREEN, settings["launches"], self.rounds
        pairs: list[tuple[float, float]] = []
        first = 0  # of the fresh ones
        while True:
            deadline = settings["max_time"]
            while (fresh := len(pairs) - first) < wanted and (fresh < 2 or self._seconds(before) < deadline):
                pairs.append((self._launch(probe.measured), self._launch(against)))
                self.rounds += 1
            change, of_fresh = (
                paired(*zip(*some, strict=True), scale="ratio", robust=True) for some in (pairs, pairs[first:])
            )
            assert change is not None
            last = self._seconds(before) + self.round_seconds > deadline
            verdict = decide(
                change,
                better="lower",
                tolerance=tolerance,
                alpha=PAIRED_ALPHA,
                margin=1.0,
                last=last,
                fresh=of_fresh if first else None,
            )
            action = next_action(
                phase,
                [verdict],
                launches=max(settings["launches"], fresh),
                suspects=looks_worse(change, better="lower", tolerance=tolerance),
                last=last,
            )
            if phase is Phase.CLEAR and verdict is Verdict.REGRESSED:  # nothing could confirm it
                verdict, action = Verdict.INCONCLUSIVE, STOP if last else Action("more", 1)
            if action.kind == "stop":
                break
            first = len(pairs) if action.kind == "confirm" else first
            wanted = action.launches + fresh * (action.kind == "more")
            phase = phase_after(action, phase, screened=self._seconds(before) + self.round_seconds > deadline / 2)
        found = Comparison(
            series=step_time(change.estimate),
            baseline=0.04,
            change=change.estimate,
            change_interval=interval_at(change, 0.05),
            standard_error=change.standard_error,
            tolerance=tolerance,
            verdict=verdict,
            gated=True,
            df=change.df,
        )
        return outcome(found, number=len(pairs), seconds=self._seconds(before))

    def _launch(self, commit: str) -> float:
        return 0.04 * (1 + self._changes[commit]) * math.exp(self._drawn.gauss(0.0, self._scatter))

    def _seconds(self, before: int) -> float:
        return (self.rounds - before) * self.round_seconds


@pytest.fixture
def made() -> Any:
    """What makes outcomes."""
    return SimpleNamespace(timed=timed, counted=counted, outcome=outcome, Simulated=Simulated)


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
    """Makes a history from the parents of each commit, parents first."""
    root = tmp_path_factory.mktemp("history")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)

    def make(parents: Parents) -> History:
        marks = {name: f":{number}" for number, name in enumerate(parents, 1)}
        lines = []
        for name, before in parents.items():
            lines += ["reset refs/heads/main", "commit refs/heads/main", f"mark {marks[name]}"]
            lines += ["committer Ada <a@b> 0 +0000", f"data {len(name)}", name]
            words = ("from", *["merge"] * len(before))
            lines += [f"{word} {marks[parent]}" for word, parent in zip(words, before, strict=False)]
        marked = root / ".git" / "marks"
        command = ["git", "fast-import", "--quiet", "--force", f"--export-marks={marked}"]
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

    def run(*arguments: str) -> str:
        who = ("-c", "user.name=Ada", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
        done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    return run


@pytest.fixture(scope="session")
def commits_in_a_line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git folder with the commits ``v0`` to ``v16``."""
    root = tmp_path_factory.mktemp("line")
    subprocess.run(["git", "-c", "init.defaultBranch=main", "init", "-q"], cwd=root, check=True)
    lines = []
    for number in range(17):
        message = f"commit {number}"
        lines += ["commit refs/heads/main", f"mark :{number + 1}", "committer Ada <a@b> now"]
        lines += [f"data {len(message)}", message, f"reset refs/tags/v{number}", f"from :{number + 1}", ""]
    command = ["git", "fast-import", "--quiet", "--date-format=now"]
    subprocess.run(command, cwd=root, input="\n".join(lines), text=True, check=True)
    return root / ".git"


@pytest.fixture
def repository(git: Git, commits_in_a_line: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of commits ``v0`` to ``v16`` in a line, in whose folder we are."""
    root = tmp_path / "project"
    monkeypatch.chdir(root)
    shutil.copytree(commits_in_a_line, root / ".git")
    return root
