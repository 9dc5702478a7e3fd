"""What is left of a session's budget goes to suspects, then to what could not see, then to proofs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_ddpperf.judge.sequential import Interim
from pytest_ddpperf.records.measurement import MetricRules
from pytest_ddpperf.records.results import Comparison, PairedRevision, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.budget.allocation import MAX_FACTOR, SEEN, Priority, TimeRequest, allocate, request_of
from tests.factories import known, make_launch, make_new_result, make_rank_launch, make_series

LOOK = Interim(elapsed=6.0, round_seconds=1.5, last=False, diagnosis=5.0)
EXPLAINED = 1.1 * 5.0  # s: a diagnosis of 5 s, with a margin
CONFIRM, SEE, PROVE = Priority


def request(priority: Priority, wanted: float = math.inf, least: float = 0.0, useful: float = 0.0) -> TimeRequest:
    return TimeRequest(priority=priority, least=least, wanted=wanted, useful=useful)


@pytest.mark.parametrize(
    ("seconds", "requests", "shares"),
    [
        pytest.param(30, [request(SEE), request(CONFIRM)], [0, 30], id="a suspect comes first"),
        pytest.param(30, [request(CONFIRM), request(CONFIRM, 4)], [26, 4], id="none has more than it wants"),
        pytest.param(30, [request(CONFIRM, 20), request(SEE)], [20, 10], id="what one leaves goes to the next"),
        pytest.param(30, [request(PROVE, 18), request(PROVE, 8), request(PROVE, 9)], [0, 8, 9], id="nearest proofs"),
        pytest.param(9, [request(PROVE, 7), request(PROVE, 5)], [0, 5], id="half a proof is of no use"),
        pytest.param(9, [request(SEE, 12, useful=7), request(SEE, 30, useful=8)], [9, 0], id="a round fits"),
        pytest.param(5, [request(SEE, 12, useful=6), request(SEE, 30, useful=4)], [0, 5], id="no part of a round"),
        pytest.param(5, [request(CONFIRM, 20, least=8), request(SEE)], [8, 0], id="a confirmation is not cut off"),
        pytest.param(20, [request(CONFIRM, 20, least=8), request(CONFIRM, 30, least=6)], [14, 6], id="nor is another"),
        pytest.param(-3, [request(CONFIRM, 20, least=8), request(SEE)], [8, 0], id="though nothing is left"),
        pytest.param(10, [], [], id="nothing is asked for"),
    ],
)
def test_time_goes_to_the_most_urgent(seconds: float, requests: list[TimeRequest], shares: list[float]) -> None:
    assert allocate(seconds, requests) == pytest.approx(shares)


def compared(
    verdict: Verdict, *, launches: int | None = None, suspicious: bool = False, alarm_only: bool = False
) -> Comparison:
    return Comparison(
        series=replace(make_series("step_time", 0.2), rules=MetricRules(timed=True, alarm_only=alarm_only)),
        gated=True,
        tolerance=0.03,
        verdict=verdict,
        suspicious=suspicious,
        enough=launches,
        paired=True,
        baseline=0.1,
    )


def result(*comparisons: Comparison, made: int = 4, verdict: Verdict | None = None) -> Result:
    new = make_new_result("t.py::test_a")
    launch = make_launch(ranks=(make_rank_launch(),))
    measured = replace(new.measurement, launches=tuple(replace(launch, round=i) for i in range(made)))
    worst = max((each.verdict for each in comparisons), key=lambda each: each.severity, default=Verdict.NEW)
    beside = PairedRevision(revision="main", commit=None, launches=made)
    return replace(new, comparisons=comparisons, verdict=verdict or worst, measurement=measured, reference=beside)


def asked(*results: Result) -> TimeRequest | None:
    return request_of(results, LOOK)


def test_a_suspect_requests_launches_as_many_as_it_had_or_as_would_show_it() -> None:
    """It had 4 launches of 1.5 s; 2.5 times 8 launches would show it, and all that were made count: 16 more, 24 s."""
    found = known(asked(result(compared(Verdict.OK, launches=8, suspicious=True))))
    assert found.priority is CONFIRM
    assert found.least == pytest.approx(6.0)
    assert found.wanted == pytest.approx(min(MAX_FACTOR * 6.0, 24.0 + EXPLAINED))


@pytest.mark.parametrize(
    ("comparison", "found"),
    [
        (compared(Verdict.INCONCLUSIVE, launches=9), TimeRequest(priority=SEE, wanted=SEEN * 5 * 1.5, useful=1.5)),
        (compared(Verdict.INCONCLUSIVE), TimeRequest(priority=SEE, wanted=MAX_FACTOR * 6.0, useful=1.5)),
        (
            compared(Verdict.OK, launches=10),
            TimeRequest(priority=PROVE, wanted=6 * 1.5 + EXPLAINED, explains=EXPLAINED),
        ),
    ],
    ids=["blind: a third more than it lacks", "no launches decide: its limit", "ok: the whole of a proof"],
)
def test_an_undecided_benchmark_requests_the_time_that_it_lacks(comparison: Comparison, found: TimeRequest) -> None:
    assert asked(result(comparison)) == found


@pytest.mark.parametrize(
    "results",
    [
        pytest.param([result(compared(Verdict.UNCHANGED))], id="decided"),
        pytest.param([result(compared(Verdict.INCONCLUSIVE, alarm_only=True))], id="an alarm alone"),
        pytest.param([result(compared(Verdict.INCONCLUSIVE), verdict=Verdict.REGRESSED)], id="red by a count"),
        pytest.param([result(replace(compared(Verdict.INCONCLUSIVE), paired=False))], id="stored times alone"),
        pytest.param([result()], id="new"),
    ],
)
def test_a_benchmark_that_no_launches_would_change_requests_no_time(results: Sequence[Result]) -> None:
    assert request_of(results, LOOK) is None


@pytest.mark.parametrize(("paired", "wanted"), [(2, SEEN * 8.0), (1, SEEN * 8.0), (0, SEEN * 28.0)])
def test_a_round_side_by_side_launches_only_open_benchmarks(paired: int, wanted: float) -> None:
    """4 more launches would do, and a third more are asked for: of 2 s each, or with the decided benchmark of 7 s."""
    blind, decided = result(compared(Verdict.INCONCLUSIVE, launches=8)), result(compared(Verdict.UNCHANGED))
    decided = replace(decided, measurement=replace(decided.measurement, name="another"))
    stored = make_new_result("t.py::test_a").reference
    results = [each if i < paired else replace(each, reference=stored) for i, each in enumerate((blind, decided))]
    look = replace(LOOK, elapsed=100.0, of_each={blind.measurement.key: 2.0, decided.measurement.key: 5.0})
    found = known(request_of(results, look))
    assert found.priority is SEE
    assert found.wanted == pytest.approx(wanted)
