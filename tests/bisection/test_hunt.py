"""A hunt on made-up probes: what it asks of each, what it makes of the answers, and what they may be wrong by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.bisection.commits import Range
from pytest_ddpperf.bisection.hunt import ERROR, Hunt, ends_of
from pytest_ddpperf.bisection.processes import Started
from pytest_ddpperf.bisection.target import targets
from pytest_ddpperf.probe import Outcome, Probe

LINE = {f"c{i}": (f"c{i - 1}",) for i in range(1, 17)}
BETWEEN = Range(Path("/nowhere"), "c0", "c16", LINE)


class Runs:
    """Runs made-up probes: each commit has its outcomes, for one attempt after the other."""

    def __init__(self, **outcomes: list[Outcome]) -> None:
        self._outcomes = outcomes
        self.asked: list[tuple[Probe, str]] = []

    def __call__(self, probe: Probe, started: Started) -> Outcome:
        self.asked.append((probe, started.good))
        attempts = self._outcomes[probe.measured]
        return attempts.pop(0) if len(attempts) > 1 else attempts[0]


def hunt(at_the_end: Outcome, runs: Runs) -> Hunt:
    ends = ends_of(BETWEEN, targets(at_the_end, None)[0], at_the_end)
    assert ends is not None
    return Hunt(ends, ("t.py",), runs)


def finished(one: Hunt) -> set[str]:
    while (commit := one.next) is not None:
        one.probe(commit.hash)
    return set(one.search.suspects)


def line(made: Any, culprit: int, bad: float, error: float) -> Runs:
    changes = {f"c{i}": bad if i >= culprit else 0.0 for i in range(1, 17)}
    return Runs(**{commit: [made.outcome(made.timed(change, error=error))] for commit, change in changes.items()})


@pytest.mark.parametrize("culprit", range(1, 17))
def test_a_slower_step_is_found_wherever_it_came(made: Any, culprit: int) -> None:
    one = hunt(made.outcome(made.timed(0.05)), line(made, culprit, 0.05, 0.003))
    assert finished(one) == {f"c{culprit}"}
    assert one.expected == 4
    assert 0 < one.error < ERROR


@pytest.mark.parametrize("culprit", range(1, 17))
def test_so_is_a_count_without_any_doubt(made: Any, culprit: int) -> None:
    counts = {f"c{i}": 3.0 if i >= culprit else 2.0 for i in range(1, 17)}
    runs = Runs(**{commit: [made.outcome(made.counted(2.0, now))] for commit, now in counts.items()})
    one = hunt(made.outcome(made.counted(2.0, 3.0)), runs)
    assert finished(one) == {f"c{culprit}"}
    assert one.error == 0
    assert {probe.settings["counted_only"] for probe, _ in runs.asked} == {True}


def test_a_probe_is_held_against_the_good_end_with_the_middle_as_its_tolerance(made: Any) -> None:
    runs = line(made, 9, 0.21, 0.003)
    one = hunt(made.outcome(made.timed(0.21)), runs)
    one.probe("c8")
    ((probe, good),) = runs.asked
    assert good == "c0"
    assert (probe.measured, probe.metric, probe.benchmark) == ("c8", "step_time", ("ddp", 2))
    assert probe.settings == {"fail_on": "none", "verify": False, "counted": False, "tolerance": "10%"}


def test_what_is_close_to_the_middle_gets_more_launches_and_then_is_passed_over(made: Any) -> None:
    close, closer = made.outcome(made.timed(0.11, error=0.05)), made.outcome(made.timed(0.09, error=0.05))
    runs = Runs(c8=[close, closer])
    one = hunt(made.outcome(made.timed(0.2)), runs)
    probed = one.probe("c8")
    assert probed.answer == "skipped"
    assert probed.text.startswith("+9.0 % [95 % CI ")
    assert probed.text.endswith(", which may be either")
    assert [probe.settings.get("launches") for probe, _ in runs.asked] == [None, 16]
    assert runs.asked[1][0].settings["max_time"] == 40.0
    assert one.next is not None
    assert one.next.hash == "c7"


def test_more_launches_may_decide_and_count_twice(made: Any) -> None:
    once, again = (
        hunt(made.outcome(made.timed(0.2)), Runs(c8=[made.outcome(made.timed(0.2, error=0.02))])),
        hunt(
            made.outcome(made.timed(0.2)),
            Runs(c8=[made.outcome(made.timed(0.1, error=0.1)), made.outcome(made.timed(0.2, error=0.02))]),
        ),
    )
    first, second = once.probe("c8"), again.probe("c8")
    assert first.answer == second.answer == "bad"
    assert second.error == pytest.approx(2 * first.error)


@pytest.mark.parametrize("kind", ["broken", "lacking"])
def test_what_cannot_be_measured_is_passed_over_at_once(made: Any, kind: str) -> None:
    runs = (
        Runs(c8=[made.outcome(**{kind: "rank 0 raised"})])
        if kind == "broken"
        else Runs(c8=[made.outcome(made.counted(1, 1), lacking="rank 0 raised")])
    )
    one = hunt(made.outcome(made.timed(0.2)), runs)
    probed = one.probe("c8")
    assert probed.answer == "skipped"
    assert probed.text.endswith("rank 0 raised")
    assert len(runs.asked) == 1


def test_the_culprit_is_held_against_the_commit_before_it(made: Any) -> None:
    unsure, sure = made.outcome(made.timed(0.2, error=0.2)), made.outcome(made.timed(0.2))
    runs = Runs(c9=[unsure, sure])
    one = hunt(made.outcome(made.timed(0.2)), runs)
    before, comparison = one.confirmation("c9")
    assert before == "c8"
    assert comparison == sure.results[0].comparisons[0]
    assert [good for _, good in runs.asked] == ["c8", "c8"]
    assert "tolerance" not in runs.asked[0][0].settings


def test_counts_are_followed_before_times_and_large_changes_before_small_ones(made: Any) -> None:
    both = made.outcome(made.timed(0.5), made.counted(2.0, 3.0))
    assert [target.metric for target in targets(both, None)] == ["collective_calls", "step_time"]
    assert [target.metric for target in targets(both, "step_time")] == ["step_time"]
    assert targets(made.outcome(made.timed(0.0)), None) == []
