"""The simulation of verdicts, on machines so quiet that the answers are known."""

from __future__ import annotations

import pytest

from benchmarks import decision
from benchmarks.decision import EFFECTS, MACHINES, Task, machine_text, simulated, tallied, tasks
from benchmarks.quality.rates import OURS, PAIRED, STORED
from benchmarks.quality.simulate import Machine
from benchmarks.quality.steps import UNCHANGED
from pytest_ddpperf.settings import Settings

QUIET, SETTINGS = Machine(0.001, of_runs=0.001), Settings()


def test_a_quiet_machine_gives_the_right_answers_at_once() -> None:
    """A pilot and six launches beside a baseline; a slowdown takes six more to be confirmed."""
    for name, red, launches in ((UNCHANGED, 0, 7), ("+10%", 1, 13)):
        found = tallied(Task(QUIET, name, paired=False, comparisons=2, seed=0, settings=SETTINGS))
        outcomes = {rule: (tally.alarms.value, tally.launches) for rule, tally in found.items()}
        assert outcomes == dict.fromkeys(OURS[:2], (red, launches))
    (slower,) = tallied(Task(QUIET, "+3%", paired=True, comparisons=2, seed=0, settings=SETTINGS)).values()
    assert slower.alarms.value == 1
    assert (slower.alarms.of, slower.alarms.effective) == (2, 2)
    (faster,) = tallied(Task(QUIET, "+10% undone", paired=True, comparisons=2, seed=0, settings=SETTINGS)).values()
    assert faster.improved is not None
    assert (faster.improved.value, faster.alarms.value) == (1, 0)


def test_what_is_unchanged_is_compared_more_often() -> None:
    numbers = {task.condition: task.comparisons for task in tasks(10, seed=0, settings=SETTINGS)}
    assert numbers == {UNCHANGED: 40, **dict.fromkeys(EFFECTS[1:], 10)}
    assert {task.paired for task in tasks(1, seed=0, settings=SETTINGS) if task.condition == "+10% undone"} == {True}


def test_what_rounds_have_in_common_is_for_partners_only() -> None:
    assert {task.paired for task in tasks(1, seed=0, settings=SETTINGS) if task.machine.of_rounds} == {True}
    assert {task.paired for task in tasks(1, seed=0, settings=SETTINGS) if task.machine == MACHINES[0]} == {True, False}


@pytest.mark.slow
def test_any_number_of_processes_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(0.02, of_rounds=0.1)
    monkeypatch.setattr(decision, "MACHINES", (machine,))
    alone = {task.condition: tallied(task)[PAIRED] for task in tasks(1, 3, SETTINGS)}
    found = list(simulated(1, 3, 2, SETTINGS))
    assert found == [(machine, {PAIRED: alone})]
    text = machine_text(*found[0])
    assert text.startswith("launches scatter by 2%, rounds by 10% in common\nrule")
    assert "goal, side by side: unchanged false alarms, at most 0.5%: 0.0 % [0 .. 60], reached, though not" in text
    assert STORED not in text
    assert set(found[0][1][PAIRED]) == set(EFFECTS)
