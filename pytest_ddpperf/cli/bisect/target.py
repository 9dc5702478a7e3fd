"""The target of a bisection: one metric of one benchmark that is worse at the bad end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.metrics.scaling import EFFICIENCY, SPEEDUP
from pytest_ddpperf.metrics.table import METRICS
from pytest_ddpperf.parsers import closest
from pytest_ddpperf.records.counts import COUNTS
from pytest_ddpperf.records.finding import APART
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import broken_reason
from pytest_ddpperf.reports.phrases import decisive, find
from pytest_ddpperf.run.session.probe import BenchmarkKey, Outcome, Probe

# No verdict fails a test, so that all of its benchmarks are measured. Wrong training is not slow training.
FORCED: Mapping[str, object] = {"fail_on": "none", "require_baseline": False, "verify": False}


@dataclass(frozen=True)
class Target:
    """The metric of a benchmark by which a bisection searches; ``test`` is the node id of the benchmark's test."""

    test: str
    benchmark: BenchmarkKey
    metric: str

    @property
    def counted(self) -> bool:
        """Returns whether the metric is a count, which has no noise."""
        return self.metric in COUNTS

    def probe(self, commit: str, settings: Mapping[str, object]) -> Probe:
        """Returns the probe that measures this target's benchmark for a commit."""
        return Probe(commit, {**FORCED, **settings}, self.metric, self.benchmark, self.test)

    def comparison(self, outcome: Outcome) -> Comparison | str:
        """Returns the target's comparison in an outcome; a one-line reason if there is none."""
        results = [
            result for result in outcome.results if (result.test, result.measurement.key) == (self.test, self.benchmark)
        ]
        reason = obstacle(outcome, results, self.test)
        return reason if reason is not None else find(results[0], self.metric) or f"the benchmark has no {self.metric}"


def require_known(metric: str, added: Iterable[str]) -> None:
    """Raises SettingError for a metric that no benchmark can have; ``added``: the metrics that hooks add."""
    known = (*(row.name for row in METRICS), EFFICIENCY, SPEEDUP, *COUNTS, *added)
    if metric not in known:
        hint = closest(metric, known) or f"there are {', '.join(known)}"
        raise SettingError(f"--metric {metric}: there is no such metric; {hint}")


def targets(outcome: Outcome, metric: str | None) -> list[Target]:
    """Returns the bad commit's regressed metrics; the first metric makes the easiest bisection.

    Counts come first, because they need no repetition. Metrics with a larger change follow, because fewer launches
    show it. If ``metric`` is given, the result has no other metric.
    """
    worse = {
        Target(result.test, result.measurement.key, comparison.series.metric): abs(
            (comparison.change or 0.0) / (comparison.tolerance or comparison.baseline or 1.0)
        )
        for result, comparison in compared(outcome, metric)
        if comparison.verdict is Verdict.REGRESSED
    }
    return sorted(worse, key=lambda target: (not target.counted, -worse[target]))


def compared(outcome: Outcome, metric: str | None) -> Iterator[tuple[Result, Comparison]]:
    """Yields (result, comparison) for ``metric`` of each benchmark, or, if None, for metrics that can fail a test."""
    for result in outcome.results:
        if _lack(result) is None:
            named = decisive(result, set(Verdict)) if metric is None else filter(None, [find(result, metric)])
            yield from ((result, comparison) for comparison in named)


def undecided(outcome: Outcome, metric: str | None) -> bool:
    """Returns whether ``metric`` (if None, any metric that can fail a test) is inconclusive in any benchmark."""
    return any(comparison.verdict is Verdict.INCONCLUSIVE for _, comparison in compared(outcome, metric))


def obstacle(outcome: Outcome, results: Sequence[Result], test: str | None = None) -> str | None:
    """Returns a reason why no result was compared, preferably a failure of ``test``; None if a result was compared."""
    lacks = [_lack(result) for result in results]
    if lacks:
        return None if None in lacks else lacks[0]
    reasons = [reason for name, reason in outcome.failures.items() if test in {None, name}]
    return next(iter((*reasons, *outcome.failures.values())), "no benchmark was measured")


def not_compared(outcome: Outcome) -> list[str]:
    """Returns a line with the reason for each benchmark that was not compared, and each test without a benchmark."""
    lacks = [(f"{result.test} {result.name}", _lack(result)) for result in outcome.results]
    measured = {result.test for result in outcome.results}
    failed = [(name, reason) for name, reason in outcome.failures.items() if name not in measured]
    return [f"{name}: not compared: {reason}" for name, reason in (*lacks, *failed) if reason is not None]


def _lack(result: Result) -> str | None:
    """Returns the reason why a benchmark could not be compared; None if it was compared."""
    if result.paired is not None and result.paired.lacking:
        return f"{result.reference.origin}: {result.paired.lacking}"
    apart = any(finding.code in APART for finding in result.findings)  # compared, and worse
    if (result.verdict is Verdict.BROKEN and not apart) or result.measurement.unfit:
        return broken_reason(result)
    return None
