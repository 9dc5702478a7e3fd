from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from pytest_ddpperf.judge.decision import decide
from pytest_ddpperf.judge.detection import looks_worse
from pytest_ddpperf.judge.sequential import (
    PAIRED_ALPHA,
    STOP,
    Action,
    Phase,
    alpha_of_benchmark,
    next_action,
    phase_after,
)
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.intervals import Change, paired

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


# The whole procedure on synthetic rounds, whose two sides differ by a lognormal with a standard deviation of 1.4 %.

SIGMA = 0.01 * math.sqrt(2)
MOST = 24  # rounds of a phase


def rounds(rng: np.random.Generator, slowdown: float, n: int) -> list[float]:
    """How many times as long this side takes in each round."""
    return list(map(float, np.exp(math.log1p(slowdown) + rng.normal(0.0, SIGMA, n))))


def difference(samples: list[float]) -> Change:
    found = paired(samples, [1.0] * len(samples), scale="ratio")
    assert found is not None
    return found


def procedure(
    rng: np.random.Generator, *, slowdown: float, tolerance: float = 0.015, alpha: float = PAIRED_ALPHA
) -> Iterator[tuple[Phase, Verdict]]:
    """Every look of one run beside another revision, with its verdict."""
    phase, samples, fresh_from = Phase.SCREEN, rounds(rng, slowdown, FIRST), 0
    while True:
        found, fresh = difference(samples), difference(samples[fresh_from:])
        last = len(samples) - fresh_from == MOST
        verdict = decide(found, better="lower", tolerance=tolerance, alpha=alpha, last=last, fresh=fresh)
        yield phase, verdict
        suspect = looks_worse(fresh, better="lower", tolerance=tolerance)
        action = act(phase, verdict, launches=max(FIRST, len(samples) - fresh_from), suspects=suspect, last=last)
        if action == STOP:
            return
        fresh_from = len(samples) if action.kind == "confirm" else fresh_from
        samples = [*samples, *rounds(rng, slowdown, action.launches)]
        phase = phase_after(action, phase)


def ends(*, slowdown: float, runs: int, seed: int, **kwargs: float) -> list[tuple[Phase, Verdict]]:
    rng = np.random.default_rng(seed)
    return [list(procedure(rng, slowdown=slowdown, **kwargs))[-1] for _ in range(runs)]


def test_a_false_alarm_has_to_pass_both_tests() -> None:
    """Without a tolerance, so that significance alone opens a verdict; a level of 20 % is 10 % for the worse direction.

    All rounds together keep to it, whatever made them suspicious: three binomial standard deviations are 18 of 400.
    """
    runs = 400
    verdicts = [verdict for _, verdict in ends(slowdown=0.0, runs=runs, seed=1, tolerance=0.0, alpha=0.2)]

    assert 0 < verdicts.count(Verdict.REGRESSED) <= 0.1 * runs + 18


def test_a_benchmark_against_itself_raises_no_alarm() -> None:
    """The promise is 0.5 % of runs; with two keys and a confirmation it is kept by far, and nearly all are settled."""
    runs = 300
    verdicts = [verdict for _, verdict in ends(slowdown=0.0, runs=runs, seed=3)]

    assert verdicts.count(Verdict.REGRESSED) <= 1
    assert verdicts.count(Verdict.UNCHANGED) >= 0.95 * runs


@pytest.mark.parametrize("slowdown", [0.05, 0.10])
def test_what_is_slower_is_found_and_was_confirmed(slowdown: float) -> None:
    runs = 150
    found = ends(slowdown=slowdown, runs=runs, seed=4)

    assert all(phase is Phase.CONFIRM for phase, verdict in found if verdict is Verdict.REGRESSED)
    assert [verdict for _, verdict in found].count(Verdict.REGRESSED) >= 0.98 * runs
