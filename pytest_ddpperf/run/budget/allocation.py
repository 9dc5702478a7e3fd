"""Distributes the time that a session has left, after all tests ran once, among benchmarks without a final verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from pytest_ddpperf.judge.sequential import Interim, benchmarks_of, of_launches
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import OPEN, Verdict

MAX_FACTOR = 4.0  # of the first pass's seconds: the most for a suspect, or if a slowdown could hide
CONFIRMED = 2.5
"""The ratio of planned launches to the launches that would just confirm a slowdown of the estimated size.

A failing verdict needs an estimate of about 2.9 standard errors: with ``(2.9 + 1.645)**2 / 2.9**2`` times the
launches, 95 % of estimates exceed 2.9 standard errors.
"""
SEEN = 1.3  # times the launches that would just rule a slowdown out if the scatter stayed as it is
DIAGNOSIS_MARGIN = 1.1  # times the expected seconds of a diagnosis


class Priority(IntEnum):
    """The purposes for which a benchmark may need more time, the most urgent purpose first."""

    CONFIRM = 1  # prove a suspect worse, or clear it
    SEE = 2  # rule out a slowdown beyond the resolution
    PROVE = 3  # show that nothing has changed


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeRequest:
    """The seconds that a call needs if its test runs again (second pass), and their purpose."""

    priority: Priority
    least: float = 0.0  # seconds that it takes in any case
    useful: float = 0.0  # seconds of a round of launches; a smaller part of ``wanted`` measures nothing
    wanted: float = math.inf  # more would be useless
    explains: float = 0.0  # the part that is kept for the diagnosis


def allocate(seconds: float, requests: Sequence[TimeRequest]) -> list[float]:
    """Distributes ``seconds`` among requests; returns the seconds of each request, at least its ``least``.

    Urgent requests are served first. A request gets its ``wanted`` seconds if so many are left. If fewer are left, a
    request with the priority PROVE gets only ``least``. Any other request then gets all seconds that are left, or only
    ``least`` if fewer than ``useful`` seconds are left.
    """
    shares = [request.least for request in requests]
    left = max(0.0, seconds - math.fsum(shares))
    for i in sorted(range(len(requests)), key=lambda i: (requests[i].priority, requests[i].wanted)):
        missing = max(0.0, requests[i].wanted - requests[i].least)
        # Some rounds of launches are useful, but half of a proof and half of a round are useless.
        part = left * (requests[i].priority < Priority.PROVE and left >= requests[i].useful)
        given = missing if missing <= left else part
        shares[i] += given
        left -= given
    return shares


def request_of(results: Sequence[Result], interim: Interim) -> TimeRequest | None:
    """Returns the time that a call needs if its test runs again, by its results so far; None if it needs no time."""
    compared = [(result, comparison) for result in results for comparison in of_launches(result)]
    red = any(result.verdict is Verdict.REGRESSED for result in results)
    explains, most = DIAGNOSIS_MARGIN * interim.diagnosis, MAX_FACTOR * interim.elapsed
    worse = [(result, each) for result, each in compared if each.suspicious or each.verdict is Verdict.REGRESSED]
    if worse:
        seconds = _round_seconds(results, interim, worse)
        launched = max(len(result.measurement.launches) for result, _ in worse)
        needed = min((CONFIRMED * each.enough for _, each in worse if each.enough), default=math.inf)
        counted = launched if all(result.pair is not None for result, _ in worse) else 0
        least, fresh = launched * seconds, max(0.0, needed - counted) * seconds
        return TimeRequest(priority=Priority.CONFIRM, least=least, wanted=max(least, min(most, fresh + explains)))
    if red:  # because of a metric that more launches do not change, such as a count
        return None
    undecided = [
        (result, each) for result, each in compared if each.verdict in OPEN and not each.series.rules.alarm_only
    ]
    blind = [(result, each) for result, each in undecided if each.verdict is Verdict.INCONCLUSIVE]
    if blind:
        wanted = min(most, SEEN * _missing(results, interim, blind))
        return TimeRequest(priority=Priority.SEE, wanted=wanted, useful=_round_seconds(results, interim, blind))
    if undecided:
        return TimeRequest(
            priority=Priority.PROVE, wanted=_missing(results, interim, undecided) + explains, explains=explains
        )
    return None


def _missing(results: Sequence[Result], interim: Interim, which: Sequence[tuple[Result, Comparison]]) -> float:
    """Returns the expected seconds until all metrics in ``which`` have a final verdict; infinite if unknown."""
    launches = [
        math.inf if each.enough is None else max(1, each.enough - len(result.measurement.launches))
        for result, each in which
    ]
    return max(launches) * _round_seconds(results, interim, which)


def _round_seconds(results: Sequence[Result], interim: Interim, which: Sequence[tuple[Result, Comparison]]) -> float:
    """Returns the seconds of one round, in which each benchmark with a metric in ``which`` is launched once."""
    metrics = {result.measurement.key: [metric for one, metric in which if one is result] for result in results}
    return interim.seconds_of(
        benchmarks_of(results, metrics) if any(result.pair is not None for result in results) else None
    )
