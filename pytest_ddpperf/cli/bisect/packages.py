"""The packages that a bisection searches: an old and a new list, and the states between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import distributions
from pathlib import Path
from typing import ClassVar

from pytest_ddpperf.baselines.files import require_regular
from pytest_ddpperf.cli.bisect.commits import Answer
from pytest_ddpperf.errors import SettingError

_PIN = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*)\s*(?:\[[^]]*\])?\s*(?:===?\s*(?P<version>[^\s;*]+)(?=[\s;]|$)|@\s*(?P<url>\S+))"
)
_TOOL = "pytest-ddpperf"  # this environment's on both sides
ALONE = "alone "  # before the number of a step: this change only

Pins = Mapping[str, str]
"""Pinned requirements, such as ``torch==2.13.0``, by the normalised name of the package."""


def read_pins(file: Path, given: str) -> Pins:
    """Returns the pinned packages of a file that ``pip freeze`` wrote; SettingError if it has other lines.

    Editable installs and this plugin do not count, because every environment uses this checkout and this plugin.
    """
    try:
        require_regular(file)
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
                f"--packages {given}: line {number} is {line}: expected a pinned package, such as torch==2.13.0, as "
                "pip freeze writes it; give options for pip to --pip-args"
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
        """Returns the changes that the step to a state makes: ``torch 2.11.0 -> 2.13.0, triton 3.6.0 -> 3.7.1``."""
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
    """Returns the changes between two lists of packages; packages that require each other change together."""
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
        with suppress(ValueError):  # metadata that pip no longer reads, such as torch>=1.8.*, asks for nothing
            requirement = Requirement(line)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            name = _normal(requirement.name)
            version = installed.get(name, ("", ()))[0]
            if not version or not requirement.specifier.contains(version, prereleases=True):
                unmet.add(name)
    return unmet
