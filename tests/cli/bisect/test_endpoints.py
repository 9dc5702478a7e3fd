"""The ends of a search on made-up probes: when they are known well enough, and how that is brought about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.cli.bisect.commits import Range
from pytest_ddpperf.cli.bisect.endpoints import Ends, ends_of, share, sharpened
from pytest_ddpperf.cli.bisect.processes import Started
from pytest_ddpperf.cli.bisect.search import advance
from pytest_ddpperf.cli.bisect.target import targets
from pytest_ddpperf.run.probe import Outcome, Probe

LINE = {f"c{i}": (f"c{i - 1}",) for i in range(1, 17)}
BETWEEN = Range(Path("/nowhere"), "c0", "c16", LINE)


def ends(told: Outcome) -> Ends:
    found = ends_of(BETWEEN, targets(told, None)[0], told)
    assert found is not None
    return found


class Runs:
    def __init__(self, *outcomes: Outcome) -> None:
        self._outcomes = list(outcomes)
        self.asked: list[Probe] = []

    def __call__(self, probe: Probe, started: Started) -> Outcome:
        assert started == Started("c0", ("t.py",), "t.py::test_a")
        self.asked.append(probe)
        return self._outcomes.pop(0)


@pytest.mark.parametrize(("error", "telling"), [(0.0131, True), (0.0134, False)])
def test_they_tell_where_the_good_end_known_as_well_would_be_told_from_the_bad_one(
    made: Any,
    error: float,
    telling: bool,  # noqa: FBT001
) -> None:
    """A fifth of 5 % is allowed, less what the ends' own difference takes: in 4 attempts with 16 looks each.

    t(1 - 0.01 / 64, df 7) = 6.57, and both errors together are sqrt(2) times one of them:
    log(1.131) / 6.57 / sqrt(2) = 0.0132.
    """
    assert ends(made.outcome(made.timed(0.131, error=error))).telling is telling


@pytest.mark.parametrize(("error", "searchable"), [(0.019, True), (0.0191, False)])
def test_they_are_searchable_while_their_own_error_leaves_some_to_the_answers(
    made: Any,
    error: float,
    searchable: bool,  # noqa: FBT001
) -> None:
    """5 % in 4 attempts with 16 looks each: t(1 - 0.05 / 64, df 7) = 5.002, and log(1.1) / 5.002 = 0.01906."""
    told = made.outcome(made.timed(0.1, error=error))
    assert ends(told).searchable is searchable
    one = ends_of(Range(Path("/nowhere"), "c0", "c1", {"c1": ("c0",)}), targets(told, None)[0], told)
    assert one is not None
    assert one.searchable  # there is nothing to probe


def test_counts_always_tell(made: Any) -> None:
    found = ends(made.outcome(made.counted(2.0, 3.0)))
    assert found.telling
    assert found.error == 0
    assert found.effort == {}


def test_shares_are_equal_while_probes_go_as_expected_and_one_is_left() -> None:
    search, left, shares = BETWEEN.search, 0.05, []
    for commit in ("c8", "c12", "c14", "c15"):
        shares.append(share(left, search))
        left -= shares[-1]
        search = advance(search, commit, "good")
    assert shares == pytest.approx([0.01] * 4)
    assert left == pytest.approx(0.01)


def test_what_is_known_well_enough_is_left_as_it_is(made: Any) -> None:
    told = made.outcome(made.timed(0.2))
    assert sharpened(ends(told), told, ("t.py",), Runs()) == (ends(told), told)


def test_else_they_are_measured_again_for_longer_the_target_alone(made: Any) -> None:
    first = made.outcome(made.timed(0.1, error=0.02))
    second = made.outcome(made.timed(0.08, error=0.02), number=16, seconds=25.0)
    third = made.outcome(made.timed(0.07, error=0.002), number=32, seconds=50.0)
    runs = Runs(second, third)
    assert sharpened(ends(first), first, ("t.py",), runs) == (ends(third), third)
    assert [(one.measured, one.metric, one.benchmark) for one in runs.asked] == [("c16", "step_time", ("ddp", 2))] * 2
    forced = {"fail_on": "none", "verify": False, "counted": False}
    assert [one.settings for one in runs.asked] == [
        {**forced, "launches": 16, "max_time": 40.0},
        {**forced, "launches": 32, "max_time": 100.0},
    ]
    assert ends(third).effort == {"launches": 32, "max_time": 200.0}


def test_after_three_more_attempts_they_are_what_the_last_one_says(made: Any) -> None:
    unsure = made.outcome(made.timed(0.1, error=0.02))
    inconclusive = made.outcome(made.timed(0.05, error=0.1))
    assert sharpened(ends(unsure), unsure, ("t.py",), Runs(inconclusive, unsure, unsure)) == (ends(unsure), unsure)
    assert sharpened(ends(unsure), unsure, ("t.py",), Runs(unsure, unsure, inconclusive)) == (None, inconclusive)


def test_what_is_worse_no_more_is_no_end(made: Any) -> None:
    unsure, alike = made.outcome(made.timed(0.1, error=0.02)), made.outcome(made.timed(0.0))
    assert sharpened(ends(unsure), unsure, ("t.py",), Runs(alike)) == (None, alike)
    broken = made.outcome(broken="rank 0 raised")
    assert sharpened(ends(unsure), unsure, ("t.py",), Runs(broken)) == (None, broken)
