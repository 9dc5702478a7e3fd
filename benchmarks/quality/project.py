"""A throw-away project whose commits differ in one way each: what real runs have to tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.quality.conditions import CONDITIONS, Calibration, Injection, injection
from pytest_ddpperf.revision.git import git
from pytest_ddpperf.verdict import Verdict

NOTHING = Injection()
BASE = "base"
TESTS, BASELINES = "perf", "baselines"
AS_NOBODY = (  # nothing of the user's own git settings
    *("-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"),
    *("-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null"),
)
SMALLEST = 16  # elements of an all-reduce that adds a call and next to no bytes
HELD = 12 * 2**20  # bytes

TRAINING = """\
import torch
from benchmarks.quality.conditions import LENGTHS, Injection
from benchmarks.quality.steps import Training

INJECTION = {injection!r}
HELD = {held}  # bytes


def build(ctx):
    step = Training(LENGTHS[{length!r}], INJECTION)(ctx)
    step.held = torch.ones(HELD // 4)
    return step
"""
TEST = """\
from training import build


def test_step(ddpperf):
    ddpperf.check(build)
"""


@dataclass(frozen=True)
class Variation:
    """How one branch's step differs from that of the base: ``held`` bytes of memory are kept for as long as it runs."""

    added: Injection = NOTHING
    held: int = 0


@dataclass(frozen=True)
class Change:
    """What is measured here against what, and what has to come out.

    Attributes:
        here: branch that is checked out.
        against: branch that it is held against; None for a baseline that was stored on the base.
        expected: verdict of one that finds it.
        times_only: whether nothing is counted: the operators of the work that is added would be, and times would not
            have to tell it.
        weight: runs in a round of all changes.
    """

    name: str
    here: str
    against: str | None
    expected: Verdict
    times_only: bool = False
    weight: int = 1


UNCHANGED = "unchanged"
CHANGES: Mapping[str, Change] = {
    change.name: change
    for change in (
        Change(UNCHANGED, BASE, BASE, Verdict.UNCHANGED, weight=6),
        Change("+5%", "slower-5", BASE, Verdict.REGRESSED, times_only=True),
        Change("+10%", "slower-10", BASE, Verdict.REGRESSED, times_only=True),
        Change("+10% undone", BASE, "slower-10", Verdict.IMPROVED, times_only=True),
        Change("all-reduce", "all-reduce", BASE, Verdict.REGRESSED),
        Change("all-reduce undone", BASE, "all-reduce", Verdict.IMPROVED),
        Change("12 MiB held", "memory", BASE, Verdict.REGRESSED),
        Change("12 MiB undone", BASE, "memory", Verdict.IMPROVED),
        Change("stored: unchanged", BASE, None, Verdict.UNCHANGED, weight=3),
        Change("stored: +5%", "slower-5", None, Verdict.REGRESSED, times_only=True),
        Change("stored: +10%", "slower-10", None, Verdict.REGRESSED, times_only=True),
    )
}


def variations(calibration: Calibration) -> dict[str, Variation]:
    """The branches, by name; ``calibration`` tells how much work makes a step 5 or 10 % longer."""
    return {
        BASE: Variation(),
        "slower-5": Variation(injection(CONDITIONS["+5%"], calibration)),
        "slower-10": Variation(injection(CONDITIONS["+10%"], calibration)),
        "all-reduce": Variation(Injection(elements=SMALLEST)),
        "memory": Variation(held=HELD),
    }


def make_project(folder: Path, length: str, calibration: Calibration) -> None:
    """A git repository with a branch for each variation, whose ``perf`` benchmarks the step of this length.

    Raises:
        GitError: git cannot.
    """
    for path in (folder / "src", folder / TESTS):
        path.mkdir(parents=True)
    (folder / TESTS / "test_training.py").write_text(TEST, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / ".gitignore").write_text(f"__pycache__\n{BASELINES}\n", encoding="utf-8")
    git(folder, "init", "-q", "-b", BASE)
    for branch, variation in variations(calibration).items():
        if branch != BASE:
            git(folder, "checkout", "-q", "-b", branch, BASE)
        text = TRAINING.format(injection=variation.added, held=variation.held, length=length)
        (folder / "src" / "training.py").write_text(text, encoding="utf-8")
        git(folder, "add", "-A")
        git(folder, *AS_NOBODY, "commit", "-q", "-m", branch)


def check_out(folder: Path, branch: str) -> None:
    """Make ``branch`` the one that is measured here."""
    git(folder, "checkout", "-q", branch)
