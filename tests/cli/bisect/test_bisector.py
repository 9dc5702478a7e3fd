"""A bisection of sixteen commits on made-up probes: what it asks of each, and what it makes of the answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.cli.bisect import bisector
from pytest_ddpperf.cli.bisect.bisector import MAX_ERROR, Bisector, ShiftEstimate, classify, shift_of
from pytest_ddpperf.cli.bisect.target import targets
from pytest_ddpperf.records.measurement import Scale
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.session.probe import Outcome, Probe
from tests.cli.bisect.outcomes import counted, outcome, timed


class Runs:
    """Runs made-up probes: each commit has its outcomes, for one attempt after the other."""

    def __init__(self, line: Any, **outcomes: list[Outcome]) -> None:
        self._line = line
        self._outcomes = outcomes
        self.asked: list[tuple[Probe, str]] = []

    def __call__(self, probe: Probe, against: str) -> Outcome:
        self.asked.append((probe, self._line.name(against)))
        attempts = self._outcomes[self._line.name(probe.measured)]
        return attempts.pop(0) if len(attempts) > 1 else attempts[0]


def bisection_of(line: Any, at_the_end: Outcome, run: Callable[[Probe, str], Outcome]) -> Bisector:
    endpoints = bisector.endpoints_of(line.between("c0", "c16"), targets(at_the_end, None)[0], at_the_end)
    assert endpoints is not None
    return Bisector(endpoints, run)


def finished(line: Any, bisection: Bisector) -> tuple[str, ...]:
    while (commit := bisection.commits.next) is not None:
        bisection.probe(commit)
    names: tuple[str, ...] = line.names(bisection.commits.suspects)
    return names


def slower(line: Any, culprit: int, bad: float, error: float) -> Runs:
    changes = {f"c{i}": bad if i >= culprit else 0.0 for i in range(1, 17)}
    return Runs(line, **{commit: [outcome(timed(change, error=error))] for commit, change in changes.items()})


@pytest.mark.parametrize("culprit", [1, 11, 16])
def test_a_slower_step_is_found_wherever_it_came(line: Any, culprit: int) -> None:
    bisection = bisection_of(line, outcome(timed(0.05)), slower(line, culprit, 0.05, 0.003))
    assert finished(line, bisection) == (f"c{culprit}",)
    assert bisector.expected_probes(bisection.endpoints.commits) == 4
    assert 0 < bisection.error < MAX_ERROR


def test_a_probe_of_a_count_only_counts(line: Any) -> None:
    runs = Runs(line, c8=[outcome(counted(2.0, 3.0))])
    bisection = bisection_of(line, outcome(counted(2.0, 3.0)), runs)
    assert bisection.probe(line.hashes["c8"]).answer == "bad"
    assert bisection.error == 0
    assert [probe.settings["counts"] for probe, _ in runs.asked] == ["only"]


def test_a_probe_is_compared_with_the_good_end_with_the_middle_as_its_tolerance(line: Any) -> None:
    runs = slower(line, 9, 0.21, 0.003)
    bisection = bisection_of(line, outcome(timed(0.21)), runs)
    bisection.probe(line.hashes["c8"])
    ((probe, good),) = runs.asked
    assert good == "c0"
    assert (line.name(probe.measured), probe.metric, probe.benchmark) == ("c8", "step_time", ("ddp", 2))
    assert probe.settings == {
        "fail_on": "none",
        "require_baseline": False,
        "verify": False,
        "counts": "off",
        "tolerance": "10%",
        "launches": 8,
        "max_time": 40.0,  # as long as the ends were measured
    }


def test_a_commit_close_to_the_middle_gets_more_launches_and_is_then_skipped(line: Any) -> None:
    close = [outcome(timed(0.11 - 0.005 * i, error=0.05), number=8 * 2**i, seconds=10.0 * 2**i) for i in range(4)]
    runs = Runs(line, c8=close)
    bisection = bisection_of(line, outcome(timed(0.2)), runs)
    probed = bisection.probe(line.hashes["c8"])
    assert probed.answer == "skipped"
    assert probed.text.startswith("+9.5 % [95 % CI ")
    assert probed.text.endswith(", not clearly good or bad")
    asked = [(probe.settings["launches"], probe.settings["max_time"]) for probe, _ in runs.asked]
    assert asked == [(8, 40.0), (16, 40.0), (32, 80.0), (64, 160.0)]
    assert line.name(bisection.commits.next) == "c7"


def test_more_launches_may_decide_and_each_attempt_has_the_same_part_of_the_error(line: Any) -> None:
    unsure, sure = outcome(timed(0.1, error=0.1)), outcome(timed(0.2, error=0.02))
    once, again = (
        bisection_of(line, outcome(timed(0.2)), Runs(line, c8=list(told))) for told in ([sure], [unsure, unsure, sure])
    )
    first, second = once.probe(line.hashes["c8"]), again.probe(line.hashes["c8"])
    assert first.answer == second.answer == "bad"
    alone = classify(ShiftEstimate(math.log(1.2), 0.02, 7), once.endpoints.shift).error
    assert first.error == second.error == pytest.approx(4 * alone)


@pytest.mark.parametrize(("error", "answer"), [(0.0186, "bad"), (0.0188, "skipped")])
def test_an_answer_may_be_wrong_with_its_share_of_the_remaining_error_probability(
    line: Any, error: float, answer: str
) -> None:
    """Four probes are expected, and one share is kept: a fifth of 5 %, in 4 attempts with 16 looks each.

    t(1 - 0.01 / 64, df 7) = 6.571, and log(1.131) / 6.571 = 0.01873. The ends are known for certain, nearly.
    """
    bisection = bisection_of(line, outcome(timed(0.131)), Runs(line, c8=[outcome(timed(0.131, error=error))]))
    assert bisection.probe(line.hashes["c8"]).answer == answer


@pytest.mark.parametrize(
    "told",
    [outcome(broken="rank 0 raised"), outcome(counted(1, 1), lacking="rank 0 raised")],
    ids=["broken", "lacking"],
)
def test_a_commit_that_cannot_be_measured_is_skipped_at_once(line: Any, told: Outcome) -> None:
    runs = Runs(line, c8=[told])
    bisection = bisection_of(line, outcome(timed(0.2)), runs)
    probed = bisection.probe(line.hashes["c8"])
    assert probed.answer == "skipped"
    assert probed.text.endswith("rank 0 raised")
    assert len(runs.asked) == 1


def test_the_culprit_is_compared_with_the_commit_before_it(line: Any) -> None:
    unsure, sure = outcome(timed(0.2, error=0.2)), outcome(timed(0.2))
    runs = Runs(line, c9=[unsure, sure])
    bisection = bisection_of(line, outcome(timed(0.2)), runs)
    before, comparison = bisection.confirm(line.hashes["c9"])
    assert line.name(before) == "c8"
    assert comparison == sure.results[0].comparisons[0]
    assert [good for _, good in runs.asked] == ["c8", "c8"]
    assert "tolerance" not in runs.asked[0][0].settings


def test_counts_are_searched_before_times_and_large_changes_before_small_ones(line: Any) -> None:
    both = outcome(timed(0.5), counted(2.0, 3.0))
    assert [target.metric for target in targets(both, None)] == ["collective_calls", "step_time"]
    assert [target.metric for target in targets(both, "step_time")] == ["step_time"]
    assert targets(outcome(timed(0.0)), None) == []


SLOWER = timed(0.25, error=0.01)  # worse by a quarter: 0.223 in logarithms, known to 0.01, with 7 degrees of freedom
BAD = ShiftEstimate(0.2, 0.01, 7)


def test_the_shift_of_a_time_has_its_error() -> None:
    shift = shift_of(SLOWER)
    assert shift is not None
    assert (shift.worsening, shift.standard_error) == pytest.approx((math.log(1.25), 0.01))
    assert shift.df == 7
    fallen = shift_of(replace(SLOWER, series=replace(SLOWER.series, better="higher"), change=-0.2))
    assert fallen is not None
    assert fallen.worsening == pytest.approx(math.log(1.25))


def test_the_shift_of_a_count_has_no_error() -> None:
    counted = replace(SLOWER, series=replace(SLOWER.series, scale="exact"), change=2.0, standard_error=None)
    assert shift_of(counted) == ShiftEstimate(2.0, 0.0, math.inf)
    assert shift_of(replace(counted, change=0.0)) == ShiftEstimate(1.0, 0.0, math.inf)  # as much of something else
    assert shift_of(replace(counted, change=0.0, verdict=Verdict.UNCHANGED)) == ShiftEstimate(0.0, 0.0, math.inf)


def test_a_comparison_without_a_change_or_its_error_has_no_shift() -> None:
    assert shift_of(replace(SLOWER, change=None)) is None
    assert shift_of(replace(SLOWER, standard_error=None)) is None


@pytest.mark.parametrize(("worsening", "answer"), [(-0.1, "good"), (0.099, "good"), (0.1, "bad"), (0.5, "bad")])
def test_a_commit_is_classified_as_the_nearer_end(worsening: float, answer: str) -> None:
    assert classify(ShiftEstimate(worsening, 0.01, 7), BAD).answer == answer


def test_the_error_of_an_answer_is_the_probability_of_the_other_end() -> None:
    """One-sided 1 % of Student's t with 7 degrees of freedom is beyond 2.998; looks may err as often as 16 apart."""
    assert classify(ShiftEstimate(0.2, 0.2 / 2.998, 7), BAD).error == pytest.approx(0.16, rel=1e-3)
    # As good as the good end: the bad end's own error adds to the commit's: hypot(3, 4) is 5.
    good = classify(ShiftEstimate(0.0, 0.03, 7), ShiftEstimate(5 * 0.01 * 2.998, 0.04, 7))
    assert good.answer == "good"
    assert good.error == pytest.approx(0.16, rel=1e-3)


def test_two_combined_errors_have_the_smaller_number_of_degrees_of_freedom() -> None:
    for commit, bad in ((7, 40), (40, 7)):
        good = classify(ShiftEstimate(0.0, 0.03, commit), ShiftEstimate(5 * 0.01 * 2.998, 0.04, bad))
        assert good.error == pytest.approx(0.16, rel=1e-3)
    # One without any error has no freedom to lack.
    assert classify(ShiftEstimate(0.0, 0.05, 7), ShiftEstimate(5 * 0.01 * 2.998, 0.0, 1)).error == pytest.approx(
        0.16, rel=1e-3
    )


@pytest.mark.parametrize(
    ("scale", "unit", "baseline", "expected"),
    [
        ("ratio", "s", 0.04, math.sqrt(1.25) - 1),
        ("difference", "1", 0.5, 0.05),
        ("difference", "1", 10.0, 0.005),
        ("difference", "B", 2.0, 0.025),
        ("difference", "B", 0.0, 0.05),
    ],
)
def test_the_middle_has_the_unit_of_the_tolerance_of_its_metric(
    scale: Scale, unit: str, baseline: float, expected: float
) -> None:
    comparison = replace(SLOWER, series=replace(SLOWER.series, scale=scale, unit=unit), baseline=baseline)
    bad = ShiftEstimate(math.log(1.25) if scale == "ratio" else 0.1, 0.0, 7)
    assert bisector.middle_tolerance(bad, comparison) == pytest.approx(expected)
