"""How the launches of a benchmark are planned: which run at the same time, and how many steps each has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol, TypeAlias

from pytest_ddpperf.judge.sequential import MIN_LAUNCHES
from pytest_ddpperf.metrics.launch_figures import complete, mean_step
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.run.call.variant import Pilot, Variant, launch_of
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.summaries import long_steps
from pytest_ddpperf.training.jobs import CUDA_WARMUP, DIAGNOSED_STEPS, PeriodicPlan, blocks_for, growth_steps
from pytest_ddpperf.training.script import Script

PILOT_STEPS = 5
LAUNCH_SECONDS = 1.0  # of timed steps, at least, in a launch that runs alone: long enough to see through the neighbours
MIN_STEPS, MAX_STEPS = 5, 1000
MAX_DEVICE_STEPS = 10_000  # on CUDA, where steps of a millisecond have to fill as many seconds as a launch costs

SHORT_LAUNCH_SECONDS = 0.5
"""The same where both sides of a benchmark are interleaved.

What makes other launches differ then hits both sides. What is left is mostly each step's own scatter, which averages
out over as many steps in shorter launches. More launches then tell of their scatter, and sooner.
"""

SEEN_STEPS = 40
"""The timed steps of a launch, at least, if there is time for so many.

All launches time the same steps of a training, counted from its first one. What comes in each 20th step is in each
launch of 20 steps or more; of shorter ones it may be in none.
"""
ROUND_STEPS = (100, 20, 10)  # multiples of which launches time, each from twice as many steps on
EPOCHS = 2  # that a launch times at least, if its loader tells how many steps one has, and there is time for them
FEW_LAUNCHES = 3  # a screening has time for so many, at least, rather than for longer ones

WORTH = 2.0
"""A launch times steps for at least so many times the seconds that all else in it takes, where there is time.

Timed steps are then two thirds of the time. The launches that this leaves are enough, because the blocks inside them
tell of their scatter.
"""

MAX_SHARE_OF_TIMEOUT = 0.75  # that a launch is planned to take: it takes longer where the machine becomes busier

Groups: TypeAlias = "tuple[tuple[int, ...], ...]"
"""The numbers of the variants that are launched at the same time; each variant is in one group."""

LaunchOutcome: TypeAlias = "tuple[tuple[RankLaunch, ...], float]"
"""What each rank of a launch reports, and the seconds that the launch took."""


class Purpose(Enum):
    """What a launch is to tell."""

    TIMES = "how long steps take"
    GROWTH = "whether memory grows"
    DIAGNOSIS = "whether memory grows, and where the time goes"


class LaunchRunner(Protocol):
    """Runs one launch of each variant; several run at the same time, interleaved."""

    def __call__(self, launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> Sequence[LaunchOutcome]:
        """Runs them; gives their outcomes in the same order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchLimits:
    """How much the launches of a benchmark may take; most fields are the settings of that name."""

    steps: int | None
    warmup: int
    launches: int
    timeout: float = math.inf
    screening: float  # seconds of the launches that are planned: those in which a metric has to look worse
    interleaving: bool | None = None  # the setting ``turns``
    slots: int | None = None  # launches of a side that can run at the same time; None for any number
    memory: int | None = None  # bytes for the ranks of launches that run at the same time; None if unknown
    shared: bool = False  # whether the session deals these seconds out

    @property
    def few(self) -> int:
        """The launches that the screening has time for, at least, rather than for longer ones."""
        return min(self.launches, MIN_LAUNCHES if self.shared else FEW_LAUNCHES)


def limits_of(
    settings: Settings, *, screening: float, shared: bool = False, slots: int | None = None, memory: int | None = None
) -> LaunchLimits:
    """The limits of a benchmark with these settings."""
    return LaunchLimits(
        steps=settings.steps,
        warmup=settings.warmup,
        launches=settings.launches,
        timeout=settings.timeout,
        screening=screening,
        shared=shared,
        interleaving=settings.interleave,
        slots=slots,
        memory=memory,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlans:
    """What the pilots of some variants led to."""

    plans: tuple[Plan, ...]  # in the variants' order
    groups: Groups
    findings: tuple[Finding, ...]  # why some variants are not interleaved
    seconds: tuple[float, ...]  # expected, of a launch of each variant
    diagnosis_seconds: float  # expected, of a round that diagnoses


def planned(variants: Sequence[Variant], limits: LaunchLimits, run: LaunchRunner) -> LaunchPlans:
    """Plans the launches of variants by the pilot of each, which is launched where it is not known."""
    share = limits.screening / limits.few / len(variants)
    pilots = [_piloted(variant, limits, run, share) for variant in variants]
    groups, findings = grouped(variants, pilots, limits)
    paired = {variants[i].key for group in groups if len(group) > 1 for i in group if variants[i].of_reference}
    plans: list[Plan] = []
    agreed: dict[tuple[str, int], int] = {}
    for variant, pilot in zip(variants, pilots, strict=True):
        followed = agreed.get(variant.key) if variant.of_reference else variant.steps
        wanted = launch_seconds(pilot.fixed)
        if variant.key in paired:
            fixed = (side.fixed for other, side in zip(variants, pilots, strict=True) if other.key == variant.key)
            fixed_at_least = min(fixed)  # a first launch may have been slow to start
            # Of a session's budget there are few launches either way, and shorter ones would spend more on starting.
            wanted = launch_seconds(fixed_at_least) if limits.shared else short_launch(fixed_at_least)
        # Timing for less than all else takes would save little, and tell little; but no launch may miss its deadline.
        seen = pilot.step * max(SEEN_STEPS, EPOCHS * (pilot.epoch or 0))  # shows what comes in some steps only
        most = min(max(wanted, seen), MAX_SHARE_OF_TIMEOUT * limits.timeout - pilot.fixed)
        seconds = min(most, max(share - pilot.fixed, pilot.fixed))
        fitting = _whole_periods(pilot, fitting_steps(pilot.step, seconds, max_steps(variant)), seconds)
        agreed[variant.key] = steps = limits.steps or followed or fitting
        plans.append(Plan(warmup=warmup_of(variant, limits.warmup), steps=steps))

    sides = [(pilot, plan.steps) for pilot, plan in zip(pilots, plans, strict=True)]
    return LaunchPlans(
        plans=tuple(plans),
        groups=groups,
        findings=findings,
        seconds=tuple(pilot.seconds(steps) for pilot, steps in sides),
        diagnosis_seconds=sum(pilot.seconds(_diagnosis_steps(steps)) for pilot, steps in sides),
    )


def warmup_of(variant: Variant, wanted: int) -> int:
    """The untimed steps of a variant's launches; on CUDA ranks may agree on more, which change no loss that is told."""
    return max(wanted, CUDA_WARMUP) if variant.environment.device == "cuda" else wanted


def pilot_plan(warmup: int, steps: int | None) -> Plan:
    """The plan of a pilot for launches of so many steps; None for as many as fit."""
    return Plan(warmup=warmup, steps=PILOT_STEPS if steps is None else min(PILOT_STEPS, steps))


def pilot_of(ranks: tuple[RankLaunch, ...], seconds: float, plan: Plan) -> Pilot:
    """Returns what a launch of this plan told, which took so many seconds."""
    launch = launch_of(0, ranks, seconds)
    step = mean_step(launch)
    known = complete(rank.device_memory for rank in ranks)
    epochs = complete(rank.epoch_steps for rank in ranks)
    return Pilot(
        step=step,
        fixed=max(0.0, seconds - step * plan.steps),
        background=any(rank.background for rank in ranks),
        nbytes=sum(rank.taken or 0 for rank in ranks),
        of_gpu=None if known is None else max(each.used / each.total for each in known),
        picked=ranks[0].picked,
        epoch=None if epochs is None else math.ceil(max(epochs)),
    )


def _piloted(variant: Variant, limits: LaunchLimits, run: LaunchRunner, share: float) -> Pilot:
    """The pilot of a variant; a second one where the first was slow, as it may fill caches, compile or connect."""

    def launched() -> Pilot:
        plan = pilot_plan(warmup_of(variant, limits.warmup), limits.steps)
        ((ranks, seconds),) = run([(variant, plan)], Purpose.TIMES)
        return pilot_of(ranks, seconds, plan)

    first = variant.pilot or launched()
    # A known pilot took none of the time for measuring, and another one would.
    slow = max(LAUNCH_SECONDS, share / 2) if variant.pilot is None else max(2 * LAUNCH_SECONDS, share)
    if first.fixed <= slow:
        return first
    again = launched()
    of_gpu = complete((first.of_gpu, again.of_gpu))
    return replace(
        again,
        fixed=min(first.fixed, again.fixed),
        nbytes=max(first.nbytes, again.nbytes),
        of_gpu=None if of_gpu is None else max(of_gpu),
    )


def _whole_periods(pilot: Pilot, steps: int, seconds: float) -> int:
    """Rounds the steps of a launch of so many seconds down to whole periods.

    A period is an epoch, if the pilot told how long one is and at least one fits. Otherwise a round number of steps has
    whole periods of what training code does in each 2nd, 5th, 10th, 20th, 50th or 100th step.
    """
    if pilot.epoch is not None and pilot.epoch <= steps and pilot.epoch * pilot.step <= seconds:
        return max(1, steps // pilot.epoch) * pilot.epoch
    unit = next((unit for unit in ROUND_STEPS if steps >= 2 * unit), 1)
    return steps // unit * unit


def short_launch(fixed: float) -> float:
    """The seconds that a launch times, interleaved with the other side; ``fixed``: the seconds of all else in it."""
    return max(WORTH * fixed, SHORT_LAUNCH_SECONDS)


def launch_seconds(fixed: float) -> float:
    """The seconds that any other launch times."""
    return max(LAUNCH_SECONDS, WORTH * fixed)


def max_steps(variant: Variant) -> int:
    """The most steps that a launch of a variant times; a script has to train for as many."""
    on_device = variant.environment.device == "cuda" and not isinstance(variant.subject, Script)
    return MAX_DEVICE_STEPS if on_device else MAX_STEPS


def fitting_steps(step: float, seconds: float, most: int = MAX_STEPS) -> int:
    """The number of steps of ``step`` seconds that a launch times in so many seconds."""
    return min(most, max(MIN_STEPS, math.ceil(seconds / max(step, 1e-9))))


def with_period(plan: Plan, sides: Sequence[Sequence[Launch]]) -> Plan:
    """Returns the plan with the period of long steps in the launches of both sides, which a diagnosis takes apart."""
    period = long_steps([launch.step_times for launches in sides for launch in launches]).period
    return plan if period is None else PeriodicPlan(warmup=plan.warmup, steps=plan.steps, period=period)


def _diagnosis_steps(steps: int) -> int:
    """The steps of a launch that diagnoses beside launches of ``steps``; one more step leads in to each block."""
    blocks = blocks_for(steps)
    return 1 + growth_steps(steps) + DIAGNOSED_STEPS + 2 * blocks.pairs * (blocks.steps + 1)


INTERLEAVED = frozenset({"cpu"})
"""The devices on which launches interleave where nobody says otherwise.

On GPUs launches alternate; ``turns_small`` of benchmarks/gpu.py has yet to run and tell whether blocks scatter less.
"""

MAX_GPU_SHARE = 0.9  # of the memory of each GPU: what launches that interleave on it may take together


def can_interleave(variants: Sequence[Variant], wanted: bool | None) -> bool:  # noqa: FBT001  a setting
    """Returns whether launches of these variants may run at the same time, as far as is known before any."""
    return all(wanted or (wanted is None and variant.environment.device in INTERLEAVED) for variant in variants)


def grouped(
    variants: Sequence[Variant], pilots: Sequence[Pilot], limits: LaunchLimits
) -> tuple[Groups, tuple[Finding, ...]]:
    """The groups, and why not all variants are in one where nothing spoke against it before.

    Either all variants are in one group, because what is compared has to be timed alike, or both sides of each that
    can. Work in the background does not suit interleaving: a loader would have its data ready before the step's turn.
    """
    everybody = tuple(range(len(variants)))
    alone: Groups = tuple((i,) for i in everybody)
    if len(variants) == 1 or not can_interleave(variants, limits.interleaving):
        return alone, ()
    sides: dict[tuple[str, int], list[int]] = {}
    for i, variant in enumerate(variants):
        sides.setdefault(variant.key, []).append(i)
    busy = {variant.key: variant.name for variant, pilot in zip(variants, pilots, strict=True) if pilot.background}

    def fits_gpu_memory(group: Sequence[int]) -> bool:
        shares = complete(pilots[i].of_gpu for i in group if variants[i].environment.device == "cuda")
        return shares is not None and sum(shares) <= MAX_GPU_SHARE

    def fits_memory(group: Sequence[int]) -> bool:
        enough = limits.memory is None or sum(pilots[i].nbytes for i in group) <= limits.memory
        return enough and fits_gpu_memory(group)

    if not busy and (limits.slots is None or len(sides) <= limits.slots) and fits_memory(everybody):
        return (everybody,), ()
    pairs = [tuple(pair) for key, pair in sides.items() if len(pair) > 1 and key not in busy and fits_memory(pair)]
    paired = {i for pair in pairs for i in pair}
    finding = Finding("short_of_memory", {"paired": bool(pairs)})
    if not fits_gpu_memory(everybody):
        finding = Finding("short_of_gpu_memory", {"paired": bool(pairs)})
    if busy:
        finding = Finding("background_work", {"paired": bool(pairs), "benchmarks": tuple(busy.values())})
    return (*pairs, *(lone for lone in alone if lone[0] not in paired)), (finding,)
