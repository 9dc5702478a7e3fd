"""A throw-away project whose commits differ in one way each: what real runs have to tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.quality.conditions import Calibration, Condition, Injection, injection
from pytest_ddpperf.against.git import git
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.records.verdict import Verdict

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

INJECTIONS = {injections!r}
HELD = {held}  # bytes


def build(ctx, length):
    step = Training(LENGTHS[length], INJECTIONS[length])(ctx)
    step.held = torch.ones(HELD // 4)
    return step
"""
TEST = """\
from functools import partial

import pytest
from training import build


@pytest.mark.parametrize("length", {lengths!r})
def test_step(ddpperf, length):
    ddpperf.check(partial(build, length=length))
"""
WORKLOAD = """\
from benchmarks.quality.conditions import LENGTHS
from benchmarks.quality.steps import workload

WORK = workload(LENGTHS[{length!r}])
"""
WORKLOAD_TEST = """\
from training import WORK


def test_step(ddpperf):
    ddpperf.check(WORK, strategy="ddp")
"""


@dataclass(frozen=True)
class Variation:
    """How one branch's steps differ from those of the base.

    Attributes:
        added: to a step, by its length; nothing to others.
        held: bytes of memory that are kept for as long as it runs.
    """

    added: Mapping[str, Injection] = field(default_factory=dict)
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
_GROSS = (20, 50, 100)
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
        *(Change(f"+{n}%", f"slower-{n}", BASE, Verdict.REGRESSED, times_only=True) for n in _GROSS),
        *(Change(f"stored: +{n}%", f"slower-{n}", None, Verdict.REGRESSED, times_only=True) for n in _GROSS),
    )
}
GROUPS: Mapping[str, tuple[str, ...]] = {
    "gross": tuple(name for name, change in CHANGES.items() if change.here in {f"slower-{n}" for n in _GROSS})
}
"""Changes by one name for all of them, which are made only when they are asked for."""

USUAL = tuple(name for name in CHANGES if not any(name in group for group in GROUPS.values()))


def picked(names: Sequence[str] | None, further: Sequence[str] = ()) -> list[str]:
    """The changes of these names, of which some may stand for a group; None for the usual ones.

    Raises:
        SettingError: there is no such name, here or among the ``further`` ones.
    """
    chosen = [one for name in names or USUAL for one in GROUPS.get(name, (name,))]
    for name in chosen:
        if name not in CHANGES and name not in further:
            there = ", ".join(map(repr, (*CHANGES, *GROUPS, *further)))
            raise SettingError(f"--changes {name!r}: there are {there}")
    return list(dict.fromkeys(chosen))


def variations(calibrations: Mapping[str, Calibration]) -> dict[str, Variation]:
    """The branches, by name; ``calibrations`` tell, by length of the step, how much work makes it longer."""
    slower = {
        f"slower-{percent}": {
            length: injection(Condition(f"+{percent}%", work=percent / 100), calibration)
            for length, calibration in calibrations.items()
        }
        for percent in (5, 10, *_GROSS)
    }
    return {
        BASE: Variation(),
        **{branch: Variation(added) for branch, added in slower.items()},
        "all-reduce": Variation(dict.fromkeys(calibrations, Injection(elements=SMALLEST))),
        "memory": Variation(held=HELD),
    }


def make_project(folder: Path, calibrations: Mapping[str, Calibration]) -> None:
    """A git repository with a branch for each variation, whose ``perf`` benchmarks a step of each of these lengths.

    Raises:
        GitError: git cannot.
    """
    branches = {
        branch: TRAINING.format(
            injections={length: variation.added.get(length, NOTHING) for length in calibrations}, held=variation.held
        )
        for branch, variation in variations(calibrations).items()
    }
    _commit(folder, TEST.format(lengths=list(calibrations)), branches)


def make_workload_project(folder: Path, length: str) -> None:
    """A git repository of one commit, whose ``perf`` benchmarks a workload with a step of this length under DDP.

    Raises:
        GitError: git cannot.
    """
    _commit(folder, WORKLOAD_TEST, {BASE: WORKLOAD.format(length=length)})


def node_id(length: str) -> str:
    """The pytest node id of the benchmark of a step of this length."""
    return f"{TESTS}/test_training.py::test_step[{length}]"


def _commit(folder: Path, test: str, branches: Mapping[str, str]) -> None:
    """Make the repository: the same ``test`` in all ``branches``, of which each has a module of its own to train."""
    for path in (folder / "src", folder / TESTS):
        path.mkdir(parents=True)
    (folder / TESTS / "test_training.py").write_text(test, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / ".gitignore").write_text(f"__pycache__\n{BASELINES}\n", encoding="utf-8")
    git(folder, "init", "-q", "-b", BASE)
    for branch, text in branches.items():
        if branch != BASE:
            git(folder, "checkout", "-q", "-b", branch, BASE)
        (folder / "src" / "training.py").write_text(text, encoding="utf-8")
        git(folder, "add", "-A")
        git(folder, *AS_NOBODY, "commit", "-q", "-m", branch)


def check_out(folder: Path, branch: str) -> None:
    """Make ``branch`` the one that is measured here."""
    git(folder, "checkout", "-q", branch)
