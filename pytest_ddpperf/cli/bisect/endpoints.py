"""The ends of a search: how they differ, known so well that what lies between them can be told from either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_ddpperf.cli.bisect.attempts import ATTEMPTS, FORCED, MORE_LAUNCHES, RunProbe, attempts, effort
from pytest_ddpperf.cli.bisect.classification import Shift, error, likeness, shift_of
from pytest_ddpperf.cli.bisect.commits import Range
from pytest_ddpperf.cli.bisect.processes import Started
from pytest_ddpperf.cli.bisect.search import Search, expected_probes
from pytest_ddpperf.cli.bisect.target import Target
from pytest_ddpperf.records.results import Comparison
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.phrases import find
from pytest_ddpperf.run.probe import Outcome, Probe

ERROR = 0.05  # that all answers of a search together may have: the ends and the probes share it


@dataclass(frozen=True)
class Ends:
    """How the bad end differs from the good one: what a search follows.

    Attributes:
        comparison: of the target, bad against good.
        shift: what it tells.
        effort: the settings that measure a commit for as long; none for counts.
    """

    between: Range
    target: Target
    comparison: Comparison
    shift: Shift
    effort: Mapping[str, object] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """How likely they do not differ at all: each attempt was a chance to be wrong."""
        return min(1.0, ATTEMPTS * error(self.shift))

    @property
    def telling(self) -> bool:
        """Whether a commit that is like the good end, measured for as long as the bad one was, can be told from it."""
        like_good = Shift(0.0, self.shift.standard_error, self.shift.df)
        return ATTEMPTS * likeness(like_good, self.shift).error <= share(ERROR - self.error, self.between.search)

    @property
    def searchable(self) -> bool:
        """Whether they leave any error to the answers, where some are needed: else all would be skipped."""
        return self.error < ERROR or not self.between.search.candidates


def share(left: float, search: Search) -> float:
    """What the next answer of a search may be wrong by.

    Args:
        left: of what all answers may be wrong by, the shares of those that there were taken away. One share more than
            probes are expected is kept, so that it is never used up.
        search: where it stands.
    """
    return left / (expected_probes(search) + 1)


def ends_of(between: Range, target: Target, outcome: Outcome) -> Ends | None:
    """What the bad end differs in; None where how much cannot be said."""
    result = target.of(outcome)
    comparison = None if result is None else find(result, target.metric)
    shift = None if comparison is None else shift_of(comparison)
    if comparison is None or shift is None:
        return None
    return Ends(between, target, comparison, shift, {} if target.counted else effort(outcome))


def sharpened(ends: Ends, outcome: Outcome, arguments: tuple[str, ...], run: RunProbe) -> tuple[Ends | None, Outcome]:
    """The ends, measured again where they are not known well enough: the bad one's error is in every "good" answer.

    Args:
        ends: as first measured.
        outcome: that told them.
        arguments: for pytest.
        run: runs a probe.

    Returns:
        The ends as the last attempt has them, None where it does not have the bad one worse; and its outcome.
    """
    if ends.telling:
        return ends, outcome
    between, target = ends.between, ends.target
    settings = {**FORCED, "counted": False, **effort(outcome, MORE_LAUNCHES)}
    probe = Probe(between.bad, settings, target.metric, target.benchmark)
    found, last = None, outcome
    for last in attempts(run, probe, Started(between.good, arguments, target.test), ATTEMPTS - 1):
        again = ends_of(between, target, last)
        if again is None or again.comparison.verdict not in {Verdict.REGRESSED, Verdict.INCONCLUSIVE}:
            return None, last
        found = again if again.comparison.verdict is Verdict.REGRESSED else None
        if found is not None and found.telling:
            break
    return found, last
