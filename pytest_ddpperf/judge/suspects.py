"""Finds the metrics of one call that look worse, and the benchmarks that get more launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pytest_ddpperf.judge.sequential import Key
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import OPEN, Verdict

_HOPELESS = {"no_launches_decide", "unconfirmed"}  # notes of metrics that more launches can hardly decide


def wants_launches(comparison: Comparison) -> bool:
    """Returns whether more launches could decide the verdict on a metric.

    They cannot decide counts and diagnosed metrics. They can decide stored times only if these look grossly slower.
    """
    series = comparison.series
    if series.scale == "exact" or series.rules.diagnosed:
        return False
    if comparison.paired or not series.drifts or comparison.baseline is None:
        return True
    note = comparison.note
    return note is not None and note.code == "not_gross" and _beyond(comparison, note.facts["gross"])


def of_launches(result: Result) -> list[Comparison]:
    """Returns the gated comparisons whose verdicts more launches could decide."""
    return [each for each in result.comparisons if each.gated and wants_launches(each)]


def _beyond(comparison: Comparison, gross: float) -> bool:
    """Returns whether the estimate of a change exceeds the gross slowdown, though this is not proven."""
    change, lower = comparison.change or 0.0, comparison.series.better == "lower"
    if comparison.series.scale == "difference":
        return (change if lower else -change) > gross * abs(comparison.baseline or 0.0)
    return change > gross if lower else (1 + gross) * (1 + change) < 1


def benchmarks_of(results: Sequence[Result], metrics: Mapping[Key, Sequence[object]]) -> frozenset[Key] | None:
    """Returns the benchmarks that need more launches to decide ``metrics`` (by benchmark); None for all.

    If a gated metric is a quotient of two benchmarks, both get more launches.
    """
    keys = {key for key, names in metrics.items() if names}
    for result in [result for result in results if result.measurement.key in keys]:
        if any(each.gated and each.series.rules.partnered and each.baseline is not None for each in result.comparisons):
            bases = [each.measurement.key for each in results if each.measurement.name == result.measurement.over]
            keys.add((bases or [results[0].measurement.key])[0])
    return None if len(keys) == len(metrics) else frozenset(keys)


def undecided(
    results: Sequence[Result], looks_better: Callable[[Comparison], bool], blind: Mapping[Key, Sequence[object]]
) -> frozenset[Key] | None:
    """Returns the benchmarks with metrics that are undecided or look better, to launch them again; None for all.

    If ``blind`` has metrics that are too uncertain to show a slowdown, only their benchmarks get more launches.
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
    """Returns the names of gated metrics that seem worse, which fresh launches have to confirm."""
    worse = (each for each in of_launches(result) if each.suspicious or each.verdict is Verdict.REGRESSED)
    return tuple(each.series.metric for each in worse)


def with_related_times(suspects: Sequence[str], result: Result) -> frozenset[str]:
    """Returns the names of the suspected metrics; if one of them is a time, also of all other times."""
    timed = frozenset(series.metric for series in result.measurement.series if series.rules.timed)
    return frozenset(suspects) | (timed if timed & set(suspects) else frozenset())


def named(suspects: Mapping[Key, Sequence[str]], results: Sequence[Result]) -> Iterator[str]:
    """Yields texts: metrics that looked worse, with the names of their variants if several variants are measured."""
    repeated = {
        series.metric for result in results for series in result.measurement.series if series.rules.repeats_step_time
    }
    names: dict[str, list[str]] = {}
    for (name, _), metrics in suspects.items():
        for metric in [metric for metric in metrics if metric not in repeated] or metrics:
            names.setdefault(metric, []).append(name)
    for metric, variants in names.items():
        yield metric if len(suspects) == 1 else f"{metric} of {' and '.join(variants)}"
