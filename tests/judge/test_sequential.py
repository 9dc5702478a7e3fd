from __future__ import annotations

import pytest

from pytest_ddpperf.judge.sequential import STOP, Action, Phase, alpha_of_benchmark, next_action, phase_after
from pytest_ddpperf.records.verdict import Verdict

FIRST = 6


def act(phase: Phase, *verdicts: Verdict, launches: int = FIRST, suspects: bool = False, last: bool = False) -> Action:
    return next_action(phase, verdicts, launches=launches, suspects=suspects, last=last)


@pytest.mark.parametrize("verdict", [Verdict.UNCHANGED, Verdict.IMPROVED, Verdict.NEW, Verdict.INCOMPATIBLE])
def test_what_is_decided_or_cannot_be_compared_stops(verdict: Verdict) -> None:
    assert act(Phase.SCREEN, verdict) == STOP


def test_nothing_to_judge_stops() -> None:
    assert act(Phase.SCREEN) == STOP


@pytest.mark.parametrize("phase", [Phase.SCREEN, Phase.CONFIRM])
def test_launches_are_added_one_by_one(phase: Phase) -> None:
    action = act(phase, Verdict.UNCHANGED, Verdict.INCONCLUSIVE, Verdict.NEW)
    assert action == Action("more", 1)
    assert phase_after(action, phase) is phase


@pytest.mark.parametrize(
    ("verdict", "suspects"),
    [(Verdict.INCONCLUSIVE, True), (Verdict.UNCHANGED, True), (Verdict.REGRESSED, True), (Verdict.REGRESSED, False)],
)
def test_a_suspect_is_confirmed_by_as_many_fresh_launches(verdict: Verdict, *, suspects: bool) -> None:
    action = act(Phase.SCREEN, verdict, launches=16, suspects=suspects)
    assert action == Action("confirm", 16)
    assert phase_after(action, Phase.SCREEN) is Phase.CONFIRM


def test_after_the_screening_nothing_new_is_suspected() -> None:
    """What is undecided then is measured on to be cleared, and nothing makes it begin again."""
    clearing = phase_after(act(Phase.SCREEN, Verdict.INCONCLUSIVE), Phase.SCREEN, screened=True)
    assert clearing is Phase.CLEAR
    assert act(clearing, Verdict.INCONCLUSIVE, suspects=True) == Action("more", 1)
    assert act(clearing, Verdict.INCONCLUSIVE, suspects=True, last=True) == STOP
    assert act(clearing, Verdict.UNCHANGED, suspects=True) == STOP
    assert phase_after(Action("more", 1), clearing) is Phase.CLEAR


def test_the_last_look_in_time_may_still_raise_a_suspicion() -> None:
    """And what confirms it is not the screening any more."""
    suspecting = act(Phase.SCREEN, Verdict.INCONCLUSIVE, suspects=True)
    confirming = phase_after(suspecting, Phase.SCREEN, screened=True)
    assert confirming is Phase.CONFIRM
    assert phase_after(Action("more", 1), confirming, screened=True) is Phase.CONFIRM


@pytest.mark.parametrize("verdict", [Verdict.REGRESSED, Verdict.UNCHANGED])
@pytest.mark.parametrize("suspects", [False, True])
def test_a_confirmation_ends_with_its_verdict(verdict: Verdict, *, suspects: bool) -> None:
    assert act(Phase.CONFIRM, verdict, suspects=suspects) == STOP


@pytest.mark.parametrize("phase", [Phase.SCREEN, Phase.CONFIRM])
def test_one_is_added_only_if_it_fits(phase: Phase) -> None:
    assert act(phase, Verdict.INCONCLUSIVE) == Action("more", 1)
    assert act(phase, Verdict.INCONCLUSIVE, last=True) == STOP


def test_a_suspect_is_confirmed_even_when_time_is_up() -> None:
    assert act(Phase.SCREEN, Verdict.REGRESSED, last=True) == Action("confirm", FIRST)


@pytest.mark.parametrize(
    ("benchmarks", "expected", "side_by_side"),
    [(1, 0.01, 0.007), (20, 0.002, 0.00175), (50, 0.0008, 0.0007), (0, 0.01, 0.007)],
)
def test_benchmarks_share_the_level(benchmarks: int, expected: float, side_by_side: float) -> None:
    assert alpha_of_benchmark(benchmarks) == pytest.approx(expected)
    assert alpha_of_benchmark(benchmarks, paired=True) == pytest.approx(side_by_side)
