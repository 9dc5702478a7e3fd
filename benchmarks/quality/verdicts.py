"""The only module of these benchmarks that knows how the plugin judges: simulated launches become verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pytest_ddpperf.against.worktree import Revision
from pytest_ddpperf.judge.decision import PAIRED_TOLERANCE
from pytest_ddpperf.judge.detection import EQUIVALENCE_MARGIN
from pytest_ddpperf.judge.judge import Judge
from pytest_ddpperf.metrics.scaling import alone, gated_if_paired
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.records.measurement import Environment, Interval, Plan
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.budget.session_budget import SessionBudget
from pytest_ddpperf.run.call.planning import LaunchLimits, LaunchOutcome, Purpose
from pytest_ddpperf.run.call.references import PairedReferences
from pytest_ddpperf.run.call.rounds import Measuring, Observer, Rounds
from pytest_ddpperf.run.call.variants import Variant
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training.timing import turn_sizes

if TYPE_CHECKING:
    from benchmarks.quality.laws import World

PAIRED_MARGIN = EQUIVALENCE_MARGIN * PAIRED_TOLERANCE  # no worse by more than that is unchanged, side by side
REVISION = Revision("before", None, Path())
ENVIRONMENT = Environment(
    device="cpu",
    device_model="chip",
    device_count=0,
    cpu_model="chip",
    cores=8,
    threads=1,
    nodes=1,
    backend="gloo",
    world_size=2,
    torch="2.13",
    cuda=None,
)

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


def rank_launch(step_times: Sequence[float], cpu: float | None = None) -> RankLaunch:
    """Returns what rank 0 reports of a launch with these steps, whose blocks alternated with those of another."""
    return RankLaunch(
        rank=0,
        step_times=tuple(step_times),
        memory={},
        loss=None,
        samples_per_step=None,
        tokens_per_step=None,
        cpu_time=cpu,
        blocks=turn_sizes(len(step_times), 1),
    )


class Dealer:
    """Runs launches of a source, and owns the clock that their seconds move on."""

    def __init__(self, source: World) -> None:
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


def against_partner(source: World, settings: Settings, tests: int = 1) -> Outcome:
    """The verdict on a run that measured both sides in the same rounds, as beside another revision."""
    dealt = Dealer(source)
    budget = SessionBudget(None, tests, lambda: dealt.now)
    return _outcome(_Benchmark("training", dealt, budget).judged(settings, tests), dealt)


class _Benchmark:
    """A benchmark of a session whose launches come from a source."""

    def __init__(self, name: str, dealt: Dealer, budget: SessionBudget) -> None:
        self._name, self._dealt, self._budget = name, dealt, budget
        variant = Variant(name=name, strategy="custom", mode=None, environment=ENVIRONMENT, subject=None, resolved=None)
        derive = gated_if_paired(alone)
        self._references = PairedReferences(revision=REVISION, variants=(variant,), derive=derive, lacking={})
        self._before: tuple[Rounds, Judge] | None = None

    def judged(self, settings: Settings, tests: int) -> tuple[Result, ...]:
        """What the plugin says of it in the pass that runs now; the second pass goes on with the first one's rounds."""
        budget = self._budget
        budget.begin_test(self._name)
        call, _ = budget.next_call(self._name)
        shared = budget.share(call, settings, begun=budget.now(), compared=True, benchmarks=1)
        judge = Judge("replay", settings, self._references, tests)
        rounds = None
        if self._before is not None:
            rounds, earlier = self._before
            judge.resume(earlier)

        observer = Observer(judge=judge, looked=lambda interim: budget.ask(call, judge.results, interim))
        limits = LaunchLimits(settings=settings, screening=budget.screening, shared=shared)
        sides = self._references.both_sides
        measuring = Measuring(sides, limits, self._dealt.run, observer, budget, rounds)
        measuring.measured()
        self._before = measuring.rounds, judge
        return judge.results


def in_suite(suite: Sequence[World], settings: Settings, seconds: float) -> list[Outcome]:
    """The verdicts on benchmarks that share the budget of a session, each beside another revision."""
    decks = list(map(Dealer, suite))
    budget = SessionBudget(seconds, len(suite), clock=lambda: math.fsum(dealt.now for dealt in decks))
    budget.two_passes = True
    settings = replace(settings, max_time=seconds)  # as with a budget: no benchmark has a limit of its own
    benchmarks = {f"test_{i}": _Benchmark(f"test_{i}", dealt, budget) for i, dealt in enumerate(decks)}
    results = {name: benchmark.judged(settings, len(suite)) for name, benchmark in benchmarks.items()}
    while names := budget.second_pass():
        results[names[0]] = benchmarks[names[0]].judged(settings, len(suite))
    return [_outcome(each, dealt) for each, dealt in zip(results.values(), decks, strict=True)]


def _outcome(results: tuple[Result, ...], dealt: Dealer) -> Outcome:
    (result,) = results
    step = result[STEP_TIME]
    return Outcome(result.verdict, dealt.now, dealt.dealt, step.mde, step.change, step.bound, step.change_interval)
