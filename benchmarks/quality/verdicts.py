"""The only module of these benchmarks that knows how the plugin runs and judges: launches, verdicts, its constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from benchmarks.quality.steps import WARMUP
from pytest_ddpperf.against.worktree import Revision
from pytest_ddpperf.judge.decision import PAIRED_TOLERANCE
from pytest_ddpperf.judge.detection import EQUIVALENCE_MARGIN, LAST_SHARE, PAIRED_LOOKS, SEPARATE_LOOKS, UNPROVEN
from pytest_ddpperf.judge.judge import Judge
from pytest_ddpperf.judge.sequential import Action, Interim
from pytest_ddpperf.launch.interleaving import TurnSlot
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.metrics.scaling import alone, gated_if_paired, with_speedup
from pytest_ddpperf.metrics.table import STEP_TIME, series_of
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Environment, Interval, Measurement, Plan
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.budget.session_budget import SessionBudget
from pytest_ddpperf.run.call.benchmark_launches import BenchmarkLaunches
from pytest_ddpperf.run.call.planning import LaunchOutcome, Purpose, fitting_steps, limits_of, short_launch
from pytest_ddpperf.run.call.references import PairedReferences
from pytest_ddpperf.run.call.rounds import Measuring, Observer, Rounds
from pytest_ddpperf.run.call.variant import Variant
from pytest_ddpperf.run.session.sides import PRELOADED
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training.jobs import LaunchJob
from pytest_ddpperf.training.loop import run_launch
from pytest_ddpperf.training.timing import turn_sizes

if TYPE_CHECKING:  # they know the environment from here
    from benchmarks.quality.campaign import Recorded, Sides

__all__ = [  # of the plugin itself
    "LAST_SHARE",
    "PAIRED_LOOKS",
    "SEPARATE_LOOKS",
    "UNPROVEN",
    "BenchmarkLaunches",
    "Environment",
    "Interval",
    "Verdict",
    "short_launch",
    "turn_sizes",
]

PAIRED_MARGIN = EQUIVALENCE_MARGIN * PAIRED_TOLERANCE  # no worse by more than that is unchanged, side by side
REVISION = Revision("before", None, Path())

Launched: TypeAlias = "Sequence[LaunchOutcome]"
"""The launches of one round."""


@dataclass(frozen=True)
class Outcome:
    """What a user would have been told; what follows the launches is of the step time, where it is known."""

    verdict: Verdict
    seconds: float
    launches: int  # of one side, pilots and screened ones included
    mde: float | None
    change: float | None
    bound: float | None = None
    interval: Interval | None = None  # of the change


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


def rank_launch(step_times: Sequence[float], *, rank: int = 0, cpu: float | None = None, **more: Any) -> RankLaunch:
    """What a rank reports of a launch with these steps, whose blocks alternated with those of another."""
    return RankLaunch(
        rank=rank,
        step_times=tuple(step_times),
        memory=more.pop("memory", {}),
        loss=more.pop("loss", None),
        samples_per_step=None,
        tokens_per_step=None,
        cpu_time=cpu,
        blocks=turn_sizes(len(step_times), 1),
        **more,
    )


def launch_of(launch: Recorded, steps: int | None = None) -> Launch:
    """A recorded launch as the plugin keeps one that took turns with another; of its first ``steps``."""
    memory = [{"peak_resident": resident} for resident in launch.resident] or [{} for _ in launch.cpu]
    figures = zip(memory, launch.loss, launch.cpu, strict=True)
    ranks = (
        rank_launch(launch.step_times[:steps], rank=rank, cpu=cpu, memory=used, loss=loss)
        for rank, (used, loss, cpu) in enumerate(figures)
    )
    seconds = launch.seconds if steps is None else seconds_of(launch, steps)
    return Launch(round=launch.round, ranks=tuple(ranks), seconds=seconds)


def seconds_of(launch: Recorded, steps: int) -> float:
    """Seconds that a launch would have taken with only its first ``steps`` steps."""
    return launch.seconds - math.fsum(launch.step_times[steps:])


def steps_of(launch: Recorded) -> int:
    """The steps that the plugin would time in launches like this one, as far as they were recorded."""
    return min(len(launch.step_times), paired_steps(launch.mean, seconds_of(launch, 0)))


def paired_steps(step: float, fixed: float = 0.0) -> int:
    """The steps of ``step`` seconds that the plugin times in turns in launches that take ``fixed`` seconds besides."""
    return fitting_steps(step, short_launch(fixed))


class Source(Protocol):
    """Where the launches of both sides of one benchmark come from, in place of new ones."""

    def launched(self, of_reference: Sequence[bool], steps: int) -> Launched:
        """One launch of each of these sides, which take turns; the seconds that each takes."""


class Dealer:
    """Runs launches of a source, and owns the clock that their seconds move on."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.dealt = 0  # launches of the candidate
        self.now = 0.0  # seconds since the first launch began

    def run(self, launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
        """The next launch of each variant, and the seconds it would take; one that diagnoses tells nothing."""
        if purpose is not Purpose.TIMES:
            return [((rank_launch((1.0,)),) * variant.world_size, 0.0) for variant, _ in launches]
        outcomes = self._source.launched([variant.of_reference for variant, _ in launches], launches[0][1].steps)
        self.dealt += sum(not variant.of_reference for variant, _ in launches)
        self.now += math.fsum(seconds for _, seconds in outcomes)
        return list(outcomes)


class Recordings:
    """Recorded launches of both sides; only a confirmation that runs over its time gets to their end."""

    def __init__(self, sides: Sides) -> None:
        self._decks = {of_reference: cycle(deck) for of_reference, deck in ((False, sides.new), (True, sides.base))}

    def launched(self, of_reference: Sequence[bool], steps: int) -> Launched:
        """The next launch of each side, cut to the steps that are asked for."""
        found = [launch_of(next(self._decks[side]), steps) for side in of_reference]
        return [(launch.ranks, launch.seconds) for launch in found]


def against_partner(source: Source, env: Environment, settings: Settings, tests: int = 1) -> Outcome:
    """The verdict on a run that measured both sides in the same rounds, as beside another revision."""
    dealt = Dealer(source)
    return _outcome(
        _Benchmark(_variant(env), dealt, SessionBudget(None, tests, lambda: dealt.now)).judged(settings, tests), dealt
    )


class _Benchmark:
    """A benchmark of a session whose launches come from a source."""

    def __init__(self, variant: Variant, dealt: Dealer, budget: SessionBudget) -> None:
        self._name, self._dealt, self._budget = variant.name, dealt, budget
        self._references = _references(variant)
        self._before: tuple[Rounds, Judge] | None = None

    def judged(self, settings: Settings, tests: int) -> tuple[Result, ...]:
        """What the plugin says of it in the pass that runs now; the second pass goes on with the first one's rounds."""
        budget = self._budget
        budget.begin_test(self._name)
        call, _ = budget.next_call(self._name)
        shared = budget.share(call, settings, begun=budget.now(), compared=True)
        judge = Judge("replay", settings, self._references, self._references.derive, tests)
        rounds = None
        if self._before is not None:
            rounds, earlier = self._before
            judge.resume(earlier)

        observer = Observer(judge=judge, looked=lambda interim: budget.ask(call, judge.results, interim))
        limits = limits_of(settings, screening=budget.screening, shared=shared)
        sides = self._references.both_sides
        measuring = Measuring(sides, limits, self._dealt.run, observer, budget, rounds)
        measuring.measured()
        self._before = measuring.rounds, judge
        return judge.results


def of_recorded(sides: Sides, env: Environment, settings: Settings) -> Outcome:
    """The same of recorded launches, which are as many seconds as there are."""
    steps = steps_of(sides.new[0])
    there = math.fsum(seconds_of(launch, steps) for launch in (*sides.base, *sides.new))
    return against_partner(Recordings(sides), env, replace(settings, max_time=min(settings.max_time, there)))


def in_suite(suite: Sequence[Source], env: Environment, settings: Settings, seconds: float) -> list[Outcome]:
    """The verdicts on benchmarks that share the budget of a session, each beside another revision."""
    decks = list(map(Dealer, suite))
    budget = SessionBudget(seconds, len(suite), clock=lambda: math.fsum(dealt.now for dealt in decks))
    budget.two_passes = True
    settings = replace(settings, max_time=seconds)  # as with a budget: no benchmark has a limit of its own
    benchmarks = {f"test_{i}": _Benchmark(_variant(env, f"test_{i}"), dealt, budget) for i, dealt in enumerate(decks)}
    results = {name: benchmark.judged(settings, len(suite)) for name, benchmark in benchmarks.items()}
    while names := budget.second_pass():
        results[names[0]] = benchmarks[names[0]].judged(settings, len(suite))
    return [_outcome(each, dealt) for each, dealt in zip(results.values(), decks, strict=True)]


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
    variants = tuple(_variant(env, name) for name in names)
    bases = PairedReferences(revision=REVISION, variants=variants, derive=derived, lacking={})
    settings = Settings(launches=launches, max_time=looks[-1], budget=budget)
    judge = Judge("replay", settings, bases, derived)
    made: list[list[Recorded]] = [[] for _ in (*names, *names)]
    fresh_from, rounds, suspected = [0] * len(made), 0, False
    asked = Action("more", launches)
    for elapsed in looks:
        going_on = [i for i, each in enumerate(variants * 2) if asked.going_on is None or each.key in asked.going_on]
        for i in going_on:
            fresh_from[i] = len(made[i]) if asked.kind == "confirm" else fresh_from[i]
            made[i] += [launch(rounds + number) for number in range(asked.launches)]
        rounds += asked.launches
        measured = tuple(
            replace(_measured(name, one, env), fresh_from=before)
            for name, one, before in zip((*names, *names), made, fresh_from, strict=True)
        )
        asked = judge(measured, Interim(elapsed, 4.0, last=elapsed == looks[-1], screened=elapsed >= looks[-1] / 2))
        suspected |= asked.kind == "confirm"
        if asked.kind == "stop":
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


def _variant(env: Environment, name: str = "training") -> Variant:
    return Variant(name=name, strategy="custom", mode=None, environment=env, subject=None, resolved=None)


def _references(variant: Variant) -> PairedReferences:
    return PairedReferences(revision=REVISION, variants=(variant,), derive=gated_if_paired(alone), lacking={})


def _outcome(results: tuple[Result, ...], dealt: Dealer) -> Outcome:
    (result,) = results
    step = result[STEP_TIME]
    return Outcome(result.verdict, dealt.now, dealt.dealt, step.mde, step.change, step.bound, step.change_interval)
