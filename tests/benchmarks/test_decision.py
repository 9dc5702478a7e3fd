"""The simulation of verdicts, on machines so quiet that the answers are known."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import decision
from benchmarks.decision import Goal, Row, beside_baseline, cells, goal_text, proven, red, rows, side_by_side, simulated
from benchmarks.quality.simulate import of_pairs
from benchmarks.quality.verdicts import Outcome, Verdict
from pytest_ddpperf.records.measurement import Interval


def draw() -> np.random.Generator:
    return np.random.default_rng(1)


def test_a_quiet_machine_gives_the_right_answers() -> None:
    quiet = side_by_side(0.002, 60.0)
    assert quiet(0.0, draw()).verdict is Verdict.UNCHANGED
    assert quiet(0.05, draw()).verdict is Verdict.REGRESSED


@pytest.mark.slow
def test_a_control_step_and_several_runs_find_what_a_virtual_machine_hides() -> None:
    assert beside_baseline(0.05)(0.1, draw()).verdict is Verdict.INCONCLUSIVE
    told = beside_baseline(0.001, control=True, runs=5, suite=3)
    assert told(0.1, draw()).verdict is Verdict.REGRESSED


def test_pairs_scatter_by_what_is_asked_for() -> None:
    """0.08 ** 2 is twice what a launch adds of its own, 0.25 of it, and twice what its 44 steps do, 0.75 of it."""
    machine = of_pairs(0.08, 0.25)
    assert machine.scatter == pytest.approx(0.08 * 0.125**0.5)
    assert machine.of_steps == pytest.approx(0.08 * (0.375 * 44) ** 0.5 / 1.045)
    assert machine.of_cpu == pytest.approx(0.75 * 0.08 / 2**0.5)
    assert of_pairs(0.08, 0.25, cpu=False).of_cpu is None


def test_every_condition_that_the_goals_name_has_a_row() -> None:
    named = {(row.setting, row.condition) for row in rows()}
    assert len(named) == len(rows())
    assert {("60 s, pairs by 6%", "+3.0%"), ("stored, runs by 5%, control, 5 runs", "+10.0%")} <= named


MADE = [
    Outcome(Verdict.UNCHANGED, 10.0, 6, 0.05, 0.0, 0.02, Interval(low=-0.01, high=0.01, confidence=0.95)),
    Outcome(
        Verdict.REGRESSED, 20.0, 12, 0.05, 0.04, 0.06, Interval(low=0.02, high=0.05, confidence=0.95), settled=True
    ),
]


def test_a_row_and_its_goals() -> None:
    row = Row("here", lambda *_: MADE[0], 0.0, (Goal("red", 0.005, red, at_least=False), Goal("proven", 0.5, proven)))
    table = ("here", "unchanged", "2", "50.0%", "50.0%", "0.0%", "50.0%", "+4.0%", "100.0%", "50.0%", "15")
    assert cells(row, MADE) == table
    assert [goal_text(row, goal, MADE) for goal in row.goals] == [
        "goal, here, unchanged: red at most 0.5%: 50.0% [1.3% .. 98.7%], missed",
        "goal, here, unchanged: proven at least 50.0%: 50.0% [1.3% .. 98.7%], reached, though not for certain",
    ]


@pytest.mark.slow
def test_any_number_of_processes_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    number = next(i for i, row in enumerate(rows()) if row.setting == "60 s, pairs by 2%" and row.slower)
    monkeypatch.setattr(decision, "MORE", 1)
    (alone,), (two,) = (list(simulated([number], 2, 3, processes)) for processes in (1, 2))
    assert alone[1] == two[1]
