"""The only module of these benchmarks that knows how the plugin runs and judges: launches, verdicts, its constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from benchmarks.quality.steps import WARMUP
from pytest_ddpperf.against.worktree import Revision
from pytest_ddpperf.baselines.noise import known_noise, training_of
from pytest_ddpperf.baselines.runs import with_run
from pytest_ddpperf.judge.detection import (
    EQUIVALENCE_MARGIN,
    LAST_SHARE,
    PAIRED_LOOKS,
    SEPARATE_LOOKS,
    UNPROVEN,
    UNSPENT,
    Proofs,
)
from pytest_ddpperf.judge.judge import PAIRED_TOLERANCE, Judge, StoredReferences, accepted_worsening
from pytest_ddpperf.judge.sequential import Look, Next
from pytest_ddpperf.launch.interleaving import TurnSlot
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.metrics.scaling import alone, gated_if_paired, with_speedup
from pytest_ddpperf.metrics.table import STEP_TIME, series_of
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Environment, Interval, Measurement, Plan
from pytest_ddpperf.records.noise import Noise
from pytest_ddpperf.records.results import BaselineRecord, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import CONFIRMED
from pytest_ddpperf.run.benchmark_launches import BenchmarkLaunches
from pytest_ddpperf.run.calibrate import Dealer, deck_of, replayed
from pytest_ddpperf.run.part import part_of
from pytest_ddpperf.run.planning import LaunchOutcome, Purpose, budget_of, fitting_steps, launch_seconds, short_launch
from pytest_ddpperf.run.pool import Pass, Pool
from pytest_ddpperf.run.references import PairedReferences
from pytest_ddpperf.run.rounds import Observer, measure
from pytest_ddpperf.run.session import PRELOADED
from pytest_ddpperf.run.variant import Variant
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.summaries import step_summary, typical
from pytest_ddpperf.training.jobs import LaunchJob
from pytest_ddpperf.training.loop import run_launch
from pytest_ddpperf.training.timing import turn_sizes

if TYPE_CHECKING:  # they know the environment from here
    from benchmarks.quality.campaign import Recorded, Sides

__all__ = [  # of the plugin itself
    "CONFIRMED",
    "LAST_SHARE",
    "PAIRED_LOOKS",
    "SEPARATE_LOOKS",
    "UNPROVEN",
    "BaselineRecord",
    "BenchmarkLaunches",
    "Environment",
    "Noise",
    "Verdict",
    "short_launch",
]

PAIRED_MARGIN = EQUIVALENCE_MARGIN * PAIRED_TOLERANCE  # no worse by more than that is unchanged, side by side
REVISION = Revision("before", None, Path())


@dataclass(frozen=True)
class Outcome:
    """What a user would have been told; ``mde`` and ``change`` of the step time, where they are known."""

    verdict: Verdict
    seconds: float
    launches: int  # of one side, pilots and screened ones included
    mde: float | None
    change: float | None
    bound: float | None = None
    interval: Interval | None = None  # of the change
    settled: bool = False  # side by side with the baseline's commit


def launcher() -> Launcher:
    """Starts ranks as the plugin does."""
    return Launcher(preload=(*PRELOADED, "benchmarks.quality.steps"))


def timed_launch(
    turns: TurnSlot | None,
    /,
    *,
    launcher: Launcher,
    subject: Callable[[Any], Any],
    steps: int,
    ranks: int,
    **options: Any,
) -> tuple[RankLaunch, ...]:
    """A launch as the plugin runs its own; ``options`` are further ones of its job."""
    job = LaunchJob(
        subject, None, Settings(), Plan(warmup=WARMUP, steps=steps), diagnosed=False, turns=turns, **options
    )
    return launcher.run(run_launch, job, world_size=ranks, backend="gloo", device="cpu", timeout=300).values


def launch_of(launch: Recorded, *, paired: bool = False) -> Launch:
    """A recorded launch as the plugin keeps one; ``paired``: its steps took turns with those of another."""
    blocks = turn_sizes(len(launch.step_times), 1) if paired else ()
    figures = zip(launch.resident, launch.loss, launch.cpu, strict=True)
    ranks = (
        RankLaunch(
            rank=rank,
            step_times=launch.step_times,
            memory={"peak_resident": resident},
            loss=loss,
            samples_per_step=None,
            tokens_per_step=None,
            cpu_time=cpu,
            blocks=blocks,
            control_times=() if paired else launch.control,
        )
        for rank, (resident, loss, cpu) in enumerate(figures)
    )
    return Launch(round=launch.round, ranks=tuple(ranks), seconds=launch.seconds)


def seconds_of(launch: Recorded, steps: int) -> float:
    """Seconds that a launch would have taken with only its first ``steps`` steps."""
    return launch.seconds - math.fsum(launch.step_times[steps:])


def steps_of(launch: Recorded, *, paired: bool = False) -> int:
    """The steps that the plugin would time in launches like this one, as far as they were recorded."""
    step, fixed = typical(launch.step_times), seconds_of(launch, 0)
    steps = paired_steps(step, fixed) if paired else fitting_steps(step, launch_seconds(fixed))
    return min(len(launch.step_times), steps)


def paired_steps(step: float, fixed: float = 0.0) -> int:
    """The steps of ``step`` seconds that the plugin times in turns in launches that take ``fixed`` seconds besides."""
    return fitting_steps(step, short_launch(step, fixed))


def dealer(sides: Sides, env: Environment, *, paired: bool = False, name: str = "training") -> Dealer:
    """Deals the launches of both sides; only a confirmation that runs over its time gets to a deck's end."""
    new = _variant(env, 1, name)
    decks = ((new, sides.new), (replace(new, of_reference=True), sides.base))
    kept = partial(launch_of, paired=paired)
    return Dealer({deck_of(variant): cycle(map(kept, deck)) for variant, deck in decks})


def stored(sides: Sides, env: Environment, settings: Settings) -> BaselineRecord:
    """The baseline that ``--ddpperf-save`` would have made of the base's launches."""
    saving = replace(settings, save="default", max_time=_time(sides.base, settings))
    judge = Judge("replay", saving, _stored(None), alone)
    dealt = dealer(replace(sides, new=sides.base), env)
    (result,) = replayed(judge, saving, [_variant(env, steps_of(sides.base[0]))], dealt)
    measured = result.measurement
    return BaselineRecord(
        name=measured.name,
        strategy=measured.strategy,
        mode=None,
        plan=measured.plan,
        environment=env,
        series=measured.series,
        commit=None,
        date="",
        steps=tuple(step_summary(launch.step_times) for launch in measured.launches),
    )


def of_runs(records: Sequence[BaselineRecord]) -> BaselineRecord:
    """The baseline of several runs of the same commit."""
    joined = records[0]
    for record in records[1:]:
        joined = with_run(joined, record)
    return joined


def noise_by(baselines: Sequence[BaselineRecord]) -> Noise | None:
    """What the baselines of several runs of a suite tell of the first one's benchmark."""
    stored = {training_of(f"test_{number}", record): record for number, record in enumerate(baselines)}
    return known_noise(training_of("test_0", baselines[0]), {}, {}, stored)


def beside(
    record: BaselineRecord,
    sides: Sides,
    settings: Settings,
    tests: int = 1,
    *,
    noise: Noise | None = None,
    pairs: Sides | None = None,
) -> Outcome:
    """The verdict on a new run beside a stored baseline; ``tests`` in its suite.

    What it leaves open is settled by ``pairs``, both sides in the same rounds; without them it stays open. Settling has
    the tolerance, the level, the time and the proofs that are left, as in a run. It lacks what a run spends on starting
    the other commit, and judges all metrics anew, where a run keeps those that no mood of a machine changes.
    """
    env, steps = record.environment, record.plan.steps
    within = replace(settings, max_time=_time(sides.new, settings, steps))
    variant, dealt = _variant(env, steps), dealer(sides, env)
    judge = Judge("replay", within, _stored(record, noise), alone, tests, settles=pairs is not None)
    outcome = _outcome(replayed(judge, within, [variant], dealt), variant, dealt)
    if pairs is None or not judge.settling:
        return outcome
    left = max(settings.max_time - outcome.seconds, settings.max_time / 2)
    settled = against_partner(
        pairs,
        env,
        replace(settings, max_time=left, tolerance=accepted_worsening(settings)),
        tests,
        judge.proofs.on_others,
    )
    launches = outcome.launches + settled.launches
    return replace(settled, seconds=outcome.seconds + settled.seconds, launches=launches, settled=True)


def against_partner(
    sides: Sides, env: Environment, settings: Settings, tests: int = 1, proofs: Proofs = UNSPENT
) -> Outcome:
    """The verdict on a run that measured both sides in the same rounds, as beside another revision."""
    steps = steps_of(sides.new[0], paired=True)
    settings = replace(settings, max_time=_time((*sides.base, *sides.new), settings, steps))
    variant, dealt = _variant(env, steps), dealer(sides, env, paired=True)
    derived = gated_if_paired(alone)
    references = PairedReferences(revision=REVISION, variants=(variant,), derive=derived, lacking={})
    judge = Judge("replay", settings, references, derived, tests, proofs=proofs)
    results = replayed(judge, settings, references.both_sides, dealt)
    return _outcome(results, variant, dealt)


def in_suite(
    suite: Sequence[Sides], env: Environment, settings: Settings, seconds: float, last: int | None = None
) -> list[Outcome]:
    """The verdicts on benchmarks that share the budget of a session, each beside another revision.

    All passes go through the code that deals the budget out. The last one ends with benchmark number ``last``.
    """
    steps = [steps_of(sides.new[0], paired=True) for sides in suite]
    variants = [_variant(env, number, f"test_{i}") for i, number in enumerate(steps)]
    decks = [dealer(sides, env, paired=True, name=each.name) for sides, each in zip(suite, variants, strict=True)]
    pool = Pool(seconds, len(suite), clock=lambda: math.fsum(dealt.now for dealt in decks))

    def judged(variant: Variant, dealt: Dealer) -> tuple[Result, ...]:
        pool.begin_test(variant.name)
        part = part_of(pool, variant.name)
        mine = replace(settings, max_time=part.max_time(settings.max_time, sides=2))
        derived = gated_if_paired(alone)
        references = PairedReferences(revision=REVISION, variants=(variant,), derive=derived, lacking={})
        judge = Judge("replay", mine, references, derived, len(suite))
        recording = part.recording(references.both_sides)

        def looked(measured: tuple[Measurement, ...], look: Look) -> Next:
            action = judge(measured, look)
            if look.diagnosed:
                return action
            return part.looked(recording, judge.results, look, len(measured[0].launches), action)

        def run(launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
            if purpose is not Purpose.TIMES:
                return list(dealt.run(launches, purpose))
            told: Any = recording.launched(lambda: cast("Any", dealt.run(launches, purpose)))
            return list(told)

        observer = Observer(judge=looked, clock=recording.now, end=part.ends_at)
        budget = part.limited(budget_of(mine), recording, mine.max_time)
        with part.launching():
            measure(references.both_sides, budget, run, observer, recording)
        pool.end_test(variant.name)
        return judge.results

    pool.begin_pass(Pass.PREPARE)
    for variant in variants:
        pool.begin_test(variant.name)
        part_of(pool, variant.name).max_time(settings.max_time, sides=2)
    pool.begin_pass(Pass.SCREEN)
    for variant, dealt in zip(variants, decks, strict=True):
        with pool.screened(variant.name):
            judged(variant, dealt)
    if pool.lacks:
        suspects = [pair for pair in zip(variants, decks, strict=True) if pool.is_suspect(pair[0].name)]
        pool.begin_pass(Pass.CONFIRM)
        for variant, dealt in suspects:
            with pool.screened(variant.name):
                judged(variant, dealt)
    pool.begin_pass(Pass.LAST)
    end = None if last is None else last + 1
    second = zip(variants[:end], decks[:end], strict=True)
    return [_outcome(judged(variant, dealt), variant, dealt) for variant, dealt in second]


def red_variants(
    names: Sequence[str],
    launch: Callable[[int], Recorded],
    env: Environment,
    launches: int,
    looks: Sequence[float],
    *,
    budget: float | None = None,
) -> tuple[bool, int]:
    """Whether any variant was suspected beside another revision, and how many were found worse.

    ``launches`` of all variants and their partners are looked at first, after so many seconds. Each look after that
    follows as many of what the judge launches on as it asks for; the last one is at the end of the time. ``launch``
    makes the launch of a round. All variants but the first are gated by their speedup over it.
    """
    derived = gated_if_paired(partial(with_speedup, over=names[0], gated=True) if len(names) > 1 else alone)
    variants = tuple(_variant(env, 1, name) for name in names)
    bases = PairedReferences(revision=REVISION, variants=variants, derive=derived, lacking={})
    settings = Settings(launches=launches, max_time=looks[-1], budget=budget)
    judge = Judge("replay", settings, bases, derived)
    made: list[list[Recorded]] = [[] for _ in (*names, *names)]
    fresh_from, rounds, suspected = [0] * len(made), 0, False
    asked = Next("more", launches)
    for elapsed in looks:
        going_on = [i for i, each in enumerate(variants * 2) if asked.going_on is None or each.key in asked.going_on]
        for i in going_on:
            fresh_from[i] = len(made[i]) if asked.action == "confirm" else fresh_from[i]
            made[i] += [launch(rounds + number) for number in range(asked.launches)]
        rounds += asked.launches
        measured = tuple(
            replace(_measured(name, one, env), fresh_from=before)
            for name, one, before in zip((*names, *names), made, fresh_from, strict=True)
        )
        asked = judge(measured, Look(elapsed, 4.0, last=elapsed == looks[-1], screened=elapsed >= looks[-1] / 2))
        suspected |= asked.action == "confirm"
        if asked.action == "stop":
            break
    return suspected, sum(result.verdict is Verdict.REGRESSED for result in judge.results)


def _measured(name: str, launches: Sequence[Recorded], env: Environment) -> Measurement:
    plan = Plan(warmup=1, steps=len(launches[0].step_times))
    measured = Measurement(
        name=name,
        strategy="ddp",
        mode=None,
        plan=plan,
        environment=env,
        launches=tuple(map(launch_of, launches)),
        turns=True,
    )
    return replace(measured, series=series_of(measured))


def _variant(env: Environment, steps: int, name: str = "training") -> Variant:
    return Variant(name=name, strategy="custom", mode=None, environment=env, subject=None, resolved=None, steps=steps)


def _stored(record: BaselineRecord | None, noise: Noise | None = None) -> StoredReferences:
    return StoredReferences((StoredBaseline(record=record, origin="replay", noise=noise),))


def _outcome(results: tuple[Result, ...], variant: Variant, dealt: Dealer) -> Outcome:
    (result,) = results
    step = result[STEP_TIME]
    launches = dealt.dealt[deck_of(variant)]
    return Outcome(result.verdict, dealt.now, launches, step.mde, step.change, step.bound, step.change_interval)


def _time(launches: Sequence[Recorded], settings: Settings, steps: int | None = None) -> float:
    """Seconds that a run may take: what the settings allow, as far as there are launches."""
    timed = steps or steps_of(launches[0])
    return min(settings.max_time, math.fsum(seconds_of(launch, timed) for launch in launches))
