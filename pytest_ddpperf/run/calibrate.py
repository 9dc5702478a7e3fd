"""Benchmarks measured several times and held against themselves, by the very code that judges."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, permutations

from pytest_ddpperf.baselines.calibration import Calibrated, calibration, recommended, typical_steps
from pytest_ddpperf.judge.allowance import spread_between_runs
from pytest_ddpperf.judge.judge import TOLERANCE, Judge, StoredReferences
from pytest_ddpperf.metrics.findings import findings_of
from pytest_ddpperf.metrics.relating import DeriveSeries
from pytest_ddpperf.metrics.table import METRICS, STEP_TIME, Metric, series_of
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Measurement, Series
from pytest_ddpperf.records.results import Provenance, Result, StoredBaseline, record_of
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.replay import Dealer, deck_of, replayed
from pytest_ddpperf.run.variant import Variant
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.rates import Rate

COMPARISONS = 200  # at most: more of the same runs would take their time and say little

Measured = tuple[Measurement, ...]  # of several variants, in turn


@dataclass(frozen=True)
class Runs:
    """The variants of a benchmark, measured again and again.

    Attributes:
        each: for each run, what it measured of each variant.
        seconds: from the start of the first run to that of the last.
        metrics: that hooks add to those of the table.
    """

    each: tuple[Measured, ...]
    seconds: float
    metrics: tuple[Metric, ...] = ()

    def of(self, variant: int) -> Measured:
        """All runs of one variant."""
        return tuple(run[variant] for run in self.each)

    @property
    def together(self) -> Measured:
        """The variants with the launches of all runs."""
        return tuple(_joined(self.of(i), self.metrics) for i in range(len(self.each[0])))


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
        variants = [replace(one, steps=of.plan.steps) for one, of in zip(variants, runs[0], strict=True)]
    return Runs(tuple(runs), starts[-1] - starts[0], variants[0].metrics)


def calibrated(
    test: str, settings: Settings, runs: Runs, derive: DeriveSeries, provenance: Provenance
) -> tuple[Calibrated, ...]:
    """What runs of a benchmark amount to, for each variant."""
    number = len(runs.each)
    together = runs.together
    learned = [calibration(runs.of(i), seconds=runs.seconds, provenance=provenance) for i in range(len(together))]
    outcomes = against_themselves(test, settings, runs.each, derive, runs.metrics)
    round_seconds = math.fsum(_usual_seconds(every.launches) for every in _with_shares(together))
    found = []
    for i, (measurement, one) in enumerate(zip(together, learned, strict=True)):
        results = [outcome[i] for outcome in outcomes]
        verdicts = [result.verdict for result in results]
        seen = [mde for result in results if (mde := result[STEP_TIME].mde) is not None]
        spread = spread_between_runs(measurement[STEP_TIME], measurement.environment, noise=one.noise)
        found.append(
            Calibrated(
                test=test,
                measurement=measurement,
                calibration=one,
                runs=typical_steps(runs.of(i)),
                alarms=Rate(verdicts.count(Verdict.REGRESSED), len(results), number // 2),
                inconclusive=Rate(verdicts.count(Verdict.INCONCLUSIVE), len(results), number // 2),
                mde=statistics.median(seen) if seen else None,
                recommended=recommended(
                    one,
                    spread=spread.sd,
                    launches=settings.launches,
                    tolerance=TOLERANCE if settings.tolerance is None else settings.tolerance,
                    round_seconds=round_seconds,
                    max_time=settings.max_time,
                ),
                findings=(*measurement.findings, *findings_of(measurement)),
            )
        )
    return tuple(found)


def _usual_seconds(launches: Sequence[Launch]) -> float:
    """Seconds of a launch."""
    return statistics.fmean(one.seconds for one in launches)


def against_themselves(
    test: str, settings: Settings, runs: Sequence[Measured], derive: DeriveSeries, metrics: tuple[Metric, ...] = ()
) -> list[tuple[Result, ...]]:
    """What is said of every run that is held against every other one as its baseline, for each variant.

    By the rule as it is without a calibration: what these runs tell would judge itself. A run that cannot be decided,
    or has to be confirmed, goes on with the launches of the runs after it: they are fresh, but do not share its own
    deviation. Of many runs only some pairs are taken, drawn with a fixed seed.
    """
    pairs = list(permutations(range(len(runs)), 2))
    if len(pairs) > COMPARISONS:
        pairs = random.Random(0).sample(pairs, COMPARISONS)  # noqa: S311 - no secret
    records = [[record_of(one, Provenance(date="", commit=None)) for one in derive(run)] for run in runs]
    launched = [_with_shares(run) for run in runs]
    results = []
    for base, new in pairs:
        found = tuple(StoredBaseline(record=record, origin="", counted=record) for record in records[base])
        later = [i for i in (*range(new, len(runs)), *range(new)) if i != base]
        variants = [replace(_variant(measured), metrics=metrics) for measured in runs[new]]
        results.append(
            replayed(
                Judge(test, settings, StoredReferences(found), derive),
                settings,
                variants,
                dealer([launched[i] for i in later]),
            )
        )
    return results


def dealer(runs: Sequence[Measured]) -> Dealer:
    """Deals the launches of one run after another; the first one also stands for the pilot, which was not kept."""
    decks, diagnoses = {}, {}
    for variant, *measured in zip(map(_variant, runs[0]), *runs, strict=True):
        launches = [launch for one in measured for launch in one.launches]
        decks[deck_of(variant)] = chain(launches[:1], cycle(launches))
        told = [launch for one in measured for launch in one.diagnoses]
        if told:
            diagnoses[deck_of(variant)] = cycle(told)
    return Dealer(decks, diagnoses)


def _with_shares(run: Measured) -> Measured:
    """A run whose launches have their shares of the seconds of a round: those that took turns lasted as long as it.

    Each has its own steps, and an equal part of the rest.
    """
    if not all(one.turns for one in run):
        return run

    def share(launch: Launch, steps: float) -> Launch:
        return replace(launch, seconds=(launch.seconds - steps) / len(run) + math.fsum(launch.step_times))

    def shares(one: Measurement) -> Measurement:
        return replace(one, launches=tuple(map(share, one.launches, steps)))

    steps = [math.fsum(map(math.fsum, times)) for times in zip(*(_step_times(one) for one in run), strict=True)]
    return tuple(map(shares, run))


def _step_times(measured: Measurement) -> list[tuple[float, ...]]:
    return [launch.step_times for launch in measured.launches]


def _variant(measured: Measurement) -> Variant:
    return Variant(
        **measured.identity_fields, subject=None, resolved=None, counts=measured.counts, steps=measured.plan.steps
    )


def _joined(runs: Measured, metrics: tuple[Metric, ...]) -> Measurement:
    """One measurement with the launches of all runs, and what was remarked on any of them."""
    every = [launch for run in runs for launch in run.launches]
    launches = tuple(replace(launch, round=i) for i, launch in enumerate(every))
    findings = tuple(dict.fromkeys(finding for run in runs for finding in run.findings))
    diagnoses = tuple(launch for run in runs for launch in run.diagnoses)
    joined = replace(runs[0], launches=launches, findings=findings, diagnoses=diagnoses)
    counted: tuple[Series, ...] = tuple(series for series in runs[0].series if series.scale == "exact")
    return replace(joined, series=(*series_of(joined, (*METRICS, *metrics)), *counted))
