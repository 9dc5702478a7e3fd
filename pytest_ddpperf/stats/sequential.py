"""The stopping rule: when to add launches, when to stop, and when to start afresh because of a suspect.

Launches are added in looks. Each phase takes at most four, with 1, 2, 4 and 8 times the first one's launches as far as
the time allows, and every look tests at a quarter of the significance level (Bonferroni): looking again does not add to
the false alarms. What looks slower in the screening phase is a suspect only; a second phase judges it by fresh launches
alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from pytest_ddpperf.verdict import Verdict

ALPHA = 0.01  # two-sided, for all looks of a phase together
LOOKS = 4
FEWEST_MORE = 2  # a look at one launch more is not worth its share of the significance level


class Phase(str, Enum):
    """What the launches are for."""

    SCREEN = "screen"
    CONFIRM = "confirm"


@dataclass(frozen=True)
class State:
    """Where the procedure stands when a look has been taken.

    Attributes:
        launches: of this phase, so far; the ones that the verdict rests on.
        look: how many looks of this phase have been taken.
        first: how many launches the first look of a phase has.
    """

    launches: int
    look: int
    first: int
    phase: Phase = Phase.SCREEN


@dataclass(frozen=True)
class Action:
    """What to do next: ``stop``, measure ``launches`` ``more``, or ``confirm``: begin again with that many."""

    action: Literal["stop", "more", "confirm"]
    launches: int = 0


STOP = Action("stop")


def alpha_per_look(alpha: float = ALPHA, looks: int = LOOKS) -> float:
    """The significance level of one look, such that all of a phase's looks together keep to ``alpha`` (Bonferroni)."""
    return alpha / looks


def begin(first: int) -> State:
    """The state at the first look, when ``first`` launches have been measured."""
    return State(launches=first, look=1, first=first)


def advance(state: State, action: Action) -> State:
    """The state at the next look, when what ``action`` asked for has been measured."""
    if action.action == "confirm":
        return State(launches=action.launches, look=1, first=state.first, phase=Phase.CONFIRM)
    return replace(state, launches=state.launches + action.launches, look=state.look + 1)


def next_action(
    state: State, verdicts: Iterable[Verdict], *, elapsed: float, deadline: float, launch_seconds: float
) -> Action:
    """What to do after a look.

    A confirmation takes its first look whatever it costs: a suspect is never the verdict.

    Args:
        state: at this look.
        verdicts: of all gated metrics of all variants; the worst of them decides.
        elapsed: seconds spent on this benchmark.
        deadline: seconds that it may have taken at the end of this phase.
        launch_seconds: what one more launch is expected to take: of every variant, if there are several.
    """
    seen = set(verdicts)
    if Verdict.REGRESSED in seen:
        return STOP if state.phase is Phase.CONFIRM else Action("confirm", state.first)
    if Verdict.INCONCLUSIVE not in seen or state.look >= LOOKS:
        return STOP
    fitting = int((deadline - elapsed) / launch_seconds) if launch_seconds > 0 else state.launches
    more = min(max(state.launches, FEWEST_MORE), fitting)  # every look doubles the launches, or takes what time is left
    return Action("more", more) if more >= FEWEST_MORE else STOP
