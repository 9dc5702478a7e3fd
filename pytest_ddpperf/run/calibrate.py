"""Benchmarks measured several times and compared with themselves, by the very code that judges."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, cycle, permutations

from pytest_ddpperf.baselines.calibration import Calibrated, calibration, recommended, typical_steps
from pytest_ddpperf.baselines.noise import noise_of
from pytest_ddpperf.judge.allowance import spread_between_runs
from pytest_ddpperf.judge.judge import Judge, StoredReferences
from pytest_ddpperf.metrics.findings import findings_of
from pytest_ddpperf.metrics.scaling import DeriveSeries
from pytest_ddpperf.metrics.table import METRICS, STEP_TIME, Metric, series_of
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Measurement, Plan
from pytest_ddpperf.records.results import Provenance, Result, StoredBaseline, record_of
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.planning import LaunchOutcome, Purpose, budget_of
from pytest_ddpperf.run.rounds import Observer, measure
from pytest_ddpperf.run.variant import Variant
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.rates import Rate

COMPARISONS = 200  # at most: more of the same runs would take their time and say little

Measured = tuple[Measurement, ...]  # of several variants, in turn
Deck = tuple[str, int, bool]  # a variant's name, its world size, and whether it is of the reference


class Dealer:
    """Runs recorded launches in place of new ones, and owns the clock that their seconds move on.

    Where no launch that diagnoses was recorded, one tells nothing and takes no time.
    """

    def __init__(
        self, decks: Mapping[Deck, Iterator[Launch]], diagnoses: Mapping[Deck, Iterator[Launch]] | None = None
    ) -> None:
        self.decks = decks
        self.diagnoses = diagnoses or {}
        self.dealt: Counter[Deck] = Counter()
        self.now = 0.0  # seconds since the first launch began

    def run(self, launches: Sequence[tuple[Variant, Plan]], purpose: Purpose) -> list[LaunchOutcome]:
        """The next launch of each variant, cut to the steps that are asked for, and the seconds it would take."""
        deal = self._timed if purpose is Purpose.TIMES else self._diagnosis
        outcomes = [deal(variant, plan) for variant, plan in launches]
        self.now += math.fsum(seconds for _, seconds in outcomes)
        return outcomes

    def _timed(self, variant: Variant, plan: Plan) -> LaunchOutcome:
        launch = next(self.decks[deck_of(variant)])
        self.dealt[deck_of(variant)] += 1
        spared = math.fsum(launch.step_times[plan.steps :])
        return tuple(_cut(rank, plan.steps) for rank in launch.ranks), launch.seconds - spared

    def _diagnosis(self, variant: Variant, _plan: Plan) -> LaunchOutcome:
        if deck_of(variant) in self.diagnoses:
            launch = next(self.diagnoses[deck_of(variant)])
            return launch.ranks, launch.seconds
        blank = RankLaunch(rank=0, step_times=(1.0,), memory={}, loss=None, samples_per_step=None, tokens_per_step=None)
        return tuple(replace(blank, rank=rank) for rank in range(variant.world_size)), 0.0


def deck_of(variant: Variant) -> Deck:
    """What tells a variant's launches from those of others."""
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
    budget = replace(budget_of(settings), first=judge.first_look)
    measure(variants, budget, dealer.run, Observer(judge=judge, clock=lambda: dealer.now))
    return judge.results


@dataclass(frozen=True, kw_only=True, slots=True)
class Runs:
    """The variants of a benchmark, measured again and again."""

    each: tuple[Measured, ...]  # for each run, what it measured of each variant
    seconds: float  # from the start of the first run to that of the last
    metrics: tuple[Metric, ...] = ()  # that hooks add to those of the table

    @property
    def of_variants(self) -> tuple[Measured, ...]:
        """All runs of each variant."""
        return tuple(zip(*self.each, strict=True))

    @property
    def together(self) -> Measured:
        """The variants with the launches of all runs."""
        return tuple(_joined(runs, self.metrics) for runs in self.of_variants)


def repeated(
    variants: Sequence[Variant],
    number: int,
    measured: Callable[[Sequence[Variant], int], Measured],
    clock: Callable[[], float] = time.monotonic,
) -> Runs:
    """The variants measured ``number`` times, in runs that follow each other; all with the steps of the first one."""
    __tracebackhide__ = True
    runs: list[Measured] = []
    starts: list[float] = []
    for run in range(1, number + 1):
        starts.append(clock())
        runs.append(measured(variants, run))
        variants = [replace(variant, steps=first.plan.steps) for variant, first in zip(variants, runs[0], strict=True)]
    return Runs(each=tuple(runs), seconds=starts[-1] - starts[0], metrics=variants[0].metrics)


def calibrated(
    test: str, settings: Settings, runs: Runs, derive: DeriveSeries, provenance: Provenance
) -> tuple[Calibrated, ...]:
    """What runs of a benchmark amount to, for each variant."""
    together = runs.together
    outcomes = zip(*against_themselves(test, settings, runs, derive), strict=True)
    round_seconds = math.fsum(
        statistics.fmean(launch.seconds for launch in every.launches) for every in _with_shares(together)
    )
    effective = len(runs.each) // 2
    found = []
    for measurement, of_variant, results in zip(together, runs.of_variants, outcomes, strict=True):
        learned = calibration(of_variant, seconds=runs.seconds, provenance=provenance)
        verdicts = [result.verdict for result in results]
        seen = [mde for result in results if (mde := result[STEP_TIME].mde) is not None]
        step = measurement[STEP_TIME]
        quotient = step.control is not None
        spread = spread_between_runs(step, measurement.environment, noise=noise_of(learned), quotient=quotient)
        found.append(
            Calibrated(
                test=test,
                measurement=measurement,
                calibration=learned,
                runs=typical_steps(of_variant),
                alarms=Rate(verdicts.count(Verdict.REGRESSED), len(results), effective),
                inconclusive=Rate(verdicts.count(Verdict.INCONCLUSIVE), len(results), effective),
                mde=statistics.median(seen) if seen else None,
                recommended=recommended(
                    learned,
                    spread=spread.sd,
                    launches=settings.launches,
                    round_seconds=round_seconds,
                    max_time=settings.max_time,
                ),
                findings=(*measurement.findings, *findings_of(measurement)),
            )
        )
    return tuple(found)


def against_themselves(test: str, settings: Settings, runs: Runs, derive: DeriveSeries) -> list[tuple[Result, ...]]:
    """What is said of every run that has every other one as its baseline, for each variant.

    The rule is the one without a calibration, because what these runs tell would judge itself. A run that cannot be
    decided, or has to be confirmed, goes on with the launches of the runs after it: they are fresh, but do not share
    its own deviation. Of many runs only some pairs are taken, drawn with a fixed seed.
    """
    pairs = list(permutations(range(len(runs.each)), 2))
    if len(pairs) > COMPARISONS:
        pairs = random.Random(0).sample(pairs, COMPARISONS)  # noqa: S311 - no secret
    records = [[record_of(measured, Provenance(date="", commit=None)) for measured in derive(run)] for run in runs.each]
    launched = [_with_shares(run) for run in runs.each]
    results = []
    for base, new in pairs:
        references = tuple(StoredBaseline(record=record, origin="", counted=record) for record in records[base])
        judge = Judge(test, settings, StoredReferences(references), derive)
        later = [i for i in (*range(new, len(launched)), *range(new)) if i != base]
        variants = [replace(_variant(measured), metrics=runs.metrics) for measured in runs.each[new]]
        results.append(replayed(judge, settings, variants, dealer([launched[i] for i in later])))
    return results


def dealer(runs: Sequence[Measured]) -> Dealer:
    """Deals the launches of one run after another; the first one also stands for the pilot, which was not kept."""
    decks, diagnoses = {}, {}
    for measured in zip(*runs, strict=True):  # the runs of a variant
        deck = deck_of(_variant(measured[0]))
        launches = [launch for run in measured for launch in run.launches]
        decks[deck] = chain(launches[:1], cycle(launches))
        told = [launch for run in measured for launch in run.diagnoses]
        if told:
            diagnoses[deck] = cycle(told)
    return Dealer(decks, diagnoses)


def _with_shares(run: Measured) -> Measured:
    """A run whose interleaved launches have of a round's seconds their own steps and an equal part of the rest."""
    if not all(measured.turns for measured in run):
        return run
    rounds = zip(*(measured.launches for measured in run), strict=True)
    steps = [math.fsum(math.fsum(launch.step_times) for launch in launches) for launches in rounds]

    def share(launch: Launch, all_steps: float) -> Launch:
        return replace(launch, seconds=(launch.seconds - all_steps) / len(run) + math.fsum(launch.step_times))

    return tuple(replace(measured, launches=tuple(map(share, measured.launches, steps))) for measured in run)


def _variant(measured: Measurement) -> Variant:
    return Variant(
        **measured.identity_fields, subject=None, resolved=None, counts=measured.counts, steps=measured.plan.steps
    )


def _joined(runs: Measured, metrics: tuple[Metric, ...]) -> Measurement:
    """One measurement with the launches of all runs, and what was remarked on any of them."""
    launches = [launch for run in runs for launch in run.launches]
    joined = replace(
        runs[0],
        launches=tuple(replace(launch, round=i) for i, launch in enumerate(launches)),
        findings=tuple(dict.fromkeys(finding for run in runs for finding in run.findings)),
        diagnoses=tuple(launch for run in runs for launch in run.diagnoses),
    )
    counted = (series for series in runs[0].series if series.scale == "exact")
    return replace(joined, series=(*series_of(joined, (*METRICS, *metrics)), *counted))
