"""The first launch of a variant, which is not counted: how many steps fill a launch, and who can take turns."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_ddpperf.measure.costs import ONLY_TIMES
from pytest_ddpperf.measure.terms import Budget, Run
from pytest_ddpperf.measure.variant import Variant, launch_of
from pytest_ddpperf.records import Plan
from pytest_ddpperf.stats.summaries import typical

PILOT_STEPS = 5
LAUNCH_SECONDS = 1.0  # of timed steps: long enough to see through the neighbours, short enough for many launches
FEWEST_STEPS, MOST_STEPS = 5, 1000


def pilot(variants: Sequence[Variant], budget: Budget, run: Run) -> tuple[list[Plan], set[tuple[str, int]], float]:
    """A plan for each variant, the keys of those that can take turns, and about how long a round of timed steps takes.

    Turns do not suit what works on in the background meanwhile: data would be there before it is waited for.
    """
    plans, expected = [], 0.0
    turns = {one.key for one in variants} if budget.turns and can_take_turns(variants) else set()
    agreed: dict[tuple[str, int], int] = {}
    for variant in variants:
        steps = PILOT_STEPS if budget.steps is None else min(PILOT_STEPS, budget.steps)
        share = budget.screening / budget.launches / len(variants)
        step, fixed, background = _piloted(variant, Plan(budget.warmup, steps), run)
        if fixed > max(LAUNCH_SECONDS, share / 2):  # the first one fills caches, compiles, connects: once more
            step, again, background = _piloted(variant, Plan(budget.warmup, steps), run)
            fixed = min(fixed, again)
        if background:
            turns.discard(variant.key)
        followed = agreed.get(variant.key) if variant.other else variant.steps
        plan = Plan(budget.warmup, budget.steps or followed or fitting_steps(step, share - fixed))
        agreed[variant.key] = plan.steps
        plans.append(plan)
        expected += fixed + plan.steps * step
    return plans, turns, expected


def can_take_turns(variants: Sequence[Variant]) -> bool:
    """Whether launches of these may run at the same time, as far as can be told before any.

    On the CPU only: a GPU would have to hold all of them, and ranks that wait for their turn there do not leave it
    alone.
    """
    return all(one.environment.device == "cpu" for one in variants)


def _piloted(variant: Variant, plan: Plan, run: Run) -> tuple[float, float, bool]:
    """Seconds of a step and of all else in a launch; whether its ranks work on in the background."""
    ((ranks, seconds),) = run([(variant, plan)], ONLY_TIMES)
    step = typical(launch_of(0, ranks, seconds).step_times)
    return step, max(0.0, seconds - step * plan.steps), any(rank.background for rank in ranks)


def fitting_steps(step: float, seconds: float) -> int:
    """How many steps of ``step`` seconds a launch times: about a second's worth, fewer if ``seconds`` is less."""
    fitting = math.ceil(min(LAUNCH_SECONDS, seconds) / max(step, 1e-9))
    return min(MOST_STEPS, max(FEWEST_STEPS, fitting))
