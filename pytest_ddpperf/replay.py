"""Launches that were measured before, through the code that measures and judges: it cannot tell them from new ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_ddpperf.judge import Judge, budget
from pytest_ddpperf.measure import Observer, Ran, Telling, Variant, measure
from pytest_ddpperf.records import Launch, Plan
from pytest_ddpperf.results import Result
from pytest_ddpperf.settings import Settings


@dataclass
class Dealer:
    """Deals recorded launches one after another, and owns the clock that their seconds move on.

    Args:
        decks: the launches of each variant, by its ``deck``; they have to last for all that is asked.
    """

    decks: Mapping[tuple[str, int, bool], Iterator[Launch]]
    now: float = 0.0
    dealt: Counter[tuple[str, int, bool]] = field(default_factory=Counter)

    def run(self, launches: Sequence[tuple[Variant, Plan]], telling: Telling) -> list[Ran]:
        """The next launch of each variant, cut down to the steps that are asked for, and the seconds it would take.

        What tells if memory grows goes with the rest of a launch that is not asked for it; its seconds are not known.
        """
        return [self._deal(*launch, telling) for launch in launches]

    def _deal(self, variant: Variant, plan: Plan, telling: Telling) -> Ran:
        which = deck_of(variant)
        one = next(self.decks[which])
        self.dealt[which] += 1
        seconds = one.seconds - math.fsum(one.step_times[plan.steps :])
        self.now += seconds
        ranks = (
            replace(rank, step_times=rank.step_times[: plan.steps], held=rank.held if telling.growth else ())
            for rank in one.ranks
        )
        return tuple(ranks), seconds

    def clock(self) -> float:
        """Seconds since the first launch began."""
        return self.now


def deck_of(variant: Variant) -> tuple[str, int, bool]:
    """What tells a variant's launches from those of others: its name, its world size, and its side."""
    return (*variant.key, variant.other)


def replayed(judge: Judge, settings: Settings, variants: Sequence[Variant], dealer: Dealer) -> tuple[Result, ...]:
    """What the judge says of variants whose launches are dealt to it."""
    measure(variants, budget(settings), dealer.run, Observer(judge, lambda _progress: None, clock=dealer.clock))
    return judge.results
