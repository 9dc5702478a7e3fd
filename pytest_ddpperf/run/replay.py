"""Launches that were measured before, through the code that measures and judges: it cannot tell them from new ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from pytest_ddpperf.judge.judge import Judge
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.run.rounds import measure
from pytest_ddpperf.run.terms import ExtraPasses, LaunchOutcome, Observer, budget_of
from pytest_ddpperf.run.variant import Variant
from pytest_ddpperf.settings import Settings


@dataclass
class Dealer:
    """Deals recorded launches one after another, and owns the clock that their seconds move on."""

    decks: Mapping[tuple[str, int, bool], Iterator[Launch]]
    diagnoses: Mapping[tuple[str, int, bool], Iterator[Launch]] = field(default_factory=dict)
    now: float = 0.0
    dealt: Counter[tuple[str, int, bool]] = field(default_factory=Counter)

    def run(self, launches: Sequence[tuple[Variant, Plan]], extra: ExtraPasses) -> list[LaunchOutcome]:
        """The next launch of each variant, cut down to the steps that are asked for, and the seconds it would take."""
        return [self._deal(*launch, extra) for launch in launches]

    def _deal(self, variant: Variant, plan: Plan, extra: ExtraPasses) -> LaunchOutcome:
        which = deck_of(variant)
        if not extra.times:
            return self._diagnosis(variant)
        one = next(self.decks[which])
        self.dealt[which] += 1
        seconds = one.seconds - math.fsum(one.step_times[plan.steps :])
        self.now += seconds
        return tuple(_cut(rank, plan.steps) for rank in one.ranks), seconds

    def _diagnosis(self, variant: Variant) -> LaunchOutcome:
        which = deck_of(variant)
        if which not in self.diagnoses:
            ranks = range(variant.environment.world_size)
            return tuple(
                RankLaunch(
                    rank=rank, step_times=(1.0,), memory={}, loss=None, samples_per_step=None, tokens_per_step=None
                )
                for rank in ranks
            ), 0.0
        one = next(self.diagnoses[which])
        self.now += one.seconds
        return one.ranks, one.seconds

    def clock(self) -> float:
        """Seconds since the first launch began."""
        return self.now


def deck_of(variant: Variant) -> tuple[str, int, bool]:
    """What tells a variant's launches from those of others: its name, its world size, and its side."""
    return (*variant.key, variant.of_reference)


def _cut(rank: RankLaunch, steps: int) -> RankLaunch:
    """What a rank would have reported with only its first steps."""
    if steps >= len(rank.step_times):
        return rank
    begins = zip(rank.blocks, [0, *accumulate(rank.blocks)], strict=False)
    blocks = tuple(min(size, steps - begin) for size, begin in begins if begin < steps)
    return replace(rank, step_times=rank.step_times[:steps], blocks=blocks, cpu_blocks=rank.cpu_blocks[: len(blocks)])


def replayed(judge: Judge, settings: Settings, variants: Sequence[Variant], dealer: Dealer) -> tuple[Result, ...]:
    """What the judge says of variants whose launches are dealt to it."""
    measure(variants, budget_of(settings), dealer.run, Observer(judge, lambda _progress: None, clock=dealer.clock))
    return judge.results
