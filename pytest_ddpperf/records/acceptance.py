"""Worsenings of metrics that a test or a run accepts in advance."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pytest_ddpperf.records.counts import COUNTS, Counts, count_row, on_ranks, parts_on_ranks
from pytest_ddpperf.records.results import Comparison


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A worsening of a metric that the user accepts, with its limit and reason."""

    metric: str
    reason: str
    limit: float = math.inf  # the largest accepted worsening
    share: bool = True  # whether the limit is a share of the reference's value

    def covers(self, worse: Comparison) -> bool:
        """Returns whether a metric's worsening is within the accepted limit.

        A count's worsening is the growth of its total, or the summed growth of its growing parts if this sum is larger.
        The rank with the largest growth counts. A finite limit never accepts fewer batch rows or backward passes.
        """
        if self.limit == math.inf or count_row(worse.series.metric).of_work:
            return self.limit == math.inf
        code, note = ("", {}) if worse.note is None else (worse.note.code, worse.note.facts)
        base, change = worse.baseline or 0.0, worse.series.value - (worse.baseline or 0.0)
        sides = [note[side] for side in ("then", "now") if side in note]
        if count_row(worse.series.metric).wanted_of:  # less is worse
            sides, change = sides[::-1], -change
        if worse.series.scale == "exact" and sides:
            change = max([change, *_grown(worse.series.metric, *sides)])
        if self.share and worse.series.scale == "ratio" and worse.change is not None:
            # Stored times may be worse by more than both sides that were measured now.
            change = note["change"] if code == "not_the_code" else worse.change
        elif self.share:
            change = change / abs(base) if base else math.copysign(math.inf, change) * bool(change)
        return (change if worse.series.better == "lower" else -change) <= self.limit


def _grown(metric: str, then: Counts, now: Counts) -> list[float]:
    """Returns by how much a count grew: its total on each rank, and the sum of those parts that grew."""
    before, after = (counts.details.get(metric, {}) for counts in (then, now))
    parts = sum(max(0.0, value - before.get(part, 0.0)) for part, value in after.items())
    of_ranks = zip(*parts_on_ranks(metric, then, now).values(), strict=False)
    ranks = [sum(max(0.0, new - old) for old, new in each) for each in of_ranks]
    known = [parts, *ranks] if math.isclose(sum(after.values()), now.totals[metric]) else []  # buckets': bytes
    return [*known, *(new - old for old, new in on_ranks(metric, then, now))]


def belongs(test: str, node: str) -> bool:
    """Returns whether ``node`` is the test's file, class or function, or the test itself."""
    return f"{test}[".startswith((f"{node}::", f"{node}["))


def worsenings(value: object) -> Mapping[str, tuple[float, bool]]:
    """Parses the setting ``accept``, such as ``{"step_time": "+20%", "operators": 6}``.

    Returns (limit, whether the limit is a fraction) by metric. Only a count may have a limit without a percent sign.
    """
    given = value if isinstance(value, Mapping) else {}
    found = {str(name): re.fullmatch(r"\s*[+-]?(\d+(?:\.\d*)?)\s*(%?)\s*", str(worse)) for name, worse in given.items()}
    limits = {name: (float(one[1]) / (100 if one[2] else 1), bool(one[2])) for name, one in found.items() if one}
    amounts = [name for name, (_, share) in limits.items() if not share and name not in COUNTS]
    if not limits or len(limits) < len(found) or amounts:
        raise ValueError('worsenings by metric, such as {"step_time": "+20%", "collective_calls": "+2"}')
    return limits


def allowed(value: object) -> tuple[tuple[str, str], ...]:
    """Parses ``--ddpperf-allow``, such as ``"perf/test_a.py::test_step step_time"``; returns (test, metric) pairs."""
    lines = value.split("\n") if isinstance(value, str) else value if isinstance(value, Iterable) else ()
    pairs = [str(line).strip().rpartition(" ")[::2] for line in lines if str(line).strip()]
    if not pairs or not all(test for test, _ in pairs):
        raise ValueError("a test and a metric, such as 'perf/test_a.py::test_step step_time'")
    return tuple((test.strip(), metric) for test, metric in pairs)
