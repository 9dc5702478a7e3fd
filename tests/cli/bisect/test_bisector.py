"""A hunt on made-up probes: what it asks of each, what it makes of the answers, and what they may be wrong by."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.cli.bisect.attempts import attempts
from pytest_ddpperf.cli.bisect.bisector import Hunt
from pytest_ddpperf.cli.bisect.classification import Shift, likeness
from pytest_ddpperf.cli.bisect.commits import Range
from pytest_ddpperf.cli.bisect.endpoints import ERROR, ends_of, sharpened
from pytest_ddpperf.cli.bisect.processes import Started
from pytest_ddpperf.cli.bisect.target import targets
from pytest_ddpperf.run.probe import Outcome, Probe

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
    assert probe.settings == {
        "fail_on": "none",
        "verify": False,
        "counted": False,
        "tolerance": "10%",
        "launches": 8,
        "max_time": 40.0,  # as long as the ends were measured
    }


def test_what_is_close_to_the_middle_gets_more_launches_and_then_is_passed_over(made: Any) -> None:
    close = [
        made.outcome(made.timed(0.11 - 0.005 * i, error=0.05), number=8 * 2**i, seconds=10.0 * 2**i) for i in range(4)
    ]
    runs = Runs(c8=close)
    one = hunt(made.outcome(made.timed(0.2)), runs)
    probed = one.probe("c8")
    assert probed.answer == "skipped"
    assert probed.text.startswith("+9.5 % [95 % CI ")
    assert probed.text.endswith(", which may be either")
    asked = [(probe.settings["launches"], probe.settings["max_time"]) for probe, _ in runs.asked]
    assert asked == [(8, 40.0), (16, 40.0), (32, 80.0), (64, 160.0)]
    assert one.next is not None
    assert one.next.hash == "c7"


def test_more_launches_may_decide_and_each_attempt_has_the_same_part_of_the_error(made: Any) -> None:
    unsure, sure = made.outcome(made.timed(0.1, error=0.1)), made.outcome(made.timed(0.2, error=0.02))
    once, again = (
        hunt(made.outcome(made.timed(0.2)), Runs(c8=list(told))) for told in ([sure], [unsure, unsure, sure])
    )
    first, second = once.probe("c8"), again.probe("c8")
    assert first.answer == second.answer == "bad"
    alone = likeness(Shift(math.log(1.2), 0.02, 7), once.ends.shift).error
    assert first.error == second.error == pytest.approx(4 * alone)


@pytest.mark.parametrize(("error", "answer"), [(0.0186, "bad"), (0.0188, "skipped")])
def test_an_answer_may_be_wrong_in_its_share_of_what_is_left(made: Any, error: float, answer: str) -> None:
    """Four probes are expected, and one share is kept: a fifth of 5 %, in 4 attempts with 16 looks each.

    t(1 - 0.01 / 64, df 7) = 6.571, and log(1.131) / 6.571 = 0.01873. The ends are known for certain, nearly.
    """
    one = hunt(made.outcome(made.timed(0.131)), Runs(c8=[made.outcome(made.timed(0.131, error=error))]))
    assert one.probe("c8").answer == answer


@pytest.mark.parametrize("culprit", range(1, 17))
def test_a_change_of_little_more_than_the_scatter_is_found_without_passing_a_commit_over(
    made: Any, culprit: int
) -> None:
    """Launches scatter by 2 %, which makes 2.8 % for the change of a round; the commit is 5 % slower."""
    run = made.Simulated({f"c{i}": 0.05 * (i >= culprit) for i in range(17)}, scatter=0.02, seed=culprit)
    first = next(told for told in attempts(run, Probe("c16"), Started("c0", ())) if targets(told, None))
    ends = ends_of(BETWEEN, targets(first, None)[0], first)
    assert ends is not None
    ends, _ = sharpened(ends, first, (), run)
    assert ends is not None
    one = Hunt(ends, (), run)
    assert finished(one) == {f"c{culprit}"}
    assert not one.search.skipped
    assert 0 < one.error < ERROR


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


def test_all_that_is_run_is_the_test_of_the_target(made: Any) -> None:
    asked: list[Started] = []

    def run(probe: Probe, started: Started) -> Outcome:
        asked.append(started)
        told: Outcome = made.outcome(made.timed(0.2))
        return told

    told = made.outcome(made.timed(0.2))
    ends = ends_of(BETWEEN, targets(told, None)[0], told)
    assert ends is not None
    one = Hunt(ends, ("perf", "-k", "a or b"), run)
    one.probe("c8")
    one.confirmation("c8")
    assert asked == [Started(good, ("perf", "-k", "a or b"), "t.py::test_a") for good in ("c0", "c7")]


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
