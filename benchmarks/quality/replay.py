"""Recorded launches through the code that measures and judges: it cannot tell them from new ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path

from benchmarks.quality.launches import Recorded
from benchmarks.quality.resampling import Sides
from pytest_ddpperf.against.worktree import Revision
from pytest_ddpperf.judge.judge import Judge
from pytest_ddpperf.metrics.relating import alone, gated_beside
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.measurement import Environment, Launch, RankLaunch
from pytest_ddpperf.records.results import BaselineRecord, Found, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.paired import side_by_side
from pytest_ddpperf.run.pilot import fitting_steps, launch_seconds, short_launch
from pytest_ddpperf.run.replay import Dealer, deck_of, replayed
from pytest_ddpperf.run.variant import Variant
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.summaries import step_summary, typical
from pytest_ddpperf.training.timing import turn_sizes

NAME = "training"


@dataclass(frozen=True)
class Outcome:
    """What a user would have been told.

    Attributes:
        seconds: of measuring.
        launches: that the run took, pilots and screened ones included; of one side.
        mde: of the step time; None where no scatter was known.
        change: of the step time, relative; likewise.
    """

    verdict: Verdict
    seconds: float
    launches: int
    mde: float | None
    change: float | None


def dealer(sides: Sides, env: Environment, *, paired: bool = False) -> Dealer:
    """Deals the launches of both sides, ``paired`` if they took turns; a deck begins anew after its last launch.

    Only a confirmation that runs over its time gets that far.
    """
    new = _variant(env, 1)
    decks = ((new, sides.new), (replace(new, other=True), sides.base))
    kept = partial(launch_of, paired=paired)
    return Dealer({deck_of(variant): cycle(map(kept, deck)) for variant, deck in decks})


def launch_of(one: Recorded, *, paired: bool = False) -> Launch:
    """A recorded launch as the plugin keeps one; ``paired``: its steps took turns with those of another."""
    blocks = turn_sizes(len(one.step_times), 1) if paired else ()
    ranks = enumerate(zip(one.resident, one.loss, one.cpu, strict=True))
    return Launch(
        one.round,
        tuple(
            RankLaunch(i, one.step_times, {"peak_resident": resident}, loss, None, None, cpu_time=cpu, blocks=blocks)
            for i, (resident, loss, cpu) in ranks
        ),
        one.seconds,
    )


def seconds_of(one: Recorded, steps: int) -> float:
    """Seconds that a launch would have taken with only its first ``steps`` steps."""
    return one.seconds - math.fsum(one.step_times[steps:])


def steps_of(one: Recorded, *, paired: bool = False) -> int:
    """The steps that the plugin would time in launches like this one, as far as they were recorded.

    ``paired``: in turns with the other side.
    """
    step, fixed = typical(one.step_times), seconds_of(one, 0)
    wanted = short_launch(step, fixed) if paired else launch_seconds(fixed)
    return min(len(one.step_times), fitting_steps(step, wanted))


def stored(launches: Sequence[Recorded], env: Environment, settings: Settings) -> BaselineRecord:
    """The baseline that ``--ddpperf-save`` would have made of these launches."""
    saving = replace(settings, save="default", max_time=_time(launches, settings))
    judge = Judge("replay", saving, [Found(None, "")], alone)
    variants = [_variant(env, steps_of(launches[0]))]
    (result,) = replayed(judge, saving, variants, dealer(Sides((), tuple(launches)), env))
    measured = result.measurement
    return BaselineRecord(
        name=NAME,
        strategy=measured.strategy,
        mode=None,
        plan=measured.plan,
        environment=env,
        series=measured.series,
        commit=None,
        date="",
        steps=tuple(step_summary(launch.step_times) for launch in measured.launches),
    )


def against_baseline(sides: Sides, env: Environment, settings: Settings, tests: int = 1) -> Outcome:
    """The verdict on a new run beside the baseline that an earlier one has stored; ``tests`` in its suite."""
    return beside(stored(sides.base, env, settings), sides.new, env, settings, tests)


def beside(
    record: BaselineRecord, new: tuple[Recorded, ...], env: Environment, settings: Settings, tests: int = 1
) -> Outcome:
    """The verdict on a new run beside a stored baseline, of which there may be many; see ``against_baseline``."""
    steps = record.plan.steps
    settings = replace(settings, max_time=_time(new, settings, steps))
    variant, dealt = _variant(env, steps), dealer(Sides((), new), env)
    judge = Judge("replay", settings, [Found(record, "replay")], alone, tests)
    return _outcome(replayed(judge, settings, [variant], dealt), variant, dealt)


def against_partner(sides: Sides, env: Environment, settings: Settings) -> Outcome:
    """The verdict on a run that measured both sides in the same rounds, as beside another revision."""
    steps = steps_of(sides.new[0], paired=True)
    settings = replace(settings, max_time=_time((*sides.base, *sides.new), settings, steps))
    variant, dealt = _variant(env, steps), dealer(sides, env, paired=True)
    related = gated_beside(alone)
    results = side_by_side(
        Revision("before", None, Path()),
        [variant],
        related,
        lambda both, partners: replayed(Judge("replay", settings, partners, related), settings, both, dealt),
    )
    return _outcome(results, variant, dealt)


def _variant(env: Environment, steps: int) -> Variant:
    return Variant(NAME, None, None, None, env, steps=steps)


def _outcome(results: tuple[Result, ...], variant: Variant, dealt: Dealer) -> Outcome:
    (result,) = results
    step = result[STEP_TIME]
    return Outcome(result.verdict, dealt.now, dealt.dealt[deck_of(variant)], step.mde, step.change)


def _time(launches: Sequence[Recorded], settings: Settings, steps: int | None = None) -> float:
    """Seconds that a run may take: what the settings allow, as far as there are launches."""
    timed = steps or steps_of(launches[0])
    return min(settings.max_time, math.fsum(seconds_of(one, timed) for one in launches))
