"""The first launch of a variant, which is not counted: how many steps fill a launch, and who can take turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_ddpperf.measure.costs import ONLY_TIMES
from pytest_ddpperf.measure.terms import Budget, Run
from pytest_ddpperf.measure.variant import Variant, launch_of
from pytest_ddpperf.metrics.table import RESIDENT
from pytest_ddpperf.records import Plan
from pytest_ddpperf.stats.summaries import typical
from pytest_ddpperf.units import format_values

PILOT_STEPS = 5
LAUNCH_SECONDS = 1.0  # of timed steps: long enough to see through the neighbours, short enough for many launches
FEWEST_STEPS, MOST_STEPS = 5, 1000
WITHOUT_TURNS = "launched one after the other, without turns"


@dataclass(frozen=True)
class Piloted:
    """What the pilots of some variants came to.

    Attributes:
        plans: how many steps the launches of each run, in the variants' order.
        turns: keys of those that take turns.
        expected: about how many seconds a round of timed steps takes.
        remarks: why some do not take turns, where nothing spoke against it before.
    """

    plans: tuple[Plan, ...]
    turns: frozenset[tuple[str, int]]
    expected: float
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class _Pilot:
    """What one launch tells.

    Attributes:
        step: seconds of a typical one.
        fixed: seconds of all else.
        background: whether its ranks work on while their steps wait.
        nbytes: of memory that its ranks took at most.
    """

    step: float
    fixed: float
    background: bool
    nbytes: float


def pilot(variants: Sequence[Variant], budget: Budget, run: Run) -> Piloted:
    """Launches each variant once, or twice: the first one may fill caches, compile, connect."""
    plans: list[Plan] = []
    pilots: list[_Pilot] = []
    agreed: dict[tuple[str, int], int] = {}
    for variant in variants:
        steps = PILOT_STEPS if budget.steps is None else min(PILOT_STEPS, budget.steps)
        share = budget.screening / budget.launches / len(variants)
        one = _piloted(variant, Plan(budget.warmup, steps), run)
        if one.fixed > max(LAUNCH_SECONDS, share / 2):
            again = _piloted(variant, Plan(budget.warmup, steps), run)
            one = replace(again, fixed=min(one.fixed, again.fixed))
        followed = agreed.get(variant.key) if variant.other else variant.steps
        plan = Plan(budget.warmup, budget.steps or followed or fitting_steps(one.step, share - one.fixed))
        agreed[variant.key] = plan.steps
        plans.append(plan)
        pilots.append(one)
    turns, remarks = _who_takes_turns(variants, pilots, budget)
    expected = sum(one.fixed + plan.steps * one.step for one, plan in zip(pilots, plans, strict=True))
    return Piloted(tuple(plans), turns, expected, remarks)


def _who_takes_turns(
    variants: Sequence[Variant], pilots: Sequence[_Pilot], budget: Budget
) -> tuple[frozenset[tuple[str, int]], tuple[str, ...]]:
    """The keys of those that take turns, and why others do not.

    Turns do not suit what works on in the background meanwhile: data would be there before it is waited for. And all
    that take them have to fit into memory together.
    """
    if len(variants) == 1 or not budget.turns or not can_take_turns(variants):
        return frozenset(), ()
    busy = {one.key: one.name for one, pilot in zip(variants, pilots, strict=True) if pilot.background}
    turns = frozenset(one.key for one in variants) - busy.keys()
    remarks = [f"{WITHOUT_TURNS}: ranks of {', '.join(busy.values())} work on in the background"] if busy else []
    needed = sum(pilot.nbytes for one, pilot in zip(variants, pilots, strict=True) if one.key in turns)
    if budget.memory is not None and needed > budget.memory:
        return frozenset(), (*remarks, no_room("ranks of all at the same time", needed, budget.memory))
    return turns, tuple(remarks)


def no_room(what: str, needed: float, free: float) -> str:
    """A remark where turns would take more memory than there is for them, in bytes."""
    return f"{WITHOUT_TURNS}: {what} would take {' of memory, and there are '.join(format_values((needed, free), 'B'))}"


def can_take_turns(variants: Sequence[Variant]) -> bool:
    """Whether launches of these may run at the same time, as far as can be told before any.

    On the CPU only: a GPU would have to hold all of them, and ranks that wait for their turn there do not leave it
    alone.
    """
    return all(one.environment.device == "cpu" for one in variants)


def _piloted(variant: Variant, plan: Plan, run: Run) -> _Pilot:
    ((ranks, seconds),) = run([(variant, plan)], ONLY_TIMES)
    step = typical(launch_of(0, ranks, seconds).step_times)
    return _Pilot(
        step,
        max(0.0, seconds - step * plan.steps),
        any(rank.background for rank in ranks),
        sum(rank.memory.get(RESIDENT, 0.0) for rank in ranks),
    )


def fitting_steps(step: float, seconds: float) -> int:
    """How many steps of ``step`` seconds a launch times: about a second's worth, fewer if ``seconds`` is less."""
    fitting = math.ceil(min(LAUNCH_SECONDS, seconds) / max(step, 1e-9))
    return min(MOST_STEPS, max(FEWEST_STEPS, fitting))
