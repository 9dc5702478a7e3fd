from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from pytest_ddpperf.stats.intervals import change
from pytest_ddpperf.stats.sequential import (
    LOOKS,
    STOP,
    Action,
    Phase,
    State,
    advance,
    alpha_per_look,
    begin,
    next_action,
)
from pytest_ddpperf.stats.verdict import decide
from pytest_ddpperf.verdict import Verdict

FIRST = 4


def act(state: State, *verdicts: Verdict, elapsed: float = 0.0, deadline: float = 1e9, each: float = 1.0) -> Action:
    return next_action(state, verdicts, elapsed=elapsed, deadline=deadline, launch_seconds=each)


@pytest.mark.parametrize("verdict", [Verdict.UNCHANGED, Verdict.IMPROVED, Verdict.NEW, Verdict.INCOMPATIBLE])
def test_what_is_decided_or_cannot_be_compared_stops(verdict: Verdict) -> None:
    assert act(begin(FIRST), verdict) == STOP


def test_nothing_to_judge_stops() -> None:
    assert act(begin(FIRST)) == STOP


def test_every_look_doubles_the_launches_and_the_fourth_is_the_last() -> None:
    state, sizes = begin(FIRST), [FIRST]
    while (action := act(state, Verdict.INCONCLUSIVE)) != STOP:
        state = advance(state, action)
        sizes.append(state.launches)

    assert sizes == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST]
    assert state.look == LOOKS


def test_one_open_metric_is_enough_to_go_on() -> None:
    assert act(begin(FIRST), Verdict.UNCHANGED, Verdict.INCONCLUSIVE, Verdict.NEW) == Action("more", FIRST)


def test_a_suspect_is_judged_by_fresh_launches_alone() -> None:
    late = State(launches=16, look=3, first=FIRST)

    action = act(late, Verdict.REGRESSED, Verdict.INCONCLUSIVE)

    assert action == Action("confirm", FIRST)
    assert advance(late, action) == State(launches=FIRST, look=1, first=FIRST, phase=Phase.CONFIRM)


@pytest.mark.parametrize("verdict", [Verdict.REGRESSED, Verdict.UNCHANGED])
def test_a_confirmation_ends_with_its_verdict(verdict: Verdict) -> None:
    assert act(State(FIRST, 1, FIRST, Phase.CONFIRM), verdict) == STOP


def test_a_confirmation_that_is_not_sure_takes_its_own_looks() -> None:
    state = State(FIRST, 1, FIRST, Phase.CONFIRM)
    assert act(state, Verdict.INCONCLUSIVE) == Action("more", FIRST)
    assert act(State(8 * FIRST, LOOKS, FIRST, Phase.CONFIRM), Verdict.INCONCLUSIVE) == STOP


def test_as_many_are_added_as_fit() -> None:
    """Four more launches of 5 s at 10 s are done at 30 s; at 11 s three fit, at 21 s one, which is none."""
    for state in (begin(FIRST), State(FIRST, 1, FIRST, Phase.CONFIRM)):
        assert act(state, Verdict.INCONCLUSIVE, elapsed=10, deadline=30, each=5) == Action("more", FIRST)
        assert act(state, Verdict.INCONCLUSIVE, elapsed=11, deadline=30, each=5) == Action("more", 3)
        assert act(state, Verdict.INCONCLUSIVE, elapsed=21, deadline=30, each=5) == STOP


def test_a_single_launch_can_grow() -> None:
    assert act(begin(1), Verdict.INCONCLUSIVE) == Action("more", 2)


def test_a_suspect_is_confirmed_even_when_time_is_up() -> None:
    assert act(begin(FIRST), Verdict.REGRESSED, elapsed=90, deadline=60) == Action("confirm", FIRST)


def test_the_looks_share_the_level() -> None:
    assert alpha_per_look(0.01, looks=4) == 0.0025


# The whole procedure on synthetic launches. Step times of launches are lognormal with a standard deviation of 1 %.

SIGMA = 0.01


def launches(rng: np.random.Generator, slowdown: float, n: int) -> list[float]:
    return list(map(float, np.exp(math.log1p(slowdown) + rng.normal(0.0, SIGMA, n))))


def procedure(
    rng: np.random.Generator,
    *,
    slowdown: float,
    tolerance: float,
    alpha: float,
    spread: float = 0.0,
    known: float = 0.0,
) -> Iterator[tuple[State, Verdict]]:
    """Every look of one run against one stored baseline of eight launches, with its verdict."""
    base = launches(rng, math.expm1(rng.normal(0.0, spread)), 8)
    own = math.expm1(math.log1p(slowdown) + rng.normal(0.0, spread))
    state, samples = begin(FIRST), launches(rng, own, FIRST)
    while True:
        found = change(samples, base, scale="ratio", between_runs=known)
        assert found is not None
        verdict = decide(found, better="lower", tolerance=tolerance, alpha=alpha)
        yield state, verdict
        action = act(state, verdict)
        if action == STOP:
            return
        fresh = launches(rng, own, action.launches)
        samples = fresh if action.action == "confirm" else [*samples, *fresh]
        state = advance(state, action)


def final(looks: Iterator[tuple[State, Verdict]]) -> tuple[State, Verdict]:
    *_, last = looks
    return last


def at_most(rate: float, runs: int) -> float:
    """Three binomial standard deviations above what ``rate`` would give in ``runs``."""
    return rate * runs + 3 * math.sqrt(rate * (1 - rate) * runs)


def suspects(*, alpha: float, runs: int, tolerance: float = 0.0, spread: float = 0.0, known: float = 0.0) -> int:
    """How many of ``runs`` comparisons of a benchmark with itself come under suspicion at any look of the screening."""
    rng = np.random.default_rng(20260112)
    kwargs = {"slowdown": 0.0, "tolerance": tolerance, "alpha": alpha, "spread": spread, "known": known}
    return sum(
        any(verdict is Verdict.REGRESSED for state, verdict in procedure(rng, **kwargs) if state.phase is Phase.SCREEN)
        for _ in range(runs)
    )


def test_looking_four_times_keeps_the_error_rate_only_because_the_looks_share_it() -> None:
    """Without tolerance, so that significance alone opens a verdict; a level of 10 % is 5 % for the worse direction."""
    runs, alpha = 1000, 0.1

    assert 0 < suspects(alpha=alpha_per_look(alpha), runs=runs) <= at_most(alpha / 2, runs)
    assert suspects(alpha=alpha, runs=runs) > at_most(alpha / 2, runs)


def test_runs_that_differ_as_a_whole_are_no_alarm_if_their_spread_is_known() -> None:
    runs, alpha, spread = 500, 0.1, 0.01

    assert suspects(alpha=alpha_per_look(alpha), runs=runs, spread=spread, known=spread) <= at_most(alpha / 2, runs)
    assert suspects(alpha=alpha_per_look(alpha), runs=runs, spread=spread) > at_most(alpha / 2, runs)


def test_a_benchmark_against_itself_raises_no_alarm() -> None:
    """The promise is 0.5 % of runs; with two keys and a confirmation it is kept by far.

    Half of the runs can even prove that nothing changed by more than the tolerance; the baseline's own error of
    2 % / sqrt(8) keeps the others from it.
    """
    rng, runs = np.random.default_rng(1), 500
    ends = [final(procedure(rng, slowdown=0.0, tolerance=0.03, alpha=alpha_per_look())) for _ in range(runs)]
    verdicts = [verdict for _, verdict in ends]

    assert verdicts.count(Verdict.REGRESSED) <= 1
    assert verdicts.count(Verdict.UNCHANGED) >= 0.5 * runs


def test_ten_percent_slower_is_found_and_was_confirmed() -> None:
    rng, runs = np.random.default_rng(2), 300
    ends = [final(procedure(rng, slowdown=0.10, tolerance=0.03, alpha=alpha_per_look())) for _ in range(runs)]

    assert all(state.phase is Phase.CONFIRM for state, verdict in ends if verdict is Verdict.REGRESSED)
    assert [verdict for _, verdict in ends].count(Verdict.REGRESSED) >= 0.995 * runs
