"""The stopping rule: when to add a launch, when to stop, and when to start afresh because of a suspect.

A screening phase looks after every launch until all metrics are decided or half of the time is up. A metric that looks
worse there, by an easy test, is a suspect only: a second phase has fresh launches, no fewer than the first had. Memory
and losses beside a stored baseline are judged by these alone, by a hard test; side by side they have to be worse by the
easy one, and all launches together have to pass the hard test. A false alarm has to pass all tests, so the first one
may be easy, and few slowdowns slip by. A metric that has not looked worse by then is measured on to show that it is
not, and cannot be found worse.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal, TypeAlias

from pytest_ddpperf.records.verdict import OPEN, Verdict

ALPHA = 0.01  # two-sided, for one benchmark
SUITE_ALPHA = 0.04
"""Two-sided, for all benchmarks of a suite together: half of it is for the worse, so 2 % of suites raise a false alarm.

Beside a stored baseline screening and confirmation share the baseline's error. What passes the one by chance is likely
to pass the other, so the confirmation alone has to keep the budget.
"""

PAIRED_ALPHA, PAIRED_SUITE_ALPHA = 0.007, 0.035
"""The same where both sides are measured in the same rounds.

All launches together have to be worse at this level, and fresh ones alone at that of a suspicion;
benchmarks/decision.py prints how often unchanged code is red.
"""

MIN_LAUNCHES = 2  # a single one shows no scatter

Key: TypeAlias = "tuple[str, int]"  # of a benchmark among those of one call: name and world size


class Phase(str, Enum):
    """What the launches are for."""

    SCREEN = "screen"
    CONFIRM = "confirm"
    CLEAR = "clear"


@dataclass(frozen=True, slots=True)
class Interim:
    """Where a benchmark stands when a judge looks at it."""

    elapsed: float  # seconds of measuring so far
    round_seconds: float  # of another launch of what is launched now
    last: bool  # whether there is no time for another launch of what goes on, as far as that is known
    screened: bool = False  # whether there is no time to confirm what looks worse from now on
    diagnosed: bool = False  # whether the diagnosed launches have been made as well
    of_each: Mapping[Key, float] = field(default_factory=dict)  # of another launch of each benchmark, all sides
    over: float = 1.0  # the share of the error of proofs that may be spent by now
    final: float = 1.0  # the same of a last look
    shared: bool = False  # whether the session deals the time out, so that no setting of the test makes more of it
    defers: bool = False  # whether what looks worse is confirmed in the second pass over the suite, and not now
    rounds: int = 0  # of all benchmarks, that there is time for after this look
    diagnosis: float = 0.0  # seconds of a full one
    before: float = 0.0  # seconds of the call before the first launch that timed

    def seconds_of(self, keys: Collection[Key] | None) -> float:
        """The seconds of a round that launches these benchmarks; None for all."""
        if not self.of_each:
            return self.round_seconds
        return math.fsum(seconds for key, seconds in self.of_each.items() if keys is None or key in keys)


@dataclass(frozen=True, slots=True)
class Action:
    """What to do after a look: stop, measure so many launches more, or confirm: start again with that many.

    ``going_on`` are the benchmarks that these launches are of, by key; None for all that are measured together. After
    diagnosed launches, ``confirm`` asks for fresh diagnosed ones.
    """

    kind: Literal["stop", "more", "confirm"]
    launches: int = 0
    suspects: tuple[str, ...] = ()  # the metrics that looked worse, in words
    explain: bool = False  # whether a diagnosis is wanted though no time is left
    worse: bool = False  # whether something is, which has to be told even if no diagnosis succeeds
    going_on: frozenset[Key] | None = None


@dataclass(frozen=True, slots=True)
class State:
    """Where the procedure stands when a look has been taken."""

    launches: int  # of this phase, so far
    first: int  # launches at the first look of a phase
    phase: Phase = Phase.SCREEN


STOP = Action("stop")


def alpha_of_benchmark(benchmarks: int, *, paired: bool = False) -> float:
    """The significance level, two-sided, at which one of so many benchmarks is judged (Bonferroni)."""
    alone, of_suite = (PAIRED_ALPHA, PAIRED_SUITE_ALPHA) if paired else (ALPHA, SUITE_ALPHA)
    return min(alone, of_suite / max(1, benchmarks))


def advance(state: State, action: Action, *, screened: bool = False) -> State:
    """The state at the next look, when what ``action`` asked for has been measured."""
    if action.kind == "confirm":
        return State(action.launches, state.first, Phase.CONFIRM)
    phase = Phase.CLEAR if state.phase is Phase.SCREEN and screened else state.phase
    return replace(state, launches=state.launches + action.launches, phase=phase)


def next_action(
    state: State, verdicts: Iterable[Verdict], *, suspects: bool, last: bool, measure_on: bool = False
) -> Action:
    """What to do after a look; a confirmation is begun whatever it costs, because a suspect is never the verdict."""
    seen = set(verdicts)
    if state.phase is Phase.SCREEN and (suspects or Verdict.REGRESSED in seen):
        return Action("confirm", max(state.first, state.launches))
    if Verdict.REGRESSED in seen or not (measure_on or seen & OPEN):
        return STOP
    return STOP if last else Action("more", 1)
