"""A search for the commit that made a metric worse: the ends, the probes between them, the culprit and its parent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_ddpperf.cli.bisect.attempts import ATTEMPTS, FORCED, RunProbe, attempts
from pytest_ddpperf.cli.bisect.classification import likeness, middle, shift_of
from pytest_ddpperf.cli.bisect.commits import Commit, described
from pytest_ddpperf.cli.bisect.endpoints import ERROR, Ends, share
from pytest_ddpperf.cli.bisect.processes import Started
from pytest_ddpperf.cli.bisect.search import Answer, Search, advance, expected_probes, next_probe
from pytest_ddpperf.cli.bisect.target import obstacle
from pytest_ddpperf.records.results import Comparison
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.phrases import change_text, find, values_text
from pytest_ddpperf.run.probe import Outcome, Probe


@dataclass(frozen=True)
class Probed:
    """What a probe says of a commit.

    Attributes:
        answer: which end it is like; ``skipped`` where that cannot be said.
        error: probability that it is like the other end.
        text: what was measured, or why nothing was.
    """

    answer: Answer
    error: float
    text: str


class Hunt:
    """Follows a search to its end.

    Attributes:
        search: where it stands.
        error: what the answers so far may be wrong by, added up.

    Args:
        ends: what to follow.
        arguments: for pytest.
        run: runs a probe.
    """

    def __init__(self, ends: Ends, arguments: tuple[str, ...], run: RunProbe) -> None:
        self.ends = ends
        self.search: Search = ends.between.search
        self.error = ends.error
        self._left = ERROR - ends.error  # for the answers to come
        self._arguments = arguments
        self._run = run

    @property
    def expected(self) -> int:
        """About how many probes it takes."""
        return expected_probes(self.ends.between.search)

    @property
    def next(self) -> Commit | None:
        """The commit to look at next; None at the end."""
        commit = next_probe(self.search)
        return None if commit is None else self.described(commit)

    def described(self, commit: str) -> Commit:
        """A commit in words."""
        return described(self.ends.between.root, commit)

    def probe(self, commit: str) -> Probed:
        """Look at a commit, again and for longer where that does not decide it; the search goes on from there."""
        probed = Probed("skipped", 0.0, "")
        allowed = share(self._left, self.search)
        for outcome in self._attempts(commit, self.ends.between.good, self._midway):
            probed = self._answer(outcome, allowed)
            if probed.answer != "skipped":
                self._left -= allowed
                break
        self.search = advance(self.search, commit, probed.answer)
        self.error += probed.error
        return probed

    def confirmation(self, commit: str) -> tuple[str, Comparison | str]:
        """The commit that came before, and this one held against it; a line in its place where that says nothing."""
        before = (*self.ends.between.parents[commit], self.ends.between.good)[0]
        told: Comparison | str = ""
        for outcome in self._attempts(commit, before, {"counted_only": True} if self.ends.target.counted else {}):
            told = self._told(outcome)
            if isinstance(told, str) or told.verdict is not Verdict.INCONCLUSIVE:
                break
        return before, told

    def _attempts(self, commit: str, against: str, settings: Mapping[str, object]) -> Iterator[Outcome]:
        target = self.ends.target
        probe = Probe(commit, {**FORCED, **self.ends.effort, **settings}, target.metric, target.benchmark)
        return attempts(self._run, probe, Started(against, self._arguments, target.test))

    @property
    def _midway(self) -> Mapping[str, object]:
        """The settings with which a run stops as soon as it is known on which side of the middle a commit is."""
        if self.ends.target.counted:
            return {"counted_only": True}
        percent = 100 * middle(self.ends.shift, self.ends.comparison)
        return {"tolerance": f"{percent:.6g}%", "counted": False}

    def _answer(self, outcome: Outcome, allowed: float) -> Probed:
        comparison = self._told(outcome)
        if isinstance(comparison, str):
            return Probed("skipped", 0.0, comparison)
        shift, text = shift_of(comparison), told_text(comparison)
        if shift is None:
            return Probed("skipped", 0.0, f"{text}, and nothing is known of its scatter".lstrip(", "))
        told = likeness(shift, self.ends.shift)
        wrong = ATTEMPTS * told.error  # each attempt is a chance to be wrong, and has the same part of what is allowed
        if wrong > allowed:
            return Probed("skipped", 0.0, f"{text}, which may be either")
        return Probed(told.answer, wrong, text)

    def _told(self, outcome: Outcome) -> Comparison | str:
        """What an outcome says of the target, or in a line why it says nothing."""
        result, reason = self.ends.target.of(outcome), obstacle(outcome, self.ends.target)
        if reason is not None or result is None:
            return str(reason)
        return find(result, self.ends.target.metric) or f"it has no {self.ends.target.metric}"


def told_text(comparison: Comparison) -> str:
    """What a comparison says, without its verdict: ``+5.2 % [95 % CI +4.1 .. +6.3]``, or ``2 -> 3`` of a count."""
    if comparison.series.scale == "exact" and comparison.note and comparison.series.value == comparison.baseline:
        return f"{comparison.note},"
    return f"{values_text(comparison)} per step," if comparison.series.scale == "exact" else change_text(comparison)
