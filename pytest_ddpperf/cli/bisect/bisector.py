"""Finds the first bad commit: measures the good and the bad commit (the ends), then commits between them.

Each commit, and also the bad end, is compared with the good end, side by side. A commit is classified as bad if its
metric got worse by at least half as much as the bad end's metric. The error of a classification is a p-value by
Student's t: the probability of such a shift, or a more extreme one, if the commit were of the other class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from pytest_ddpperf.cli.bisect.ranges import Answer, CommitRange, PackageRange
from pytest_ddpperf.cli.bisect.target import FORCED, Target, targets, undecided
from pytest_ddpperf.judge.detection import PAIRED_LOOKS
from pytest_ddpperf.records.counts import COUNTS
from pytest_ddpperf.records.results import Comparison
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import finding_text
from pytest_ddpperf.reports.phrases import change_text, values_text
from pytest_ddpperf.run.session.probe import Outcome, Probe

MAX_ERROR = 0.05  # of all answers of a bisection together: the ends and the probes share it
ATTEMPTS = 4  # at a probe that decides nothing, each with twice the launches of the one before
MORE_LAUNCHES, MORE_TIME = 2, 4  # factors; a run uses only half of its time before its first verdict
COUNTED: Mapping[str, object] = {"counts": "only"}  # counts have no noise, so they need no launches

Searched = CommitRange | PackageRange
"""The searched range. If packages are searched, "commit" in this file means a state between two lists of packages."""

RunProbe = Callable[[Probe, str], Outcome]
"""A function that measures a probe's commit side by side with the commit of the given full hash."""


@dataclass(frozen=True, slots=True)
class ShiftEstimate:
    """The shift of a commit: how much worse its metric is compared with the good commit, and the standard error."""

    worsening: float  # on the scale of analysis: logarithms for ratios; above 0 for the worse
    standard_error: float = 0.0  # 0 for counts
    df: float = math.inf  # degrees of freedom of the standard error

    @property
    def error(self) -> float:
        """Returns the p-value of the shift, corrected for repeated looks at the data during a run."""
        if self.standard_error == 0:
            return 0.0 if self.worsening > 0 else 1.0
        from scipy.special import stdtr

        return min(1.0, PAIRED_LOOKS * float(stdtr(self.df, -self.worsening / self.standard_error)))


@dataclass(frozen=True, slots=True)
class Classification:
    """The answer of a probe (the measurement of a commit): whether the commit is like the good or the bad one."""

    answer: Answer  # "skipped" if the commit cannot be said to be like one of the ends
    error: float = 0.0  # p-value: the probability of such a shift, or a larger one, if the commit is like the other end
    text: str = ""  # what was measured, or why nothing was


def shift_of(comparison: Comparison) -> ShiftEstimate | None:
    """Returns the shift in a comparison with the good commit; None if the shift or its error is unknown."""
    change, standard_error = comparison.change, comparison.standard_error
    sign = 1.0 if comparison.series.better == "lower" else -1.0
    if change is None:
        return None
    if comparison.series.scale == "exact":
        # A count may be worse while its total is not: it counts as worse by one.
        return ShiftEstimate(1.0 if comparison.verdict is Verdict.REGRESSED and sign * change <= 0 else sign * change)
    if standard_error is None:
        return None
    if comparison.series.scale == "ratio" and min((*comparison.series.samples, *comparison.base_samples)) > 0:
        change = math.log1p(change)
    return ShiftEstimate(sign * change, standard_error, comparison.df)


def classify(commit: ShiftEstimate, bad: ShiftEstimate) -> Classification:
    """Classifies a commit as bad if its shift is at least half of the shift ``bad``, which must be above 0."""
    if 2 * commit.worsening >= bad.worsening:
        return Classification("bad", commit.error)
    standard_error = math.hypot(commit.standard_error, bad.standard_error)
    # The smaller number of degrees of freedom is the safe one (Hsu 1938); a count has no error to know.
    df = min((shift.df for shift in (commit, bad) if shift.standard_error > 0), default=math.inf)
    return Classification("good", ShiftEstimate(bad.worsening - commit.worsening, standard_error, df).error)


def middle_tolerance(bad: ShiftEstimate, comparison: Comparison) -> float:
    """Returns the value of the setting ``tolerance`` that permits half of the worsening of the bad commit."""
    half = bad.worsening / 2
    if comparison.series.scale == "ratio":
        return math.expm1(half)
    size = abs(comparison.baseline or 0.0)
    return half / (size or 1.0) if comparison.series.unit == "B" else half / max(1.0, size)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The good and the bad commit, and how their metric differs."""

    commits: Searched  # the range before any probe
    target: Target
    comparison: Comparison  # of the bad end with the good end
    shift: ShiftEstimate  # the shift of the bad end in this comparison
    effort: Mapping[str, float]  # the settings that measure a commit for as long as the ends; none for counts

    @property
    def error(self) -> float:
        """Returns the p-value of the difference between both commits, corrected for up to ``ATTEMPTS`` measurements."""
        return min(1.0, ATTEMPTS * self.shift.error)

    @property
    def distinguishable(self) -> bool:
        """Returns whether this measurement is precise enough to classify a commit that equals the good one as good."""
        like_good = replace(self.shift, worsening=0.0)
        return ATTEMPTS * classify(like_good, self.shift).error <= error_share(MAX_ERROR - self.error, self.commits)

    @property
    def needs_more(self) -> bool:
        """Returns whether the measurement has no verdict on the bad commit yet, or is too imprecise for a search."""
        verdict = self.comparison.verdict
        return verdict is Verdict.INCONCLUSIVE or (verdict is Verdict.REGRESSED and not self.distinguishable)

    @property
    def searchable(self) -> bool:
        """Returns whether a search is possible: ``error`` is below ``MAX_ERROR``, or no commit is left to probe."""
        return self.error < MAX_ERROR or self.commits.next is None


def expected_probes(commits: Searched) -> int:
    """Returns the approximate number of probes that a search still needs, if each probe halves the suspects."""
    return (len(commits.suspects) - 1).bit_length()


def error_share(budget: float, commits: Searched) -> float:
    """Returns the largest permitted p-value of the next answer: ``budget`` / (expected number of remaining answers)."""
    return budget / (expected_probes(commits) + 1)


def endpoints_of(commits: Searched, target: Target, outcome: Outcome) -> Endpoints | None:
    """Returns the good and the bad commit with the measured difference; None if the difference is unknown."""
    comparison = target.comparison(outcome)
    if isinstance(comparison, str) or (shift := shift_of(comparison)) is None:
        return None
    return Endpoints(commits, target, comparison, shift, {} if target.counted else effort_of(outcome))


def measured_ends(
    commits: Searched, metric: str | None, run: RunProbe
) -> tuple[Endpoints | None, Outcome, list[Target]]:
    """Compares the bad commit with the good commit; returns the endpoints, the outcome, and all worsened metrics.

    The first metric is the best to search by. The endpoints are None if no metric got worse. Repeats the measurement,
    up to a limit, until it is precise enough to classify the commits between the good and the bad one.
    """
    settings = {**FORCED, **(COUNTED if metric in COUNTS else {})}
    worse: list[Target] = []
    for outcome in attempts(run, Probe(commits.bad, settings, metric), commits.good):
        worse = targets(outcome, metric)
        if worse or not undecided(outcome, metric):
            break
    found = endpoints_of(commits, worse[0], outcome) if worse else None
    if found is None or not found.needs_more:
        return found, outcome, worse
    probe = worse[0].probe(commits.bad, {"counts": "off", **effort_of(outcome, MORE_LAUNCHES)})
    for outcome in attempts(run, probe, commits.good, ATTEMPTS - 1):
        found = endpoints_of(commits, worse[0], outcome)
        if found is None or not found.needs_more:
            break
    regressed = found is not None and found.comparison.verdict is Verdict.REGRESSED
    return found if regressed else None, outcome, worse


def attempts(run: RunProbe, probe: Probe, against: str, number: int = ATTEMPTS) -> Iterator[Outcome]:
    """Runs a probe up to ``number`` times, each time with twice as many launches as before; yields the outcomes."""
    for _ in range(number):
        outcome = run(probe, against)
        yield outcome
        more = effort_of(outcome, MORE_LAUNCHES)
        if not more:
            return
        probe = replace(probe, settings={**probe.settings, **more})


def effort_of(outcome: Outcome, factor: int = 1) -> Mapping[str, float]:
    """Returns settings for a run with ``factor`` times the launches of ``outcome``; empty if nothing was timed."""
    launches = max((len(result.measurement.fresh) for result in outcome.results), default=0)
    if not launches:
        return {}
    return {"launches": factor * launches, "max_time": MORE_TIME * max(result.seconds for result in outcome.results)}


class Bisector:
    """A search that probes (measures) commits until no further probe can exclude any of the suspects."""

    def __init__(self, endpoints: Endpoints, run: RunProbe) -> None:
        self.endpoints = endpoints
        self.commits: Searched = endpoints.commits  # the range with the answers so far
        self.error = endpoints.error  # of the ends and of the answers so far together
        self._error_left = MAX_ERROR - endpoints.error  # for the answers to come
        self._run = run

    def probe(self, commit: str) -> Classification:
        """Measures a commit, and excludes the commits that the answer rules out."""
        found = self.classified(commit)
        self.commits = self.commits.answered(commit, found.answer)
        return found

    def classified(self, commit: str) -> Classification:
        """Classifies a commit; if the answer is undecided, measures the commit again, with more launches."""
        found, allowed = Classification("skipped"), error_share(self._error_left, self.commits)
        for outcome in self._attempts(commit, self.commits.good, self._midway):
            found = self._classified(outcome, allowed)
            if found.answer != "skipped":
                self._error_left -= allowed
                break
        self.error += found.error
        return found

    def confirm(self, commit: str) -> tuple[str, Comparison | str]:
        """Compares a commit with its parent; returns the parent, and the comparison or the reason why there is none."""
        parent = self.commits.parents[commit]
        comparison: Comparison | str = ""
        for outcome in self._attempts(commit, parent, COUNTED if self.endpoints.target.counted else {}):
            comparison = self.endpoints.target.comparison(outcome)
            if isinstance(comparison, str) or comparison.verdict is not Verdict.INCONCLUSIVE:
                break
        return parent, comparison

    def _attempts(self, commit: str, against: str, settings: Mapping[str, object]) -> Iterator[Outcome]:
        return attempts(self._run, self.endpoints.target.probe(commit, {**self.endpoints.effort, **settings}), against)

    @property
    def _midway(self) -> Mapping[str, object]:
        """Returns settings that end a run once it is clear whether the commit is like the good or the bad commit."""
        if self.endpoints.target.counted:
            return COUNTED
        percent = 100 * middle_tolerance(self.endpoints.shift, self.endpoints.comparison)
        return {"tolerance": f"{percent:.6g}%", "counts": "off"}

    def _classified(self, outcome: Outcome, allowed: float) -> Classification:
        """Classifies a measured commit; the answer is ``skipped`` if its p-value is unknown or above ``allowed``."""
        comparison = self.endpoints.target.comparison(outcome)
        if isinstance(comparison, str):
            return Classification("skipped", text=comparison)
        shift, text = shift_of(comparison), shift_text(comparison)
        if shift is None:
            return Classification("skipped", text=f"{text}, unknown variation between launches".lstrip(", "))
        found = classify(shift, self.endpoints.shift)
        error = ATTEMPTS * found.error  # each attempt is a chance to be wrong
        if error > allowed:
            return Classification("skipped", text=f"{text}, not clearly good or bad")
        return Classification(found.answer, error, text)


def shift_text(comparison: Comparison) -> str:
    """Returns a change as text: ``+5.2 % [95 % CI +4.1 .. +6.3]``, or for counts ``2 -> 3 per step,`` with a comma."""
    if comparison.series.scale != "exact":
        return change_text(comparison)
    as_many = comparison.note and comparison.series.value == comparison.baseline
    return f"{finding_text(comparison.note)}," if as_many else f"{values_text(comparison)} per step,"
