"""The first launch of a variant, which is not counted: how many steps fill a launch, and who takes turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_ddpperf.measure.costs import ONLY_TIMES
from pytest_ddpperf.measure.groups import Groups, grouped
from pytest_ddpperf.measure.terms import Budget, Run
from pytest_ddpperf.measure.variant import Variant, launch_of
from pytest_ddpperf.records import Plan
from pytest_ddpperf.stats.summaries import typical

PILOT_STEPS = 5
LAUNCH_SECONDS = 1.0  # of timed steps: long enough to see through the neighbours, short enough for many launches
FEWEST_STEPS, MOST_STEPS = 5, 1000

SHORT_LAUNCH_SECONDS = 0.5
"""The same where both sides of a benchmark take turns.

What makes other launches differ then hits both; what is left is mostly each step's own, and averages out over as many
steps in shorter launches, which take about as long to tell as much (benchmarks/turns.py). More of them are looked at,
the first time sooner, and know their scatter better.
"""

FEW_STEPS = 20  # fewer are long ones: a launch takes its time for them, and fewer launches are diagnosed


@dataclass(frozen=True)
class Piloted:
    """What the pilots of some variants came to.

    Attributes:
        plans: how many steps the launches of each run, in the variants' order.
        groups: who is launched at the same time.
        expected: about how many seconds a round of timed steps takes.
        remarks: why some do not take turns, where nothing spoke against it before.
    """

    plans: tuple[Plan, ...]
    groups: Groups
    expected: float
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class _Pilot:
    """What one launch tells.

    Attributes:
        step: seconds of a typical one.
        fixed: seconds of all else.
        background: whether its ranks work on while their steps wait.
        nbytes: of memory that its ranks took at most, all together.
    """

    step: float
    fixed: float
    background: bool
    nbytes: int


def pilot(variants: Sequence[Variant], budget: Budget, run: Run) -> Piloted:
    """Launches each variant once, or twice: the first one may fill caches, compile, connect."""
    steps = PILOT_STEPS if budget.steps is None else min(PILOT_STEPS, budget.steps)
    share = budget.screening / budget.launches / len(variants)
    pilots: list[_Pilot] = []
    for variant in variants:
        one = _piloted(variant, Plan(budget.warmup, steps), run)
        if one.fixed > max(LAUNCH_SECONDS, share / 2):
            again = _piloted(variant, Plan(budget.warmup, steps), run)
            one = replace(again, fixed=min(one.fixed, again.fixed), nbytes=max(one.nbytes, again.nbytes))
        pilots.append(one)
    groups, remarks = grouped(variants, [one.background for one in pilots], [one.nbytes for one in pilots], budget)
    paired = {variants[i].key for group in groups if len(group) > 1 for i in group if variants[i].other}
    plans: list[Plan] = []
    agreed: dict[tuple[str, int], int] = {}
    for variant, one in zip(variants, pilots, strict=True):
        followed = agreed.get(variant.key) if variant.other else variant.steps
        wanted = LAUNCH_SECONDS
        if variant.key in paired:
            both = [each.fixed for other, each in zip(variants, pilots, strict=True) if other.key == variant.key]
            wanted = short_launch(one.step, min(both))  # a first launch may have been slow to start
        # Less than it takes besides would save little, and tell little.
        fitting = fitting_steps(one.step, min(wanted, max(share - one.fixed, one.fixed)))
        plans.append(Plan(budget.warmup, budget.steps or followed or fitting))
        agreed[variant.key] = plans[-1].steps
    expected = sum(one.fixed + plan.steps * one.step for one, plan in zip(pilots, plans, strict=True))
    return Piloted(tuple(plans), groups, expected, remarks)


def _piloted(variant: Variant, plan: Plan, run: Run) -> _Pilot:
    ((ranks, seconds),) = run([(variant, plan)], ONLY_TIMES)
    step = typical(launch_of(0, ranks, seconds).step_times)
    return _Pilot(
        step,
        max(0.0, seconds - step * plan.steps),
        any(rank.background for rank in ranks),
        sum(rank.taken or 0 for rank in ranks),
    )


def short_launch(step: float, fixed: float) -> float:
    """The seconds that a launch times in turns with its other side, for steps of ``step`` seconds.

    ``fixed``: seconds that it takes besides; it should time steps for as long.
    """
    return min(LAUNCH_SECONDS, max(SHORT_LAUNCH_SECONDS, FEW_STEPS * step, fixed))


def fitting_steps(step: float, seconds: float) -> int:
    """How many steps of ``step`` seconds a launch times: about a second's worth, fewer if ``seconds`` is less."""
    fitting = math.ceil(min(LAUNCH_SECONDS, seconds) / max(step, 1e-9))
    return min(MOST_STEPS, max(FEWEST_STEPS, fitting))
