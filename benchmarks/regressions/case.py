"""What a public regression is: a program of a few lines, the change that made it worse, and what has to be red."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.regressions import cases

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def layers(number=3, width=16):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(number)))


"""
"""What each program begins with."""

Change = tuple[str, str]
"""Text that occurs once in a program, and what stands there afterwards."""


class CaseError(ValueError):
    """A case is not what it has to be."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A regression that somebody reported, rebuilt."""

    number: int
    title: str  # what the change did, for somebody who knows PyTorch
    threads: tuple[str, ...]  # owner/repository#number; the first one is what the case is named by
    program: str = ""  # the better version, after HEAD
    worse: tuple[Change, ...] = ()
    line: str = ""  # text of the guilty line, which occurs once in the worse version
    red: frozenset[str] = frozenset()  # metrics that have to be regressed
    same: frozenset[str] = frozenset({"optimizer_steps"})  # metrics that may not be
    cause: str = ""  # what the failure has to say
    twin: tuple[Change, ...] = ()  # a change of the better version that does no harm
    trade: frozenset[str] = frozenset()  # metrics that the change makes better: they are red when it is taken back
    verdict: str = "regressed"  # of the worse version
    script: bool = False  # whether the program is a script for torchrun; else its function build() gives a step
    ranks: int = 2
    check: str = ""  # further arguments of ddpperf.check
    clock: bool = False  # whether only times can tell; it is run side by side with the better version then
    needs: tuple[str, ...] = ()  # modules without which it cannot run
    left_out: str = ""  # why it cannot be shown by counts
    blind: str = ""  # what the plugin cannot see yet
    name: str = ""  # of its program; by its file

    def better_text(self) -> str:
        """The whole better version."""
        return HEAD + self.program

    def worse_text(self) -> str:
        """The whole worse version."""
        return changed(self.better_text(), self.worse)

    def twin_text(self) -> str:
        """The whole version that differs and is no worse."""
        return changed(self.better_text(), self.twin)

    def guilty(self) -> int:
        """The number of the guilty line in the worse version."""
        text = self.worse_text()
        if text.count(self.line) != 1 or not self.line:
            raise CaseError(f"case {self.number}: {self.line!r} does not occur once in the worse version")
        return text[: text.index(self.line)].count("\n") + 1

    def missing(self) -> list[str]:
        """The modules that it needs and that are not installed."""
        return [module for module in self.needs if importlib.util.find_spec(module) is None]


@dataclass(frozen=True)
class Row:
    """What came out for a case."""

    number: int
    verdict: str = ""
    red: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()  # metrics that should be red
    moved: tuple[str, ...] = ()  # metrics that should not be
    cause: bool = False
    line: bool = False
    seconds: float = 0.0
    clock: bool = False  # whether times told it, and not counts
    twin: str = ""
    twin_red: tuple[str, ...] = ()
    back: str = ""  # the verdict when the change is taken back
    both: bool = True  # whether a trade names both sides
    skipped: str = ""
    said: str = ""  # the failure


def changed(text: str, changes: Sequence[Change]) -> str:
    """The text after these changes; CaseError if one of them has no place, or several."""
    for old, new in changes:
        if text.count(old) != 1:
            raise CaseError(f"{old!r} occurs {text.count(old)} times")
        text = text.replace(old, new)
    return text


def url(thread: str) -> str:
    """The address of a thread; GitHub leads from an issue's to a pull request's."""
    repository, _, number = thread.partition("#")
    return f"https://github.com/{repository}/issues/{number}"


def all_cases() -> dict[int, Case]:
    """The cases by number."""
    found: dict[int, Case] = {}
    for module in pkgutil.iter_modules(cases.__path__):
        case: Case = importlib.import_module(f"{cases.__name__}.{module.name}").CASE
        found[case.number] = replace(case, name=re.sub(r"^case_\d+_", "", module.name))
    return dict(sorted(found.items()))
