"""The simulation of verdicts, on machines so quiet that the answers are known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks import decision
from benchmarks.decision import pausing_little, rows, simulated
from benchmarks.quality.laws import Draw, Machine, Slower
from benchmarks.quality.rows import UNCHANGED, Found, Goal, Made, Row, alarms, proven
from benchmarks.quality.verdicts import Outcome
from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.records.verdict import Verdict
from tests.benchmarks.quality.test_laws import Silent


def quiet(_: Draw) -> Machine:
    return Silent()


def first(row: Row) -> Made:
    return next(row.outcomes(np.random.default_rng(1)))


def test_verdicts_on_a_quiet_machine_are_right() -> None:
    same, slower, pausing = (
        first(Row("60 s", quiet, "any", lambda _, code=code: code))  # type: ignore[misc]
        for code in (Slower(), Slower(0.05), Slower(pause=1.0, every=20))
    )
    assert (same[0].verdict, same[1]) == (Verdict.UNCHANGED, 0.0)
    assert slower[0].verdict is pausing[0].verdict is Verdict.REGRESSED
    assert slower[1] == pytest.approx(0.05)
    assert slower[0].change == pytest.approx(0.05)
    assert pausing[0].change == pytest.approx(pausing[1])


def test_only_the_slow_benchmark_of_a_suite_regressed() -> None:
    row = Row("suite", quiet, "+10%", lambda _: Slower(0.1), budget=20.0)
    outcome, slower = first(row)
    assert outcome.verdict is Verdict.REGRESSED
    assert slower == pytest.approx(0.1)
    assert row.cost == 26
    every = Row("suite", quiet, UNCHANGED, budget=20.0)
    told = list(itertools.islice(every.outcomes(np.random.default_rng(1)), 26))
    assert {outcome.verdict for outcome, _ in told} == {Verdict.UNCHANGED}


def test_pauses_that_add_too_little_are_omitted() -> None:
    row = Row("60 s", quiet, "small pauses", pausing_little, least=0.1)
    slower = [by for _, by in itertools.islice(row.outcomes(np.random.default_rng(1)), 5)]
    assert min(slower) >= 0.1


MADE: list[Made] = [
    (Outcome(Verdict.UNCHANGED, 10.0, 6, 0.05, 0.0, 0.02, Interval(low=-0.01, high=0.01, confidence=0.95)), 0.0),
    (Outcome(Verdict.REGRESSED, 20.0, 12, 0.05, 0.04, 0.06, Interval(low=0.02, high=0.05, confidence=0.95)), 0.0),
]


def test_a_row_has_its_rates_and_its_goals() -> None:
    row = Row("here", quiet, UNCHANGED, goals=(alarms(0.005), Goal("proven", 0.5, proven)))
    found = Found(row, MADE)
    assert found.cells == (
        *("here", "unchanged", "2", "50.00%", "50.0%", "0.0%", "+4.0%", "100.0%", "50.0%", "9", "15"),
    )
    told, rate = [found.goal_text(goal) for goal in row.goals], "1 of 2, 50.00% [1.26% .. 98.74%]"
    assert told == [
        f"goal, here, unchanged: red at most 0.5%: {rate}, missed",
        f"goal, here, unchanged: proven at least 50.0%: {rate}, reached, though not for certain",
    ]


@pytest.mark.slow
def test_any_number_of_processes_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    number = next(i for i, row in enumerate(rows()) if row.setting == "60 s, pairs by 2%")
    monkeypatch.setattr(decision, "PART", 1)
    (alone,), (two,) = (list(simulated([number], 2, 3, processes)) for processes in (1, 2))
    assert alone.made == two.made
