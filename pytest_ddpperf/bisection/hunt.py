"""A search for the commit that made a metric worse: the ends, the probes between them, the culprit and its parent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_ddpperf.bisection.commits import Commit, Range, described
from pytest_ddpperf.bisection.likeness import Shift, error, likeness, middle, shift_of
from pytest_ddpperf.bisection.processes import Started
from pytest_ddpperf.bisection.search import Answer, Search, advance, begin, expected_probes, next_probe
from pytest_ddpperf.bisection.target import Target, obstacle
from pytest_ddpperf.probe import Outcome, Probe
from pytest_ddpperf.reports.phrases import change_text, find, values_text
from pytest_ddpperf.results import Comparison
from pytest_ddpperf.verdict import Verdict

ERROR = 0.05  # that all answers of a search together may have: the probes share it
ATTEMPTS = 2  # at what stays undecided; the second takes longer
MORE_LAUNCHES, MORE_TIME = 2, 4
# A verdict fails no test, so that all of its benchmarks are measured; what is wrong is not what is slow.
FORCED = {"fail_on": "none", "verify": False}

RunProbe = Callable[[Probe, Started], Outcome]


@dataclass(frozen=True)
class Ends:
    """How the bad end differs from the good one: what a search follows.

    Attributes:
        comparison: of the target, bad against good.
        shift: what it tells.
    """

    between: Range
    target: Target
    comparison: Comparison
    shift: Shift


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
        self.search: Search = begin(ends.between.parents)
        self.error = error(ends.shift)
        self._arguments = arguments
        self._run = run

    @cached_property
    def expected(self) -> int:
        """About how many probes it takes."""
        return expected_probes(begin(self.ends.between.parents))

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
        for attempt, outcome in enumerate(self._attempts(commit, self.ends.between.good, self._midway), start=1):
            probed = self._answer(outcome, attempt)
            if probed.answer != "skipped":
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
        probe = Probe(commit, {**FORCED, **settings}, target.metric, target.benchmark)
        return attempts(self._run, probe, Started(against, self._arguments))

    @property
    def _midway(self) -> Mapping[str, object]:
        """The settings with which a run stops as soon as it is known on which side of the middle a commit is."""
        if self.ends.target.counted:
            return {"counted_only": True}
        percent = 100 * middle(self.ends.shift, self.ends.comparison)
        return {"tolerance": f"{percent:.6g}%", "counted": False}

    def _answer(self, outcome: Outcome, attempt: int) -> Probed:
        comparison = self._told(outcome)
        if isinstance(comparison, str):
            return Probed("skipped", 0.0, comparison)
        shift, text = shift_of(comparison), told_text(comparison)
        if shift is None:
            return Probed("skipped", 0.0, f"{text}, and nothing is known of its scatter".lstrip(", "))
        told = likeness(shift, self.ends.shift)
        wrong = attempt * told.error  # each attempt was a chance to be wrong
        if wrong > ERROR / max(1, self.expected):
            return Probed("skipped", 0.0, f"{text}, which may be either")
        return Probed(told.answer, wrong, text)

    def _told(self, outcome: Outcome) -> Comparison | str:
        """What an outcome says of the target, or in a line why it says nothing."""
        result, reason = self.ends.target.of(outcome), obstacle(outcome, self.ends.target)
        if reason is not None or result is None:
            return str(reason)
        return find(result, self.ends.target.metric) or f"it has no {self.ends.target.metric}"


def attempts(run: RunProbe, probe: Probe, started: Started) -> Iterator[Outcome]:
    """A probe, then the same again with more launches; not again where nothing was timed."""
    for _ in range(ATTEMPTS):
        outcome = run(probe, started)
        yield outcome
        launches = max((len(result.measurement.launches) for result in outcome.results), default=0)
        if not launches:
            return
        seconds = max(result.seconds for result in outcome.results)
        more = {"launches": MORE_LAUNCHES * launches, "max_time": MORE_TIME * seconds}
        probe = replace(probe, settings={**probe.settings, **more})


def told_text(comparison: Comparison) -> str:
    """What a comparison says, without its verdict: ``+5.2 % [95 % CI +4.1 .. +6.3]``, or ``2 -> 3`` of a count."""
    return f"{values_text(comparison)} per step," if comparison.series.scale == "exact" else change_text(comparison)


def ends_of(between: Range, target: Target, outcome: Outcome) -> Ends | None:
    """What the bad end differs in; None where how much cannot be said."""
    result = target.of(outcome)
    comparison = None if result is None else find(result, target.metric)
    shift = None if comparison is None else shift_of(comparison)
    if comparison is None or shift is None:
        return None
    return Ends(between, target, comparison, shift)
