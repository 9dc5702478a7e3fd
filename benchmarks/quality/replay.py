"""Recorded launches through the code that measures and judges: it cannot tell them from new ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.quality.launches import WARMUP, Recorded
from benchmarks.quality.resampling import Sides
from pytest_ddpperf.judge import Judge, Partners, alone, screening
from pytest_ddpperf.measure import Budget, Observer, Variant, fitting_steps, measure
from pytest_ddpperf.other_side import side_by_side
from pytest_ddpperf.records import Environment, Plan, RankLaunch
from pytest_ddpperf.results import BaselineRecord, Found, Result
from pytest_ddpperf.revision.worktree import Revision
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.summaries import step_summary, typical
from pytest_ddpperf.verdict import Verdict

STEP_TIME = "step_time"
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


class Dealer:
    """Deals recorded launches one after another, and owns the clock that their seconds move on.

    Args:
        new: for the side that is judged.
        other: for the other side, where there is one.
    """

    def __init__(self, new: Sequence[Recorded], other: Sequence[Recorded] = ()) -> None:
        self.now = 0.0
        self.dealt: Counter[bool] = Counter()  # by whether a variant is of the other side
        self._decks = {False: new, True: other}

    def run(
        self,
        variant: Variant,
        plan: Plan,
        *,
        diagnosed: bool,  # noqa: ARG002  recorded launches are not, which makes the first few a little shorter
    ) -> tuple[tuple[RankLaunch, ...], float]:
        """The next launch of a variant, cut down to the steps that are asked for.

        A deck begins anew after its last launch: only a confirmation that runs over its time gets that far.
        """
        deck = self._decks[variant.other]
        one = deck[self.dealt[variant.other] % len(deck)]
        self.dealt[variant.other] += 1
        seconds = seconds_of(one, plan.steps)
        self.now += seconds
        kept = one.step_times[: plan.steps]
        ranks = enumerate(zip(one.resident, one.loss, strict=True))
        return tuple(RankLaunch(i, kept, {"peak_resident": b}, loss, None, None) for i, (b, loss) in ranks), seconds

    def clock(self) -> float:
        """Seconds since the first launch began."""
        return self.now


def seconds_of(one: Recorded, steps: int) -> float:
    """Seconds that a launch would have taken with only its first ``steps`` steps."""
    return one.seconds - math.fsum(one.step_times[steps:])


def steps_of(one: Recorded) -> int:
    """The steps that the plugin would time in launches like this one, as far as they were recorded."""
    return min(len(one.step_times), fitting_steps(typical(one.step_times), math.inf))


def stored(launches: Sequence[Recorded], env: Environment, settings: Settings) -> BaselineRecord:
    """The baseline that ``--ddpperf-save`` would have made of these launches."""
    saving = replace(settings, save="default", max_time=_time(launches, settings))
    (result,) = _results(Dealer(launches), saving, [_variant(env, steps_of(launches[0]))], [Found(None, "")])
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
    record = stored(sides.base, env, settings)
    steps = record.plan.steps
    settings = replace(settings, max_time=_time(sides.new, settings, steps))
    dealer = Dealer(sides.new)
    return _outcome(_results(dealer, settings, [_variant(env, steps)], [Found(record, "replay")], tests), dealer)


def against_partner(sides: Sides, env: Environment, settings: Settings) -> Outcome:
    """The verdict on a run that measured both sides in the same rounds, as beside another revision."""
    settings = replace(settings, max_time=_time((*sides.base, *sides.new), settings))
    dealer = Dealer(sides.new, sides.base)
    results = side_by_side(
        Revision("before", None, Path()),
        [_variant(env, steps_of(sides.new[0]))],
        alone,
        lambda variants, partners: _results(dealer, settings, variants, partners),
    )
    return _outcome(results, dealer)


def _variant(env: Environment, steps: int) -> Variant:
    return Variant(NAME, None, None, None, env, steps=steps)


def _results(
    dealer: Dealer, settings: Settings, variants: Sequence[Variant], found: Sequence[Found] | Partners, tests: int = 1
) -> tuple[Result, ...]:
    judge = Judge("replay", settings, found, alone, tests)
    budget = Budget(settings.steps, WARMUP, settings.launches, settings.max_time, screening(settings))
    measure(variants, budget, dealer.run, Observer(judge, lambda _progress: None, clock=dealer.clock))
    return judge.results


def _outcome(results: tuple[Result, ...], dealer: Dealer) -> Outcome:
    (result,) = results
    step = result[STEP_TIME]
    return Outcome(result.verdict, dealer.now, dealer.dealt[False], step.mde, step.change)


def _time(launches: Sequence[Recorded], settings: Settings, steps: int | None = None) -> float:
    """Seconds that a run may take: what the settings allow, as far as there are launches."""
    timed = steps or steps_of(launches[0])
    return min(settings.max_time, math.fsum(seconds_of(one, timed) for one in launches))
