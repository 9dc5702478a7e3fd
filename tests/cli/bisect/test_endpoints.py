"""The ends of a search on made-up probes: when they are known well enough, and how that is brought about."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf.cli.bisect.bisector import Endpoints, endpoints_of, error_share, measured_ends
from pytest_ddpperf.cli.bisect.ranges import CommitRange
from pytest_ddpperf.cli.bisect.target import FORCED, targets
from pytest_ddpperf.run.session.probe import Outcome, Probe
from tests.cli.bisect.outcomes import counted, outcome, timed


@pytest.fixture
def commits(line: Any) -> CommitRange:
    """Sixteen commits."""
    between: CommitRange = line.between("c0", "c16")
    return between


def ends(commits: CommitRange, told: Outcome) -> Endpoints:
    found = endpoints_of(commits, targets(told, None)[0], told)
    assert found is not None
    return found


class Runs:
    def __init__(self, *outcomes: Outcome) -> None:
        self._outcomes = list(outcomes)
        self.asked: list[tuple[Probe, str]] = []

    def __call__(self, probe: Probe, against: str) -> Outcome:
        self.asked.append((probe, against))
        return self._outcomes.pop(0)


@pytest.mark.parametrize(("error", "distinguishable"), [(0.0131, True), (0.0134, False)])
def test_ends_are_distinguishable_if_their_errors_allow_an_answer(
    commits: CommitRange,
    error: float,
    distinguishable: bool,  # noqa: FBT001
) -> None:
    """A fifth of 5 % is allowed, less what the ends' own difference takes: in 4 attempts with 16 looks each.

    t(1 - 0.01 / 64, df 7) = 6.57, and both errors together are sqrt(2) times one of them:
    log(1.131) / 6.57 / sqrt(2) = 0.0132.
    """
    assert ends(commits, outcome(timed(0.131, error=error))).distinguishable is distinguishable


@pytest.mark.parametrize(("error", "searchable"), [(0.019, True), (0.0191, False)])
def test_ends_are_searchable_if_their_errors_leave_some_error_to_the_answers(
    line: Any,
    commits: CommitRange,
    error: float,
    searchable: bool,  # noqa: FBT001
) -> None:
    """5 % in 4 attempts with 16 looks each: t(1 - 0.05 / 64, df 7) = 5.002, and log(1.1) / 5.002 = 0.01906."""
    told = outcome(timed(0.1, error=error))
    assert ends(commits, told).searchable is searchable
    assert ends(line.between("c0", "c1"), told).searchable  # there is nothing to probe


def test_counts_are_always_distinguishable(commits: CommitRange) -> None:
    found = ends(commits, outcome(counted(2.0, 3.0)))
    assert found.distinguishable
    assert found.error == 0
    assert found.effort == {}


def test_shares_are_equal_while_probes_go_as_expected_and_one_is_left(line: Any, commits: CommitRange) -> None:
    left, shares = 0.05, []
    for commit in ("c8", "c12", "c14", "c15"):
        shares.append(error_share(left, commits))
        left -= shares[-1]
        commits = commits.answered(line.hashes[commit], "good")
    assert shares == pytest.approx([0.01] * 4)
    assert left == pytest.approx(0.01)


def test_ends_that_are_certain_enough_are_not_measured_again(commits: CommitRange) -> None:
    told = outcome(timed(0.2))
    runs = Runs(told)
    assert measured_ends(commits, None, runs) == (ends(commits, told), told, targets(told, None))
    ((probe, against),) = runs.asked
    assert (probe, against) == (Probe(commits.bad, FORCED), commits.good)


def test_for_a_requested_count_only_counts_are_taken(commits: CommitRange) -> None:
    runs = Runs(outcome(counted(2.0, 3.0)))
    measured_ends(commits, "collective_calls", runs)
    ((probe, _),) = runs.asked
    assert (probe.metric, probe.settings["counts"]) == ("collective_calls", "only")


def test_uncertain_ends_are_measured_again_for_longer_with_the_target_alone(commits: CommitRange) -> None:
    first = outcome(timed(0.1, error=0.02))
    second = outcome(timed(0.08, error=0.02), number=16, seconds=25.0)
    third = outcome(timed(0.07, error=0.002), number=32, seconds=50.0)
    runs = Runs(first, second, third)
    assert measured_ends(commits, None, runs) == (ends(commits, third), third, targets(first, None))
    forced = {**FORCED, "counts": "off"}
    assert runs.asked[1:] == [
        (Probe(commits.bad, {**forced, **effort}, "step_time", ("ddp", 2), "t.py::test_a"), commits.good)
        for effort in ({"launches": 16, "max_time": 40.0}, {"launches": 32, "max_time": 100.0})
    ]
    assert ends(commits, third).effort == {"launches": 32, "max_time": 200.0}


def test_after_three_more_attempts_the_last_measurement_of_the_ends_counts(commits: CommitRange) -> None:
    unsure = outcome(timed(0.1, error=0.02))
    inconclusive = outcome(timed(0.05, error=0.1))
    found, last, _ = measured_ends(commits, None, Runs(unsure, inconclusive, unsure, unsure))
    assert (found, last) == (ends(commits, unsure), unsure)
    found, last, _ = measured_ends(commits, None, Runs(unsure, unsure, unsure, inconclusive))
    assert (found, last) == (None, inconclusive)


def test_there_are_no_ends_if_the_last_measurement_shows_no_worsening(commits: CommitRange) -> None:
    unsure = outcome(timed(0.1, error=0.02))
    for last in (outcome(timed(0.0)), outcome(broken="rank 0 raised")):
        assert measured_ends(commits, None, Runs(unsure, last)) == (None, last, targets(unsure, None))
