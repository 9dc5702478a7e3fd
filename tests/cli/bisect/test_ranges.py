"""The changes between two commits or two lists of packages, and the next to probe: each in turn is the culprit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddpperf.cli.bisect.bisector import expected_probes
from pytest_ddpperf.cli.bisect.package_search import prepared
from pytest_ddpperf.cli.bisect.ranges import Answer, CommitRange, PackageRange, commits_between, read_pins, together
from pytest_ddpperf.errors import SettingError

Git = Callable[..., str]
Parents = Mapping[str, tuple[str, ...]]
Make = Callable[[Parents], Any]
# c0 - c1 - c2 - c3 -------- m6 - c7        a topic branch of a4 and a5, begun at c2,
#  \        \ a4 - a5 ---- /              and b0, begun before the good end c0, merged by n8
#   before - b0 ------------------ n8
MERGED: Parents = {
    "before": (),
    "c0": ("before",),
    "b0": ("before",),
    "c1": ("c0",),
    "c2": ("c1",),
    "a4": ("c2",),
    "a5": ("a4",),
    "c3": ("c2",),
    "m6": ("c3", "a5"),
    "c7": ("m6",),
    "n8": ("c7", "b0"),
}


def test_commits_between_two_ends_are_listed_in_order(line: Any) -> None:
    between = commits_between("c13", "c16", line.root)
    hashes = [line.hashes[f"c{i}"] for i in (13, 14, 15, 16)]
    assert between.root == line.root
    assert (between.good, between.bad) == (hashes[0], hashes[3])
    assert list(between.parents.items()) == [(hashes[i], hashes[i - 1]) for i in (1, 2, 3)]


@pytest.fixture(scope="module")
def merged(history: Make) -> Any:
    """The history that is drawn above."""
    return history(MERGED)


def test_a_merge_is_searched_with_the_merged_commits_or_as_one_commit(merged: Any) -> None:
    between = merged.between("c2", "m6")
    assert set(merged.names(between.parents)) == set(merged.names(between.suspects)) == {"c3", "a4", "a5", "m6"}
    assert merged.name([*between.parents][-1]) == merged.name(between.suspects[-1]) == "m6"
    alone = merged.between("c2", "m6", first_parent=True)
    assert merged.names(alone.suspects) == merged.names(alone.parents) == ("c3", "m6")
    assert merged.name(alone.next) == "c3"
    for one in (between, alone):
        assert merged.name(one.parents[merged.hashes["m6"]]) == "c3"


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("gone", "c1", "--good gone: there is no such branch, tag or commit in .*; this repository has no remote"),
        ("c1", "gone", "--bad gone: there is no such branch, tag or commit"),
        ("c1", "c1", r"--good c1 --bad c1: both are commit [0-9a-f]{7}; name two different"),
        ("c7", "c3", "--good c7 --bad c3: commit c3 is an ancestor of c7; swap the values"),
        ("b0", "c7", "--good b0 --bad c7: b0 is not an ancestor of c7"),
    ],
)
def test_a_range_that_cannot_be_searched_is_refused(merged: Any, good: str, bad: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        commits_between(good, bad, merged.root)


def remove(root: Path, commit: str) -> None:
    (root / ".git" / "objects" / commit[:2] / commit[2:]).unlink()


def test_a_repository_with_a_missing_commit_is_refused_with_the_cure(repository: Path, git: Git) -> None:
    remove(repository, git("rev-parse", "c8"))
    with pytest.raises(SettingError) as caught:
        commits_between("c1", "c16", repository)
    assert str(caught.value).startswith("--good c1 --bad c16: git cannot list the commits between them: ")
    assert str(caught.value).endswith(
        "; git fsck shows whether the repository is damaged, and git fetch may bring the commit"
    )
    assert "\n" not in str(caught.value)


def test_a_repository_that_loses_a_commit_during_the_search_is_refused_with_the_cure(
    repository: Path, git: Git
) -> None:
    between = commits_between("c1", "c16", repository)
    remove(repository, git("rev-parse", "c8"))
    ends = f"--good {between.good[:7]} --bad {between.bad[:7]}"
    with pytest.raises(SettingError, match=f"^{ends}: git cannot list the commits between them: .*git fsck shows"):
        _ = between.next


def test_a_commit_is_described_by_hash_title_author_and_date(repository: Path, git: Git) -> None:
    git("commit", "-q", "--allow-empty", "-m", "Make it faster", "-m", "Or so.", "--date=2026-01-12T12:00:00Z")
    between, commit = commits_between("c0", "HEAD", repository), git("rev-parse", "HEAD")
    assert between.details(commit) == ["Make it faster", "a, 2026-01-12"]
    assert between.short(commit) == f"{commit[:7]} Make it faster"
    elsewhere = replace(between, root=repository / "gone")
    assert elsewhere.details(commit) == []
    assert elsewhere.short(commit) == commit[:7]


def lineage(parents: Parents, good: str) -> dict[str, frozenset[str]]:
    """Of each commit, itself and the commits before it that do not lie before the good end."""
    held: dict[str, frozenset[str]] = {}
    for commit, before in parents.items():
        held[commit] = frozenset({commit}).union(*(held[parent] for parent in before))
    return {commit: before - held[good] for commit, before in held.items()}


class Plain:
    """The search by its definition, in sets of names."""

    def __init__(self, between: CommitRange, made: Any, good: str) -> None:
        self.ancestors = lineage(made.parents, good)
        self.order = made.names(between.parents)
        self.suspects = self.ancestors[made.name(between.bad)]
        self.skipped: frozenset[str] = frozenset()

    def next(self) -> str | None:
        bad = next(commit for commit in self.suspects if self.ancestors[commit] >= self.suspects)
        candidates = [commit for commit in self.order if commit in self.suspects - self.skipped - {bad}]

        def split(commit: str) -> int:
            before = len(self.ancestors[commit] & self.suspects)
            return min(before, len(self.suspects) - before)

        return max(candidates, key=split, default=None)

    def answered(self, commit: str, answer: Answer) -> None:
        before = self.ancestors[commit]
        if answer == "skipped":
            self.skipped |= {commit}
        else:
            self.suspects = self.suspects & before if answer == "bad" else self.suspects - before


@st.composite
def histories(draw: st.DrawFn) -> Parents:
    """Up to ten commits after the good one, merges among them."""
    parents: dict[str, tuple[str, ...]] = {"old": (), "good": ("old",)}
    for number in range(1, draw(st.integers(2, 11))):
        parents[f"c{number}"] = tuple(draw(st.lists(st.sampled_from([*parents]), min_size=1, max_size=3, unique=True)))
    heads = {*parents} - {parent for before in parents.values() for parent in before}
    return {**parents, "bad": (*sorted(heads | {"good"}),)}


@settings(max_examples=10, deadline=None)
@given(histories(), st.data())
def test_bisection_agrees_with_its_definition_by_sets_of_commits(
    history: Make, parents: Parents, data: st.DataObject
) -> None:
    made: Any = history(parents)
    between = made.between("good", "bad")
    plain = Plain(between, made, "good")
    while True:
        assert set(made.names(between.suspects)) == plain.suspects
        assert expected_probes(between) == math.ceil(math.log2(len(plain.suspects)))
        commit = between.next
        assert (None if commit is None else made.name(commit)) == plain.next()
        if commit is None:
            break
        answers: list[Answer] = ["good", "bad", "skipped"]
        answer = data.draw(st.sampled_from(answers))
        between = between.answered(commit, answer)
        plain.answered(made.name(commit), answer)


def test_neither_the_names_of_refs_nor_a_bisection_of_git_decide(repository: Path, git: Git) -> None:
    """Git prints the names of tags and branches in the lines that say how far a commit is from both ends."""
    git("tag", "dist=99", "c3")
    git("tag", "x,dist=99)", "c5")
    git("bisect", "start", "c5", "c1")
    assert commits_between("c0", "c16", repository).next == git("rev-parse", "c8")


OLD = {"a": "a==1", "b": "b==1", "c": "c==1", "same": "same==5"}
NEW = {"a": "a==2", "b": "b==2", "d": "d[x]==3.0", "same": "same==5"}
RANGE = PackageRange(OLD, NEW, (("a",), ("b", "c"), ("d",)), ("old.txt", "new.txt"))


def test_a_list_is_read_as_pip_freeze_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "old.txt"
    file.write_text(
        "# made by pip freeze\n\nSome_Lib.x==1.5\ntorch==2.13.0+cpu  # from a wheel\n-e git+ssh://host/me/project.git\n"
        'local @ file:///wheels/local-1.0-py3-none-any.whl\ndemo[fast]==1.0 ; python_version > "3.9"\n'
        "hashed==1.0 \\\n    --hash=sha256:00\npytest-ddpperf==0.1.0\n"
    )
    assert read_pins(file, "old.txt") == {
        "some-lib-x": "Some_Lib.x==1.5",
        "torch": "torch==2.13.0+cpu",
        "local": "local @ file:///wheels/local-1.0-py3-none-any.whl",
        "demo": 'demo[fast]==1.0 ; python_version > "3.9"',
        "hashed": "hashed==1.0      --hash=sha256:00",
    }


@pytest.mark.parametrize("line", ["torch>=2", "torch", "torch==2.*", "-r more.txt", "x" * 9999])
def test_a_package_that_is_not_pinned_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "old.txt").write_text(f"numpy==2.0\n{line}\n")
    with pytest.raises(SettingError) as caught:
        read_pins(tmp_path / "old.txt", "old.txt")
    assert str(caught.value).startswith(
        f"--packages old.txt: line 2 is {line:.200}: expected a pinned package, such as"
    )


def test_a_missing_list_of_packages_and_two_equal_lists_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"^--packages gone.txt: No such file or directory; write it with pip"):
        read_pins(tmp_path / "gone.txt", "gone.txt")
    with pytest.raises(SettingError, match=r"^--packages /dev/zero: this is a pipe or a device: name a file; write it"):
        read_pins(Path("/dev/zero"), "/dev/zero")
    (tmp_path / "huge.txt").write_text("torch==2.13.0\n" * 100_000)
    with pytest.raises(SettingError, match=r"^--packages huge.txt: this file has more than 1e\+06 bytes; write it"):
        read_pins(tmp_path / "huge.txt", "huge.txt")
    file = tmp_path / "both.txt"
    file.write_text("torch==2.13.0\n")
    with pytest.raises(SettingError, match="both files list the same packages; name files that"):
        prepared((str(file), str(file)), "", (), base=False)


def test_a_state_has_the_changes_up_to_it_or_one_alone() -> None:
    assert dict(RANGE.pins("0")) == OLD
    assert dict(RANGE.pins("1")) == {**OLD, "a": "a==2"}
    assert dict(RANGE.pins("2")) == {"a": "a==2", "b": "b==2", "same": "same==5"}
    assert dict(RANGE.pins("3")) == NEW
    assert dict(RANGE.pins("alone 2")) == {"a": "a==1", "b": "b==2", "same": "same==5"}
    assert RANGE.changes("2") == "b 1 -> 2, c 1 -> none"
    assert RANGE.short("3") == "new.txt"
    assert RANGE.short("1") == "1 of 3 changes, up to a 1 -> 2"
    assert RANGE.parents == {"1": "0", "2": "1", "3": "2"}


@pytest.mark.parametrize("number", [1, 2, 3, 9])
def test_every_culprit_is_found_in_as_many_probes_as_halving_takes(number: int) -> None:
    names = [f"p{i}" for i in range(number)]
    for culprit in range(1, number + 1):
        found = PackageRange({}, {}, tuple((name,) for name in names), ("old", "new"))
        least = expected_probes(found)
        probes = 0
        while (state := found.next) is not None:
            found = found.answered(state, "bad" if int(state) >= culprit else "good")
            probes += 1
        assert found.suspects == (str(culprit),)
        assert probes <= least == (number - 1).bit_length()


def test_packages_that_need_each_other_s_versions_change_together() -> None:
    old = {"torch": ("2.11.0", ["triton==3.6.0", "sympy>=1.13"]), "triton": ("3.6.0", []), "sympy": ("1.13", [])}
    new = {"torch": ("2.13.0", ["triton==3.7.1", "sympy>=1.13"]), "triton": ("3.7.1", []), "sympy": ("1.14", [])}
    assert together(["sympy", "torch", "triton"], old, new) == (("sympy",), ("torch", "triton"))
    # A package that comes with another one is needed by it; extras and other systems need nothing here.
    new["torch"] = ("2.13.0", ["fresh", "triton>=3.6", 'absent; sys_platform == "win32"', 'other; extra == "x"'])
    new["fresh"] = ("1", [])
    old["torch"] = ("2.11.0", ["triton>=3.6"])
    groups = together(["fresh", "other", "sympy", "torch", "triton"], old, new)
    assert groups == (("fresh", "torch"), ("other",), ("sympy",), ("triton",))
    # Metadata that no longer counts as valid asks for nothing.
    new["torch"] = ("2.13.0", ["sympy>=1.8.*", "fresh", "triton>=3.6"])
    groups = together(["fresh", "sympy", "torch", "triton"], old, new)
    assert groups == (("fresh", "torch"), ("sympy",), ("triton",))
