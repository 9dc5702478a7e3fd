"""The cells of real runs: what is run under which terms, how often, and what has to come out."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.verdicts.programs import Program

LENGTHS = ("4ms", "12ms", "60ms")
PAUSES, EACH = (5, 20, 100), (5, 10, 20)  # typical steps, in one step of so many
WORSE = 0.10  # by how much pauses lengthen the mean step at least, in runs that count

Sides: TypeAlias = "tuple[Program, Program]"
"""The reference, and what is compared with it."""


@dataclass(frozen=True)
class Goal:
    """How often something has to come out."""

    what: str  # red, or green: unchanged, ok or improved
    share: float
    at_least: bool
    planted: bool = False  # of benchmarks of a suite that are slower, which alone are meant
    seconds: float | None = None  # within which pytest has to end: that alone is meant


@dataclass(frozen=True)
class Suite:
    """The example suite under a budget, in a clone of the checkout."""

    budget: str
    slower: float = 0.0  # by which share of a step the tests in PLANTED are slower than in the commit before


PLANTED = ("test_small[naive]", "test_small[ddp]", "test_larger")
"""All tests of ``perf_tests/test_language_model.py``."""

NEVER_RED, NEVER_GREEN = Goal("red", 0.0, at_least=False), Goal("green", 0.0, at_least=False)
FOUND, ALWAYS = Goal("red", 0.95, at_least=True), Goal("red", 1.0, at_least=True)


@dataclass(frozen=True)
class Cell:
    """Runs under one set of terms."""

    name: str
    wanted: int  # runs
    measured: Callable[[random.Random, int], Sides] | Suite  # the former: programs of a run, by its number
    busy: bool  # whether two processes compute beside the comparison
    goals: tuple[Goal, ...] = ()
    max_time: float = 60.0  # s
    saved_busy: bool | None = None  # the same of the run that saves the baseline; None beside another revision
    git: bool = True  # whether there is a repository
    counted: bool = False  # whether steps are counted: what is slower would be told at once
    least: float | None = None  # runs whose mean step got longer by less do not count

    @property
    def quiet(self) -> bool:
        """Whether one of its runs takes a quiet machine."""
        return not self.busy or self.saved_busy is False

    def drawn(self, number: int) -> Sides:
        """Returns the programs of a run; always the same."""
        if isinstance(self.measured, Suite):
            raise TypeError(f"{self.name} runs the example suite, which has no programs to draw")
        return self.measured(random.Random(f"{self.name} {number}"), number)  # noqa: S311  no secret


def _of(program: Program, other: Program | None = None) -> Callable[[random.Random, int], Sides]:
    return lambda *_: (program, other or program)


def _slower(work: float) -> Callable[[random.Random, int], Sides]:
    def sides(_: random.Random, number: int) -> Sides:
        length = LENGTHS[number % len(LENGTHS)]
        return Program(length), Program(length, work=work)

    return sides


def _pauses(draw: random.Random, _: int) -> Sides:
    length = draw.choice(LENGTHS)
    pausing = Program(
        length, pause=draw.choice(PAUSES), every=draw.choice(EACH), spins=draw.random() < 0.5, alone=draw.random() < 0.5
    )
    return Program(length), pausing


def _both_pause(draw: random.Random, number: int) -> Sides:
    _, pausing = _pauses(draw, number)
    return pausing, pausing


LOADER = Program("4ms", loader=True), Program("4ms", loader=True, persistent=False)
VALIDATION = Program("4ms", validated=3), Program("4ms", validated=30)


def _cells() -> list[Cell]:
    made: list[Cell] = []
    for busy, where in ((False, "quiet"), (True, "busy")):
        made.append(Cell(f"same-20s-{where}", 100, _slower(0.0), busy, (NEVER_RED,), 20.0, counted=True))
        for share in (5, 10, 50):
            goals = (ALWAYS,) if share == 50 else ()
            for seconds in (20, 60):
                name = f"{share}%-{seconds}s-{where}"
                made.append(Cell(name, 30, _slower(share / 100), busy, goals, float(seconds)))
        made += [
            Cell(f"pauses-{where}", 40, _pauses, busy, (FOUND, NEVER_GREEN), least=WORSE),
            Cell(f"pauses-same-{where}", 40, _both_pause, busy, (NEVER_RED,), counted=True),
            Cell(f"loader-{where}", 10, _of(*LOADER), busy, (FOUND,)),
            Cell(f"validation-{where}", 10, _of(*VALIDATION), busy, (FOUND,)),
            Cell(f"stored-50%-{where}", 20, _slower(0.5), busy, (ALWAYS,), 20.0, saved_busy=False),
        ]
        for length, kind in (("latency", "latency"), ("12ms", "compute")):
            for git in (True, False):
                name = f"stored-{kind}-{'busy' if not busy else 'quiet'}-{where}-{'git' if git else 'no-git'}"
                sides = _of(Program(length))
                made.append(Cell(name, 12, sides, busy, (NEVER_RED,), 20.0, saved_busy=not busy, git=git, counted=True))
    return [
        *made,
        Cell("stored-10%-busy-quiet", 20, _slower(0.1), False, (FOUND,), saved_busy=True),  # noqa: FBT003  a column
        Cell("stored-doubled-no-git", 20, _slower(1.0), False, (ALWAYS,), 20.0, saved_busy=False, git=False),  # noqa: FBT003
    ]


CELLS: Mapping[str, Cell] = {cell.name: cell for cell in _cells()}
"""By name: of a stored baseline, the machine while it is saved comes before that of the comparison."""


def _suites() -> list[Cell]:
    def within(seconds: float) -> Goal:
        return Goal(f"ended within {seconds:g} s", 1.0, at_least=True, seconds=seconds)

    def green(share: float) -> Goal:
        return Goal("green", share, at_least=True)

    five, slower, found = Suite("5min"), Suite("5min", slower=0.1), Goal("red", 0.95, at_least=True, planted=True)
    return [
        Cell("suite-same", 10, five, busy=False, goals=(NEVER_RED, green(0.95), within(320)), counted=True),
        Cell("suite-stored", 5, five, busy=False, goals=(NEVER_RED, green(0.9)), saved_busy=False, counted=True),
        Cell("suite-10%", 20, slower, busy=False, goals=(NEVER_RED, found)),
        Cell("suite-1min", 3, Suite("1min"), busy=False, goals=(within(90),), counted=True),
    ]


SUITES: Mapping[str, Cell] = {cell.name: cell for cell in _suites()}
"""Those that run the example suite, by name."""
