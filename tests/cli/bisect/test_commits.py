from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ddpperf.cli.bisect.commits import Commit, commits_between, described
from pytest_ddpperf.errors import SettingError

Git = Callable[..., str]


def test_a_line_of_commits(repository: Path, git: Git) -> None:
    between = commits_between("v13", "v16", repository)
    hashes = [git("rev-parse", f"v{i}") for i in (13, 14, 15, 16)]
    assert between.root == repository
    assert (between.good, between.bad) == (hashes[0], hashes[3])
    assert list(between.parents.items()) == [(hashes[i], (hashes[i - 1],)) for i in (1, 2, 3)]


def test_a_merge_is_seen_with_what_it_merged_or_as_one_commit(repository: Path, git: Git) -> None:
    git("checkout", "-q", "-b", "topic", "v15")
    git("commit", "-q", "--allow-empty", "-m", "on the topic")
    git("checkout", "-q", "main")
    git("merge", "-q", "--no-ff", "-m", "merge", "topic")
    between = commits_between("v14", "main", repository)
    merge, topic, last = (git("rev-parse", name) for name in ("main", "topic", "v16"))
    assert set(between.parents) == {git("rev-parse", "v15"), last, topic, merge}
    assert list(between.parents)[-1] == merge
    assert between.parents[merge] == (last, topic)
    alone = commits_between("v14", "main", repository, first_parent=True)
    assert topic not in alone.parents
    assert alone.parents[merge] == (last,)


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("gone", "v1", "--good gone: there is no such branch, tag or commit in .*; git fetch may bring it"),
        ("v1", "gone", "--bad gone: there is no such branch, tag or commit"),
        ("v1", "v1", r"--good v1 --bad v1: both are [0-9a-f]{7}: there is no commit between them"),
        ("v9", "v3", "--good v9 --bad v3: v3 came before v9; are they the wrong way round\\?"),
        ("beside", "v16", "--good beside --bad v16: beside is no ancestor of v16"),
    ],
)
def test_what_cannot_be_searched_is_said(repository: Path, git: Git, good: str, bad: str, said: str) -> None:
    git("checkout", "-q", "-b", "beside", "v3")
    git("commit", "-q", "--allow-empty", "-m", "beside")
    with pytest.raises(SettingError, match=said):
        commits_between(good, bad, repository)


def test_a_repository_that_is_not_whole_is_told_with_the_cure(repository: Path, git: Git) -> None:
    commit = git("rev-parse", "v8")
    (repository / ".git" / "objects" / commit[:2] / commit[2:]).unlink()
    with pytest.raises(SettingError) as caught:
        commits_between("v1", "v16", repository)
    assert str(caught.value).startswith("--good v1 --bad v16: git cannot list the commits between them: ")
    assert str(caught.value).endswith("; git fsck tells whether the repository is whole, and git fetch may bring it")
    assert "\n" not in str(caught.value)


def test_without_a_repository_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"ddpperf bisect: .* is in no git repository; run it in a checkout"):
        commits_between("v1", "v2", tmp_path)


def test_a_commit_in_words(repository: Path, git: Git) -> None:
    git("commit", "-q", "--allow-empty", "-m", "Make it faster", "-m", "Or so.", "--date=2026-01-12T12:00:00Z")
    commit = git("rev-parse", "HEAD")
    assert described(repository, commit) == Commit(commit, "Make it faster", "Ada", "2026-01-12")
    assert described(repository, commit).short == f"{commit[:7]} Make it faster"
    assert described(repository / "gone", commit).short == commit[:7]
