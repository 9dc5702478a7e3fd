"""The commits, or the changes of packages, that a bisection searches, and the choice of the next probe."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import distributions
from pathlib import Path
from typing import ClassVar, Literal

from pytest_ddpperf.against.git import GitError, commit_of, fetching, git, no_repository, top_folder
from pytest_ddpperf.baselines.files import require_regular
from pytest_ddpperf.errors import SettingError

Answer = Literal["good", "bad", "skipped"]
SHORT = 7
_HISTORY_SECONDS = 120.0  # to walk through a long history
_BISECT_LINE = re.compile(r"(\w+) .*\bdist=(\d+)\)")


@dataclass(frozen=True)
class CommitRange:
    """The commits after a good commit up to a bad one, with the answers of the probes.

    The search assumes that one commit made the change and that no later commit undid it. Commits are full hashes.
    """

    noun: ClassVar[str] = "commit"
    root: Path  # the top folder of the repository
    good: str
    bad: str
    parents: Mapping[str, str]  # the first parent of each commit; the good end if it has none; parents come first
    options: tuple[str, ...] = ()  # of git rev-list
    answers: Mapping[str, Answer] = field(default_factory=dict)  # in the order of the probes

    @cached_property
    def _distances(self) -> Mapping[str, int]:
        """Returns, for each suspect, the least number of suspects that a probe of this suspect excludes."""
        ends = f"--good {self.good[:SHORT]} --bad {self.bad[:SHORT]}"
        bad, good = (self.bad, *self._answered("bad"))[-1], (self.good, *self._answered("good"))
        lines = _rev_list(self.root, ends, "--bisect-all", *self.options, bad, *(f"^{commit}" for commit in good))
        return {match[1]: int(match[2]) for match in map(_BISECT_LINE.fullmatch, lines) if match is not None}

    def _answered(self, answer: Answer) -> list[str]:
        return [commit for commit, given in self.answers.items() if given == answer]

    @property
    def suspects(self) -> tuple[str, ...]:
        """Returns the commits that may be the first bad one, parents first; the last commit is known to be bad."""
        return tuple(commit for commit in self.parents if commit in self._distances)

    @property
    def next(self) -> str | None:
        """Returns the commit to probe, which halves the suspects as evenly as possible; None if the search is over."""
        candidates = [commit for commit in self.suspects[:-1] if commit not in self.answers]
        return max(candidates, key=self._distances.__getitem__, default=None)

    def answered(self, commit: str, answer: Answer) -> CommitRange:
        """Returns this range with a further answer: the answer of the probe of ``commit``."""
        return replace(self, answers={**self.answers, commit: answer})

    def short(self, commit: str) -> str:
        """Returns the short hash and the subject of a commit: ``3f2a1c0 Average gradients in one call``."""
        return f"{commit[:SHORT]} {self._show(commit, '%s')}".rstrip()

    def details(self, commit: str) -> list[str]:
        """Returns lines with a commit's subject, author and day; none if git cannot show them."""
        return self._show(commit, "%s%n%an, %as").splitlines()

    def _show(self, commit: str, form: str) -> str:
        with contextlib.suppress(GitError):
            return git(self.root, "show", "-s", f"--format={form}", commit)
        return ""


def commits_between(good: str, bad: str, folder: Path, *, first_parent: bool = False) -> CommitRange:
    """Returns the commits between two revisions of a folder's repository; the good one must precede the bad one."""
    try:
        root = top_folder(folder)
    except GitError as error:
        raise SettingError(f"ddpperf bisect: {no_repository(folder, error)}; run bisect in a git checkout") from None
    hashes = []
    for option, name in (("--good", good), ("--bad", bad)):
        commit = commit_of(root, name)
        if commit is None:
            raise SettingError(f"{option} {name}: there is no such branch, tag or commit in {root}; {fetching(root)}")
        hashes.append(commit)
    first, last = hashes
    ends, options = f"--good {good} --bad {bad}", ("--first-parent",) if first_parent else ()
    if first == last:
        raise SettingError(f"{ends}: both are commit {first[:SHORT]}; name two different commits")
    # git merge-base --is-ancestor would answer "no" to errors as well.
    if not _rev_list(root, ends, "--max-count=1", last, f"^{first}"):
        raise SettingError(f"{ends}: commit {bad} is an ancestor of {good}; swap the values of the two options")
    if _rev_list(root, ends, "--max-count=1", first, f"^{last}"):
        raise SettingError(
            f"{ends}: {good} is not an ancestor of {bad}, so the change need not lie between them; name a good "
            f"commit that is an ancestor, such as the output of git merge-base {good} {bad}; {fetching(root)}"
        )
    lines = _rev_list(root, ends, "--topo-order", "--reverse", "--parents", *options, last, f"^{first}")
    parents = {commit: (*before, first)[0] for commit, *before in map(str.split, lines)}
    return CommitRange(root, first, last, parents, options)


def _rev_list(root: Path, ends: str, *arguments: str) -> list[str]:
    try:
        return git(root, "rev-list", *arguments, seconds=_HISTORY_SECONDS).splitlines()
    except GitError as error:
        reason = f"{ends}: git cannot list the commits between them: {error}"
        cure = f"git fsck shows whether the repository is damaged, and {fetching(root)}"
        raise SettingError(f"{reason}; {cure}") from None


_PIN = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*)\s*(?:\[[^]]*\])?\s*(?:===?\s*(?P<version>[^\s;*]+)(?=[\s;]|$)|@\s*(?P<url>\S+))"
)
_TOOL = "pytest-ddpperf"  # this environment's on both sides
ALONE = "alone "  # before the number of a step: this change only

Pins = Mapping[str, str]
"""Pinned requirements, such as ``torch==2.13.0``, by the normalised name of the package."""


def read_pins(file: Path, given: str) -> Pins:
    """Returns the pinned packages of a file that ``pip freeze`` wrote; raises SettingError if it has other lines.

    Errors name the file as ``given``. Editable installs and this plugin are omitted, as all environments share them.
    """
    try:
        require_regular(file, most=1e6)
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingError(f"--packages {given}: {reason}; write it with pip freeze > {given}") from None
    pins: dict[str, str] = {}
    for number, raw in enumerate(text.replace("\\\n", " ").splitlines(), 1):
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        if not line or re.match(r"(-e|--editable)\b", line):
            continue
        found = _PIN.match(line)
        if found is None:
            raise SettingError(
                f"--packages {given}: line {number} is {line:.200}: expected a pinned package, such as torch==2.13.0, "
                "as pip freeze writes it; give options for pip to --pip-args"
            )
        pins[_normal(found["name"])] = line
    return {name: line for name, line in pins.items() if name != _TOOL}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class PackageRange:
    """The changes that lead from one list of packages to another, in the order in which they are made.

    It has the methods of ``CommitRange``. A state is the list of packages after n changes; its name is the number n.
    """

    noun: ClassVar[str] = "change"
    old: Pins
    new: Pins
    steps: tuple[tuple[str, ...], ...]  # the packages that change together
    names: tuple[str, str]  # of both lists, as given
    answers: Mapping[str, Answer] = field(default_factory=dict)

    good: ClassVar[str] = "0"

    @property
    def bad(self) -> str:
        """Returns the name of the state with all packages of the new list."""
        return str(len(self.steps))

    @property
    def parents(self) -> Mapping[str, str]:
        """Returns, for the name of each state, the name of the state before it."""
        return {str(number): str(number - 1) for number in range(1, len(self.steps) + 1)}

    def _answered(self, answer: Answer) -> list[int]:
        return [int(state) for state, given in self.answers.items() if given == answer]

    @property
    def suspects(self) -> tuple[str, ...]:
        """Returns the names of the states that may be the first bad one; the last state is known to be bad."""
        good, bad = max(self._answered("good"), default=0), min(self._answered("bad"), default=len(self.steps))
        return tuple(map(str, range(good + 1, bad + 1)))

    @property
    def next(self) -> str | None:
        """Returns the name of the state to probe, in the middle of the suspects; None if the search is over."""
        suspects = self.suspects
        middle = (len(suspects) - 2) / 2
        left = [i for i, state in enumerate(suspects[:-1]) if state not in self.answers]
        return suspects[min(left, key=lambda i: (abs(i - middle), i))] if left else None

    def answered(self, state: str, answer: Answer) -> PackageRange:
        """Returns this range with a further answer: the answer of the probe of ``state``."""
        return replace(self, answers={**self.answers, state: answer})

    def pins(self, state: str) -> Pins:
        """Returns the packages of a state."""
        number = int(state.removeprefix(ALONE))
        steps = self.steps[number - 1 : number] if state.startswith(ALONE) else self.steps[:number]
        changed = {name for step in steps for name in step}
        pins = {**self.old, **{name: self.new.get(name, "") for name in changed}}
        return {name: line for name, line in pins.items() if line}

    def changes(self, state: str) -> str:
        """Returns the changes since the state before ``state``: ``torch 2.11.0 -> 2.13.0, triton 3.6.0 -> 3.7.1``."""
        return ", ".join(
            f"{name} {_version(self.old.get(name))} -> {_version(self.new.get(name))}"
            for name in self.steps[int(state) - 1]
        )

    def short(self, state: str) -> str:
        """Returns a state as text: the number of changes made so far, and the last change."""
        if state in {self.good, self.bad}:
            return self.names[state == self.bad]
        return f"{state} of {len(self.steps)} changes, up to {self.changes(state)}"


def _version(line: str | None) -> str:
    found = None if line is None else _PIN.match(line)
    return "none" if found is None else found["version"] or found["url"]


def packages_between(old: Pins, new: Pins, names: tuple[str, str], paths: Sequence[Sequence[str]]) -> PackageRange:
    """Returns the changes between two lists of packages; packages that require each other change together.

    ``names`` are the names of the two lists. ``paths`` are the search paths of environments with these packages.
    """
    changed = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    return PackageRange(old, new, together(changed, *map(_installed, paths)), names)


Installed = Mapping[str, tuple[str, Sequence[str]]]
"""Version and requirements of each installed package."""


def _installed(path: Iterable[str]) -> Installed:
    found: dict[str, tuple[str, Sequence[str]]] = {}
    for one in distributions(path=list(path)):
        if one.metadata["Name"]:
            found.setdefault(_normal(one.metadata["Name"]), (one.version, one.requires or ()))
    return found


def together(changed: Sequence[str], old: Installed, new: Installed) -> tuple[tuple[str, ...], ...]:
    """Groups packages that must change together, because one package requires the old or new version of another one."""
    groups = [{name} for name in changed]
    for mine, others in ((new, old), (old, new)):
        for name in changed:
            for needed in _unmet(mine.get(name, ("", ()))[1], others) & {*changed}:
                joined = [group for group in groups if group & {name, needed}]
                groups = [group for group in groups if group not in joined] + [set().union(*joined)]
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def _unmet(requirements: Sequence[str], installed: Installed) -> set[str]:
    """Returns the required packages that are installed in a version which the requirements do not allow."""
    from packaging.requirements import Requirement

    unmet = set()
    for line in requirements:
        with contextlib.suppress(
            ValueError
        ):  # metadata that pip no longer reads, such as torch>=1.8.*, asks for nothing
            requirement = Requirement(line)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            name = _normal(requirement.name)
            version = installed.get(name, ("", ()))[0]
            if not version or not requirement.specifier.contains(version, prereleases=True):
                unmet.add(name)
    return unmet
