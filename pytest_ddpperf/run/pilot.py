"""What the first launch of each variant tells: how many steps fill a launch, and who takes turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.run.groups import Groups, grouped
from pytest_ddpperf.run.terms import ONLY_TIMES, Budget, LaunchRunner
from pytest_ddpperf.run.variant import Pilot, Variant, launch_of
from pytest_ddpperf.stats.summaries import typical
from pytest_ddpperf.training.jobs import DIAGNOSED_STEPS, blocks_for, growth_steps

PILOT_STEPS = 5
LAUNCH_SECONDS = 1.0  # of timed steps: least of what runs alone: long enough to see through the neighbours
MIN_STEPS, MAX_STEPS = 5, 1000

SHORT_LAUNCH_SECONDS = 0.5
"""The same where both sides of a benchmark take turns.

What makes other launches differ then hits both; what is left is mostly each step's own, and averages out over as many
steps in shorter launches, which take about as long to tell as much (benchmarks/turns.py). More of them are looked at,
the first time sooner, and know their scatter better.
"""

FEW_STEPS = 20  # fewer are long ones: a launch takes its time for them
FEW_LAUNCHES = 3  # that a screening has time for at least, rather than for longer ones

WORTH = 2.0
"""Times what a launch costs besides, it times steps at least, where there is time for it.

Steps that are timed tell, all else does not: then they are two thirds of the time. The launches that this leaves are
enough, for the blocks inside them know their scatter (benchmarks/time_spent.py, benchmarks/intervals.py).
"""


@dataclass(frozen=True)
class Piloted:
    """What the pilots of some variants came to.

    Attributes:
        plans: how many steps the launches of each run, in the variants' order.
        groups: who is launched at the same time.
        expected: about how many seconds a round of timed steps takes.
        findings: why some do not take turns, where nothing spoke against it before.
        diagnosis_seconds: about what a round takes that tells if memory grows and where the time goes.
    """

    plans: tuple[Plan, ...]
    groups: Groups
    expected: float
    findings: tuple[Finding, ...]
    diagnosis_seconds: float


def pilot(variants: Sequence[Variant], budget: Budget, run: LaunchRunner) -> Piloted:
    """Plans the launches of variants by the pilot of each, which is launched where it is not known."""
    share = budget.screening / min(budget.launches, FEW_LAUNCHES) / len(variants)
    pilots = [_settled(variant, budget, run, share) for variant in variants]
    groups, findings = grouped(variants, [one.background for one in pilots], [one.nbytes for one in pilots], budget)
    paired = {variants[i].key for group in groups if len(group) > 1 for i in group if variants[i].of_reference}
    plans: list[Plan] = []
    agreed: dict[tuple[str, int], int] = {}
    for variant, one in zip(variants, pilots, strict=True):
        followed = agreed.get(variant.key) if variant.of_reference else variant.steps
        wanted = launch_seconds(one.fixed)
        if variant.key in paired:
            both = [each.fixed for other, each in zip(variants, pilots, strict=True) if other.key == variant.key]
            wanted = short_launch(one.step, min(both))  # a first launch may have been slow to start
        # Less than it takes besides would save little, and tell little.
        fitting = fitting_steps(one.step, min(wanted, max(share - one.fixed, one.fixed)))
        plans.append(Plan(warmup=budget.warmup, steps=budget.steps or followed or fitting))
        agreed[variant.key] = plans[-1].steps
    expected = sum(one.fixed + plan.steps * one.step for one, plan in zip(pilots, plans, strict=True))
    diagnosis = sum(
        one.fixed + _diagnosis_steps(plan.steps) * one.step for one, plan in zip(pilots, plans, strict=True)
    )
    return Piloted(tuple(plans), groups, expected, findings, diagnosis)


def pilot_plan(warmup: int, steps: int | None) -> Plan:
    """How many steps a pilot runs, beside launches of ``warmup`` and ``steps``; None for as many as fit."""
    return Plan(warmup=warmup, steps=PILOT_STEPS if steps is None else min(PILOT_STEPS, steps))


def pilot_of(ranks: tuple[RankLaunch, ...], seconds: float, plan: Plan) -> Pilot:
    """What a launch told that ran this plan, in so many seconds."""
    step = typical(launch_of(0, ranks, seconds).step_times)
    return Pilot(
        step,
        max(0.0, seconds - step * plan.steps),
        any(rank.background for rank in ranks),
        sum(rank.taken or 0 for rank in ranks),
        ranks[0].picked,
    )


def _settled(variant: Variant, budget: Budget, run: LaunchRunner, share: float) -> Pilot:
    """The pilot of a variant; another one where it was slow: the first launch may fill caches, compile, connect."""
    plan = pilot_plan(budget.warmup, budget.steps)
    first = variant.pilot or _piloted(variant, plan, run)
    # One that is known has taken none of the time for measuring, which another one would.
    slow = max(LAUNCH_SECONDS, share / 2) if variant.pilot is None else max(2 * LAUNCH_SECONDS, share)
    if first.fixed <= slow:
        return first
    again = _piloted(variant, plan, run)
    return replace(again, fixed=min(first.fixed, again.fixed), nbytes=max(first.nbytes, again.nbytes))


def _piloted(variant: Variant, plan: Plan, run: LaunchRunner) -> Pilot:
    ((ranks, seconds),) = run([(variant, plan)], ONLY_TIMES)
    return pilot_of(ranks, seconds, plan)


def short_launch(step: float, fixed: float) -> float:
    """The seconds that a launch times in turns with its other side, for steps of ``step`` seconds.

    ``fixed``: seconds that it takes besides.
    """
    return max(WORTH * fixed, min(LAUNCH_SECONDS, max(SHORT_LAUNCH_SECONDS, FEW_STEPS * step)))


def launch_seconds(fixed: float) -> float:
    """The seconds that a launch times without turns; ``fixed``: seconds that it takes besides."""
    return max(LAUNCH_SECONDS, WORTH * fixed)


def fitting_steps(step: float, seconds: float) -> int:
    """How many steps of ``step`` seconds a launch times that does so for so many seconds."""
    return min(MAX_STEPS, max(MIN_STEPS, math.ceil(seconds / max(step, 1e-9))))


def _diagnosis_steps(steps: int) -> int:
    """How many steps a launch that diagnoses runs beside launches of ``steps``; a step leads in to each block."""
    blocks = blocks_for(steps)
    return 1 + growth_steps(steps) + DIAGNOSED_STEPS + 2 * blocks.pairs * (blocks.steps + 1)
