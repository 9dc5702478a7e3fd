"""Histories of commits for the tests of a bisection."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from pytest_ddpperf.cli.bisect.ranges import CommitRange, commits_between
from tests import factories

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
