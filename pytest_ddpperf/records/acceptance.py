"""Worsenings that are meant: what a test, or a run, accepts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pytest_ddpperf.records.results import Comparison


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A worsening that is meant."""

    metric: str
    reason: str
    limit: float = math.inf  # the most
    share: bool = True  # whether the limit is one of the reference's value

    def covers(self, worse: Comparison) -> bool:
        """Whether it accepts as much as a metric is worse."""
        if self.limit == math.inf:
            return True
        base, change = worse.baseline or 0.0, worse.series.value - (worse.baseline or 0.0)
        if self.share and worse.series.scale == "ratio" and worse.change is not None:
            change = worse.change
        elif self.share:
            change = change / abs(base) if base else math.copysign(math.inf, change) * bool(change)
        return (change if worse.series.better == "lower" else -change) <= self.limit


def worsenings(value: object) -> Mapping[str, tuple[float, bool]]:
    """Worsenings by metric, as numbers, and whether each is a share: ``{"step_time": "+20%", "operators": 6}``."""
    given = value if isinstance(value, Mapping) else {}
    found = {str(name): re.fullmatch(r"\s*[+-]?(\d+(?:\.\d*)?)\s*(%?)\s*", str(worse)) for name, worse in given.items()}
    limits = {name: (float(one[1]) / (100 if one[2] else 1), bool(one[2])) for name, one in found.items() if one}
    if not limits or len(limits) < len(found):
        raise ValueError('worsenings by metric, such as {"step_time": "+20%", "collective_calls": "+2"}')
    return limits


def allowed(value: object) -> tuple[tuple[str, str], ...]:
    """Tests with metrics: ``"perf/test_a.py::test_step step_time"``; of several each in a line of its own."""
    lines = value.split("\n") if isinstance(value, str) else value if isinstance(value, Iterable) else ()
    pairs = [str(line).strip().rpartition(" ")[::2] for line in lines if str(line).strip()]
    if not pairs or not all(test for test, _ in pairs):
        raise ValueError("a test and a metric, such as 'perf/test_a.py::test_step step_time'")
    return tuple((test.strip(), metric) for test, metric in pairs)
