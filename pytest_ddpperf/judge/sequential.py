"""The stopping rule: when to add a launch, when to stop, and when to confirm that a metric got worse.

The first phase judges after every launch until all metrics are decided or half of the time is up. A weak test finds
metrics that look worse (suspects). For suspects, a second phase runs at least as many new launches, and a strict test
decides. If memory or a loss is compared with a stored baseline, the strict test uses only the new launches. If launches
are paired with launches of the reference, the strict test uses all launches, and the new launches also have to be worse
in the weak test. Further launches may prove other metrics not worse, but cannot find them worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, TypeAlias

from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import OPEN, Verdict

ALPHA = 0.01  # two-sided, for one benchmark
SUITE_ALPHA = 0.04
"""The two-sided level for all benchmarks of a suite; half of it is for worsenings: 2 % of suites raise a false alarm.

If the reference is a stored baseline, both phases share the baseline's error, so the second alone keeps the level.
"""

PAIRED_ALPHA, PAIRED_SUITE_ALPHA = 0.007, 0.035
"""The same levels if candidate and reference are measured in the same rounds.

All launches together have to be worse at this level, and the launches of the second phase alone in the weak test.
benchmarks/decision.py prints how often unchanged code fails.
"""

MIN_LAUNCHES = 2  # a single launch shows no scatter

Key: TypeAlias = "tuple[str, int]"  # of a benchmark among those of one call: name and world size


class Phase(str, Enum):
    """The purpose of launches: to find metrics that look worse, to confirm this, or to prove that none is worse."""

    SCREEN = "screen"
    CONFIRM = "confirm"
    CLEAR = "clear"


@dataclass(frozen=True, slots=True)
class Interim:
    """The progress of a measurement at an interim verdict, which is a verdict on the launches so far."""

    elapsed: float  # seconds of measuring so far
    round_seconds: float  # of another launch of all benchmarks that go on
    last: bool  # whether no time is left for another launch, as far as that is known
    screened: bool = False  # whether no time is left to confirm a suspicion that begins now
    diagnosed: bool = False  # whether the diagnosed launches have been made as well
    of_each: Mapping[Key, float] = field(default_factory=dict)  # seconds of another launch of each benchmark, all sides
    over: float = 1.0  # share of the error of proofs (see ``Proofs``) that may be spent by now
    final: float = 1.0  # the same share for a last look
    shared: bool = False  # whether the session's budget deals out the time, which no setting of the test extends
    defers: bool = False  # whether suspects are confirmed in the second pass over the suite, not now
    rounds: int = 0  # how many rounds of all benchmarks fit into the time that is left
    diagnosis: float = 0.0  # seconds of a full diagnosis
    before: float = 0.0  # seconds of the call before the first timed launch

    def seconds_of(self, keys: Collection[Key] | None) -> float:
        """Returns the seconds of a round that launches the benchmarks ``keys``; None means all benchmarks."""
        if not self.of_each:
            return self.round_seconds
        return math.fsum(seconds for key, seconds in self.of_each.items() if keys is None or key in keys)


@dataclass(frozen=True, slots=True)
class Action:
    """The action after an interim verdict or a diagnosis: stop, launch again, or confirm that metrics got worse."""

    kind: Literal["stop", "more", "confirm"]
    launches: int = 0
    suspects: tuple[str, ...] = ()  # names of the metrics that looked worse
    explain: bool = False  # whether a diagnosis is wanted even without time left
    worse: bool = False  # whether a metric is worse, which is reported even if no diagnosis succeeds
    benchmarks: frozenset[Key] | None = None  # to measure; None for all


STOP = Action("stop")


def alpha_of_benchmark(benchmarks: int, *, paired: bool = False) -> float:
    """Returns the two-sided significance level of each benchmark if ``benchmarks`` of them are judged (Bonferroni)."""
    alone, of_suite = (PAIRED_ALPHA, PAIRED_SUITE_ALPHA) if paired else (ALPHA, SUITE_ALPHA)
    return min(alone, of_suite / max(1, benchmarks))


def phase_after(action: Action, phase: Phase, *, screened: bool = False) -> Phase:
    """Returns the phase after ``action``; ``screened``: whether no time is left to confirm that a metric got worse."""
    if action.kind == "confirm":
        return Phase.CONFIRM
    return Phase.CLEAR if phase is Phase.SCREEN and screened else phase


def next_action(
    phase: Phase, verdicts: Iterable[Verdict], *, launches: int, suspects: bool, last: bool, measure_on: bool = False
) -> Action:
    """Returns the action after an interim verdict; a metric that looks worse always gets launches to confirm it."""
    seen = set(verdicts)
    if phase is Phase.SCREEN and (suspects or Verdict.REGRESSED in seen):
        return Action("confirm", launches)
    if Verdict.REGRESSED in seen or not (measure_on or seen & OPEN):
        return STOP
    return STOP if last else Action("more", 1)


_HOPELESS = {"no_launches_decide", "unconfirmed"}  # notes of metrics that more launches can hardly decide


def wants_launches(comparison: Comparison) -> bool:
    """Returns whether more launches could decide a metric.

    The result is False for counts, for metrics from the separate launches of a diagnosis, and for comparisons with
    stored times unless the slowdown may be gross.
    """
    series = comparison.series
    if series.scale == "exact" or series.rules.diagnosed:
        return False
    if comparison.paired or not series.drifts or comparison.baseline is None:
        return True
    note = comparison.note
    return note is not None and note.code == "not_gross" and _beyond(comparison, note.facts["gross"])


def of_launches(result: Result) -> list[Comparison]:
    """Returns the comparisons that can fail a test (gated ones) and whose verdicts more launches could change."""
    return [each for each in result.comparisons if each.gated and wants_launches(each)]


def _beyond(comparison: Comparison, gross: float) -> bool:
    """Returns whether the estimated worsening exceeds the threshold ``gross``, a fraction, significantly or not."""
    change, lower = comparison.change or 0.0, comparison.series.better == "lower"
    if comparison.series.scale == "difference":
        return (change if lower else -change) > gross * abs(comparison.baseline or 0.0)
    return change > gross if lower else (1 + gross) * (1 + change) < 1


def benchmarks_of(results: Sequence[Result], metrics: Mapping[Key, Sequence[object]]) -> frozenset[Key] | None:
    """Returns the benchmarks that need more launches to decide their ``metrics``; None if all benchmarks do."""
    keys = {key for key, names in metrics.items() if names}
    for result in [result for result in results if result.measurement.key in keys]:
        if any(each.gated and each.series.rules.partnered and each.baseline is not None for each in result.comparisons):
            bases = [each.measurement.key for each in results if each.measurement.name == result.measurement.over]
            keys.add((bases or [results[0].measurement.key])[0])  # both benchmarks of a quotient get more launches
    return None if len(keys) == len(metrics) else frozenset(keys)


def undecided(
    results: Sequence[Result], looks_better: Callable[[Comparison], bool], blind: Mapping[Key, Sequence[object]]
) -> frozenset[Key] | None:
    """Returns the benchmarks that have undecided metrics, or metrics that look better; None means all benchmarks.

    If benchmarks have ``blind`` metrics, in which a slowdown could hide, only these benchmarks are returned.
    """
    if any(blind.values()):
        return benchmarks_of(results, blind)
    open_ones = {
        result.measurement.key: [each for each in of_launches(result) if each.verdict in OPEN or looks_better(each)]
        for result in results
    }
    return benchmarks_of(results, open_ones)


def blind_metrics(result: Result) -> list[Comparison]:
    """Returns the metrics with too few launches for ``ok``, so that a slowdown could stay hidden."""
    return [
        each
        for each in of_launches(result)
        if each.verdict is Verdict.INCONCLUSIVE
        and not each.series.rules.alarm_only
        and (each.note is None or each.note.code not in _HOPELESS)
    ]


def suspicious_metrics(result: Result) -> tuple[str, ...]:
    """Returns the names of the metrics that look worse and can fail a test; new launches have to confirm them."""
    worse = (each for each in of_launches(result) if each.suspicious or each.verdict is Verdict.REGRESSED)
    return tuple(each.series.metric for each in worse)


def with_related_times(suspects: Sequence[str], result: Result) -> frozenset[str]:
    """Returns the names of the suspected metrics, and of all times if one of the suspected metrics is a time."""
    timed = frozenset(series.metric for series in result.measurement.series if series.rules.timed)
    return frozenset(suspects) | (timed if timed & set(suspects) else frozenset())


def named(suspects: Mapping[Key, Sequence[str]], results: Sequence[Result]) -> Iterator[str]:
    """Yields the metrics that looked worse, as texts; with the variant's name if several variants are measured."""
    repeated = {
        series.metric for result in results for series in result.measurement.series if series.rules.repeats_step_time
    }
    names: dict[str, list[str]] = {}
    for (name, _), metrics in suspects.items():
        for metric in [metric for metric in metrics if metric not in repeated] or metrics:
            names.setdefault(metric, []).append(name)
    for metric, variants in names.items():
        yield metric if len(suspects) == 1 else f"{metric} of {' and '.join(variants)}"
