"""Plans the launches of a benchmark: which of them run simultaneously, and how many steps each has."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from pytest_ddpperf.judge.sequential import MIN_LAUNCHES
from pytest_ddpperf.metrics.launch_figures import complete, mean_step
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.run.call.variants import Pilot, Variant, launch_of
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.launches import long_steps
from pytest_ddpperf.training.jobs import CUDA_WARMUP, DIAGNOSED_STEPS, PeriodicPlan, blocks_for, growth_steps
from pytest_ddpperf.training.subject import Script

PILOT_STEPS = 5
LAUNCH_SECONDS = 1.0  # of timed steps, at least, in a launch that runs alone: long enough to average out other load
MIN_STEPS, MAX_STEPS = 5, 1000
MAX_DEVICE_STEPS = 10_000  # on CUDA, where steps of a millisecond have to fill as many seconds as a launch costs

SHORT_LAUNCH_SECONDS = 0.5
"""The least seconds of timed steps in a launch if candidate and reference are interleaved.

Interleaved launches share disturbances, which cancel out. The remaining scatter is mostly between single steps: it
averages out over all steps, also in short launches. With more launches, it is known sooner how launches scatter.
"""

SEEN_STEPS = 40
"""The least number of timed steps in a launch, if there is time for them.

All launches time the same steps, counted from the training's first step. An event in each 20th step is in every launch
of 20 steps or more; shorter launches may lack it.
"""
ROUND_STEPS = (100, 20, 10)  # launches time multiples of the first of these that is at most half of their steps
EPOCHS = 2  # that a launch times at least, if its loader has a length and there is time for them
FEW_LAUNCHES = 3  # at least so many fit into the time, if necessary because they are shorter

WORTH = 2.0
"""The timed steps of a launch take at least this multiple of its other seconds, if there is time.

With 2.0, two thirds of the time are timed steps. Such launches are few, but their blocks of steps show the scatter.
"""

MAX_SHARE_OF_TIMEOUT = 0.75  # a launch is planned to take so much, and takes longer if the machine is busier

Groups: TypeAlias = "tuple[tuple[int, ...], ...]"
"""A tuple for each group of variants that are launched simultaneously: the indices of the variants."""

LaunchOutcome: TypeAlias = "tuple[tuple[RankLaunch, ...], float]"
"""The report of each rank of a launch, and the launch's seconds."""


class Purpose(Enum):
    """The purpose of a launch: to time steps, to see whether memory grows, or to diagnose both time and memory."""

    TIMES = "how long steps take"
    GROWTH = "whether memory grows"
    DIAGNOSIS = "whether memory grows, and where the time goes"


LaunchRunner: TypeAlias = "Callable[[Sequence[tuple[Variant, Plan]], Purpose], Sequence[LaunchOutcome]]"
"""A function that runs one launch of each variant, and returns their outcomes; several launches are interleaved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchLimits:
    """The time, number and memory within which the launches of a benchmark are planned."""

    settings: Settings  # of the call
    screening: float  # seconds to plan launches for: the first part of the call, which finds suspects
    slots: int | None = None  # launches of a side that can run at the same time; None for any number
    memory: int | None = None  # bytes for the ranks of launches that run at the same time; None if unknown
    shared: bool = False  # whether these seconds come from the session's budget

    @property
    def few(self) -> int:
        """The number of launches that are planned to end within ``screening`` seconds."""
        return min(self.settings.launches, MIN_LAUNCHES if self.shared else FEW_LAUNCHES)


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlans:
    """The numbers of warm-up and timed steps of launches, as computed from short trial launches (pilots)."""

    plans: tuple[Plan, ...]  # in the variants' order
    groups: Groups
    findings: tuple[Finding, ...]  # why launches of some variants are not interleaved
    seconds: tuple[float, ...]  # expected, of a launch of each variant
    diagnosis_seconds: float  # expected, of a round of diagnosis


def planned(variants: Sequence[Variant], limits: LaunchLimits, run: LaunchRunner) -> LaunchPlans:
    """Plans the launches of variants from the results of pilots (short trial launches), and runs missing pilots."""
    share = limits.screening / limits.few / len(variants)
    pilots = [_piloted(variant, limits, run, share) for variant in variants]
    groups, findings = grouped(variants, pilots, limits)
    paired = {variants[i].key for group in groups if len(group) > 1 for i in group if variants[i].of_reference}
    plans: list[Plan] = []
    agreed: dict[tuple[str, int], int] = {}
    for variant, pilot in zip(variants, pilots, strict=True):
        followed = agreed.get(variant.key) if variant.of_reference else variant.steps
        least, fixed = LAUNCH_SECONDS, pilot.fixed
        if variant.key in paired:
            sides = [side for other, side in zip(variants, pilots, strict=True) if other.key == variant.key]
            fixed = min(side.fixed for side in sides)  # a first launch may have been slow to start
            # A session's budget allows few launches in any case, and shorter ones would spend more on starting.
            least = LAUNCH_SECONDS if limits.shared else SHORT_LAUNCH_SECONDS
        # Timing for less than everything else takes would save and show little; but no launch may miss its deadline.
        seen = pilot.step * max(SEEN_STEPS, EPOCHS * (pilot.epoch or 0))  # shows events of some steps only
        most = min(max(least, WORTH * fixed, seen), MAX_SHARE_OF_TIMEOUT * limits.settings.timeout - pilot.fixed)
        seconds = min(most, max(share - pilot.fixed, pilot.fixed))
        fitting = min(max_steps(variant), max(MIN_STEPS, math.ceil(seconds / max(pilot.step, 1e-9))))
        fitting = _whole_periods(pilot, fitting, seconds)
        agreed[variant.key] = steps = limits.settings.steps or followed or fitting
        plans.append(Plan(warmup=warmup_of(variant, limits.settings.warmup), steps=steps))

    steps_of = [(pilot, plan.steps) for pilot, plan in zip(pilots, plans, strict=True)]
    return LaunchPlans(
        plans=tuple(plans),
        groups=groups,
        findings=findings,
        seconds=tuple(pilot.seconds(steps) for pilot, steps in steps_of),
        diagnosis_seconds=sum(pilot.seconds(_diagnosis_steps(steps)) for pilot, steps in steps_of),
    )


def warmup_of(variant: Variant, wanted: int) -> int:
    """Returns the number of untimed steps at a launch's start: ``wanted``, but on CUDA at least ``CUDA_WARMUP``."""
    return max(wanted, CUDA_WARMUP) if variant.environment.device == "cuda" else wanted


def pilot_plan(warmup: int, steps: int | None) -> Plan:
    """Returns the plan of a pilot (a short trial launch): a few steps, at most ``steps`` (None for no limit)."""
    return Plan(warmup=warmup, steps=PILOT_STEPS if steps is None else min(PILOT_STEPS, steps))


def pilot_of(ranks: tuple[RankLaunch, ...], seconds: float, plan: Plan) -> Pilot:
    """Returns the figures of a pilot, a short trial launch, that took ``seconds``."""
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
    """Returns a variant's pilot (short trial launch); repeats a slow pilot, because caches may have been cold."""

    def launched() -> Pilot:
        plan = pilot_plan(warmup_of(variant, limits.settings.warmup), limits.settings.steps)
        ((ranks, seconds),) = run([(variant, plan)], Purpose.TIMES)
        return pilot_of(ranks, seconds, plan)

    first = variant.pilot or launched()
    # A known pilot was not part of the measuring time, but another one would be.
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
    """Rounds a launch's number of steps down to whole epochs if one fits into ``seconds``, else to a round number."""
    if pilot.epoch is not None and pilot.epoch <= steps and pilot.epoch * pilot.step <= seconds:
        return max(1, steps // pilot.epoch) * pilot.epoch
    unit = next((unit for unit in ROUND_STEPS if steps >= 2 * unit), 1)
    return steps // unit * unit


def max_steps(variant: Variant) -> int:
    """Returns the largest number of timed steps in a launch of the variant."""
    on_device = variant.environment.device == "cuda" and not isinstance(variant.subject, Script)
    return MAX_DEVICE_STEPS if on_device else MAX_STEPS


def with_period(plan: Plan, sides: Sequence[Sequence[Launch]]) -> Plan:
    """Adds the period of long steps to ``plan``, if long steps recur regularly in the launches of all ``sides``."""
    period = long_steps([launch.step_times for launches in sides for launch in launches]).period
    return plan if period is None else PeriodicPlan(warmup=plan.warmup, steps=plan.steps, period=period)


def _diagnosis_steps(steps: int) -> int:
    """Returns the number of steps that a diagnosis needs, timed and untimed; ``steps``: a launch's timed steps."""
    pairs, of_block = blocks_for(steps)
    return 1 + growth_steps(steps) + DIAGNOSED_STEPS + 2 * pairs * (of_block + 1)


INTERLEAVED = frozenset({"cpu"})
"""The devices on which launches interleave by default. On GPUs whole launches alternate."""

MAX_GPU_SHARE = 0.9  # of each GPU's memory: the most that launches interleaved on it may use together


def can_interleave(variants: Sequence[Variant], wanted: bool | None) -> bool:  # noqa: FBT001  a setting
    """Returns whether launches may be interleaved: as ``wanted`` says; if it is None, as the devices allow."""
    return all(wanted or (wanted is None and variant.environment.device in INTERLEAVED) for variant in variants)


def grouped(
    variants: Sequence[Variant], pilots: Sequence[Pilot], limits: LaunchLimits
) -> tuple[Groups, tuple[Finding, ...]]:
    """Returns the groups of variants whose launches are interleaved, and findings if there are several groups.

    All variants form one group if memory suffices. Otherwise, each candidate forms a group with its reference. A
    variant with background work is not interleaved: a DataLoader would prepare batches during another launch's turn.
    """
    everybody = tuple(range(len(variants)))
    alone: Groups = tuple((i,) for i in everybody)
    if len(variants) == 1 or not can_interleave(variants, limits.settings.interleave):
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
