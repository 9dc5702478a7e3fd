"""What the tests of a search share: outcomes of made-up probes, and a repository of seventeen commits."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddpperf.probe import Outcome
from pytest_ddpperf.records import Environment, Interval, Launch, Measurement, Plan, Series
from pytest_ddpperf.results import Comparison, Counterpart, Result
from pytest_ddpperf.verdict import Verdict

CPU = Environment("cpu", "AMD EPYC", 0, "AMD EPYC", 2, 1, 1, "gloo", 2, "2.13", None, {})
LAUNCHES = 8


def timed(change: float, *, error: float = 0.002, tolerance: float = 0.03) -> Comparison:
    """A step time that changed by so many parts of one, known with that standard error."""
    from pytest_ddpperf.stats.intervals import t_quantile

    half = t_quantile(0.975, LAUNCHES - 1) * error
    shift = math.log1p(change)
    now = 0.04 * (1 + change)
    series = Series("step_time", "s", "lower", "absolute", "ratio", True, 0.0, (now,) * LAUNCHES, now, None)  # noqa: FBT003
    worse = change > tolerance and shift > half
    verdict = Verdict.REGRESSED if worse else Verdict.UNCHANGED if half < tolerance else Verdict.INCONCLUSIVE
    interval = Interval(math.expm1(shift - half), math.expm1(shift + half), 0.95)
    return Comparison(series, 0.04, change, interval, tolerance, None, verdict, gated=True, df=7)


def counted(before: float, now: float) -> Comparison:
    """So many calls then, and so many now."""
    series = Series("collective_calls", "1", "lower", "counted", "exact", True, 0.0, (now,), now, None)  # noqa: FBT003
    verdict = Verdict.REGRESSED if now > before else Verdict.IMPROVED if now < before else Verdict.UNCHANGED
    note = f"all_reduce {before:.0f} -> {now:.0f} calls per step" if now != before else ""
    return Comparison(series, before, now - before, None, 0.0, 0.0, verdict, gated=True, note=note)


def outcome(*comparisons: Comparison, lacking: str = "", broken: str = "") -> Outcome:
    """What came of a probe of one benchmark."""
    launches = tuple(Launch(i, (), 1.0) for i in range(LAUNCHES))
    measured = Measurement("ddp", "ddp", None, Plan(5, 60), CPU, () if lacking or broken else launches)
    verdict = Verdict.BROKEN if broken else max((c.verdict for c in comparisons), key=lambda v: v.severity)
    result = Result(
        test="t.py::test_a",
        measurement=measured,
        comparisons=comparisons,
        verdict=verdict,
        baseline=None,
        origin="revision 1234567",
        findings=(broken,) if broken else (),
        counterpart=Counterpart("1234567", None, LAUNCHES, lacking),
        seconds=10.0,
    )
    return Outcome((result,), {}, Path("/root"))


@pytest.fixture
def made() -> Any:
    """What makes outcomes."""
    return SimpleNamespace(timed=timed, counted=counted, outcome=outcome)


Git = Callable[..., str]


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


@pytest.fixture
def repository(git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of commits ``v0`` to ``v16`` in a line, in whose folder we are."""
    root = tmp_path / "project"
    monkeypatch.chdir(root)
    git("init", "-q")
    for number in range(17):
        git("commit", "-q", "--allow-empty", "-m", f"commit {number}")
        git("tag", f"v{number}")
    return root
