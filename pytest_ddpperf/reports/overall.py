"""What the benchmarks of a session came to: how many have each verdict, and the change that their tests share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.count_changes import counts_words
from pytest_ddpperf.reports.lines import shortened
from pytest_ddpperf.reports.names import names_of
from pytest_ddpperf.reports.phrases import bound_text, by_stored_times, confidence_text, decisive, find
from pytest_ddpperf.stats.suites import CommonChange, common_change
from pytest_ddpperf.units import format_change, format_count, format_percent, signed_percent, span

_NAMED = 3  # undecided benchmarks
_NAME = 40  # characters of their names
_TELLING = 0.4  # the width of an interval of the common change beyond which it says nothing
_Named: TypeAlias = "Sequence[tuple[str, Result]]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Overall:
    """A session in figures: it gates nothing."""

    verdicts: Mapping[str, int]  # how many benchmarks have each, 0 of them too
    common_change: CommonChange | None  # of the step times of tests


def overall(results: Sequence[Result]) -> Overall:
    """The figures of all results together."""
    numbers = Counter(result.verdict for result in results)
    paired: dict[str, list[float]] = {}
    for result in results:
        step = find(result, "step_time")
        if step is not None and step.change is not None and step.paired:
            paired.setdefault(result.test, []).append(step.change)
    verdicts = {verdict.value: numbers[verdict] for verdict in Verdict}
    return Overall(verdicts=verdicts, common_change=common_change([*paired.values()]))


def overall_lines(results: Sequence[Result], accepted: Collection[str] = ()) -> list[str]:
    """The common change of all tests, then how many benchmarks have each verdict; of none nothing.

    ``accepted`` are the tests whose results became the baseline.
    """
    if not results:
        return []
    common, together = overall(results).common_change, []
    if common is not None and (common.slower or common.interval.high - common.interval.low <= _TELLING):
        ends = " .. ".join(map(signed_percent, (common.interval.low, common.interval.high)))
        change = f"{format_change(common.change)} [{confidence_text(common.interval.confidence)} {ends}]"
        together = [f"{common.tests} tests together: step_time {change}{' slower' if common.slower else ''}"]
    return [*together, *_targets(results), _verdicts_line(results, accepted)]


def _verdicts_line(results: Sequence[Result], accepted: Collection[str]) -> str:
    """The worst verdict first; 0 regressed is told too."""
    names = names_of(results)
    short = shortened(names, _NAME)
    parts = []
    for verdict in reversed(Verdict):
        those = [(short[name], one) for name, one in zip(names, results, strict=True) if one.verdict is verdict]
        if those or verdict is Verdict.REGRESSED:
            more = _MORE[verdict](those) if verdict in _MORE else ""
            if verdict is Verdict.REGRESSED and (stored := sum(one.test in accepted for _, one in those)):
                more = f"{stored} accepted"
            parts.append(f"{len(those)} {verdict.value}{more and f' ({more})'}")
    return f"{format_count(len(results), 'benchmark')}: {', '.join(parts)}"


def _would_have_shown(named: _Named) -> str:
    """Which slowdowns are ruled out."""
    steps = [step for _, result in named if (step := find(result, "step_time")) is not None]
    bounds = [max(step.bound, 0.0) for step in steps if step.gated and step.bound is not None]
    stored = sum(by_stored_times(result) for _, result in named)
    told = [f"a slowdown beyond {span(format_percent, bounds)} would have shown"] if bounds else []
    return "; ".join([*told, *([f"{stored} by stored times"] if stored else [])])


def _could_be(named: _Named) -> str:
    """Which benchmarks could be how much worse, the first metric that is open of each; the largest figures first."""
    undecided = [(name, metric) for name, result in named for metric in decisive(result, {Verdict.INCONCLUSIVE})[:1]]
    if not undecided:
        return ""
    largest_first = sorted(undecided, key=lambda each: -(each[1].bound or 0.0))
    told = [" ".join(filter(None, (name, *_figure(metric)))) for name, metric in largest_first]
    more = [f"{len(told) - _NAMED} more"] if len(told) > _NAMED else []
    slower = all(metric.series.metric == "step_time" for _, metric in undecided)
    return f"could be {'slower' if slower else 'worse'}: {' and '.join([', '.join(told[:_NAMED]), *more])}"


def _figure(metric: Comparison) -> tuple[str, str]:
    """The metric, where it is not the step time, and its bound."""
    name = "" if metric.series.metric == "step_time" else metric.series.metric
    return name, bound_text(metric) if (metric.bound or 0.0) > 0 else "stored times" * (
        metric.series.drifts and not metric.paired
    )


def _targets(results: Sequence[Result]) -> list[str]:
    """How many targets were missed, are open and were met; nothing where the tests have none."""
    codes = Counter(finding.code for result in results for finding in result.findings)
    numbers = {"missed": codes["target_missed"], "inconclusive": codes["target_open"], "met": codes["target_met"]}
    told = [f"{number} {word}" for word, number in numbers.items() if number]
    return [f"{format_count(sum(numbers.values()), 'target')}: {', '.join(told)}"] if told else []


def _counted(named: _Named) -> str:
    """What became of the counts that are compared all the same."""
    words = [counts_words(result) for _, result in named]
    return " and ".join(f"{words.count(word)} with {word}" for word in dict.fromkeys(words) if word)


_MORE: Mapping[Verdict, Callable[[_Named], str]] = {
    Verdict.OK: _would_have_shown,
    Verdict.INCONCLUSIVE: _could_be,
    Verdict.INCOMPATIBLE: _counted,
    Verdict.NEW: _counted,
}
"""What is said of the benchmarks with a verdict besides their number."""
