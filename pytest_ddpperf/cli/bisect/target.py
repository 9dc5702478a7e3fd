"""What a search looks for: one metric of one benchmark, found where the bad end is red. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.metrics.scaling import EFFICIENCY, SPEEDUP
from pytest_ddpperf.metrics.table import METRICS
from pytest_ddpperf.records.counts import UNITS
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import broken_reason
from pytest_ddpperf.reports.phrases import decisive, find
from pytest_ddpperf.run.probe import Key, Outcome


@dataclass(frozen=True)
class Target:
    """One metric of one benchmark.

    Attributes:
        test: pytest node id.
        benchmark: its name and number of ranks.
    """

    test: str
    benchmark: Key
    metric: str

    @property
    def counted(self) -> bool:
        """Whether it has no noise."""
        return is_counted(self.metric)

    def of(self, outcome: Outcome) -> Result | None:
        """The result of its benchmark; None where there is none."""
        return next((one for one in outcome.results if (one.test, key_of(one)) == (self.test, self.benchmark)), None)


def require_known(metric: str | None) -> None:
    """Refuse to follow what no benchmark can have, before any is measured.

    Raises:
        SettingError: there is no such metric.
    """
    known = (*(one.name for one in METRICS), EFFICIENCY, SPEEDUP, *UNITS)
    if metric is not None and metric not in known:
        close = get_close_matches(metric, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        raise SettingError(f"--metric {metric}: there is no such metric; {hint}")


def is_counted(metric: str | None) -> bool:
    """Whether a metric is counted."""
    return metric in UNITS


def key_of(result: Result) -> Key:
    """What tells a benchmark from the others of its test."""
    return result.name, result.measurement.world_size


def targets(outcome: Outcome, metric: str | None) -> list[Target]:
    """What is red, the best first: what is counted needs no repetition, and the larger change is the easier to follow.

    Args:
        outcome: of the bad end held against the good one.
        metric: the only one to look at; None for all that count for the verdict.
    """
    red = [
        (comparison, Target(result.test, key_of(result), comparison.series.metric))
        for result, comparison in _compared(outcome, metric)
        if comparison.verdict is Verdict.REGRESSED
    ]
    return [target for _, target in sorted(red, key=lambda one: (not one[1].counted, -_size(one[0])))]


def _compared(outcome: Outcome, metric: str | None) -> Iterator[tuple[Result, Comparison]]:
    for result in outcome.results:
        if _lack(result) is not None:
            continue
        named = None if metric is None else find(result, metric)
        for comparison in decisive(result, set(Verdict)) if metric is None else filter(None, [named]):
            yield result, comparison


def _size(comparison: Comparison) -> float:
    """A change beside what is accepted, or beside what was there."""
    scale = comparison.tolerance or comparison.baseline or 1.0
    return abs((comparison.change or 0.0) / scale)


def undecided(outcome: Outcome, metric: str | None) -> bool:
    """Whether more launches could show something that is red."""
    return any(comparison.verdict is Verdict.INCONCLUSIVE for _, comparison in _compared(outcome, metric))


def shown(outcome: Outcome, metric: str | None) -> list[tuple[Result, Comparison]]:
    """What is told where nothing is red: all that is not counted, and counts that differ."""
    return [
        (result, comparison)
        for result, comparison in _compared(outcome, metric)
        if metric is not None or comparison.series.scale != "exact" or comparison.change
    ]


def obstacle(outcome: Outcome, target: Target | None = None) -> str | None:
    """Why a probe says nothing, in a line; None where it says something of its target, or of anything at all."""
    results = outcome.results if target is None else tuple(filter(None, [target.of(outcome)]))
    lacks = [_lack(result) for result in results]
    if lacks:
        return None if None in lacks else lacks[0]
    reasons = [reason for test, reason in outcome.failures.items() if target is None or test == target.test]
    return next(iter((*reasons, *outcome.failures.values())), "no benchmark was measured")


def not_compared(outcome: Outcome) -> list[str]:
    """The benchmarks that say nothing, and the tests that came to none, each in a line with why."""
    lacks = [(f"{result.test} {result.name}", _lack(result)) for result in outcome.results]
    measured = {result.test for result in outcome.results}
    failed = [one for one in outcome.failures.items() if one[0] not in measured]
    return [f"{name}: not compared: {reason}" for name, reason in (*lacks, *failed) if reason is not None]


def _lack(result: Result) -> str | None:
    """Why a benchmark says nothing; None where it says something."""
    if result.paired is not None and result.paired.lacking:
        return f"{result.origin}: {result.paired.lacking}"
    if result.verdict is Verdict.BROKEN:
        return broken_reason(result)
    return None
