"""Pauses in each tenth step, by simulated rounds of two sides: they are never good, and red where there is time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_ddpperf.against.worktree import Revision
from pytest_ddpperf.judge.judge import Judge
from pytest_ddpperf.judge.sequential import Interim
from pytest_ddpperf.metrics.scaling import alone
from pytest_ddpperf.metrics.table import series_of
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verdict import GREEN, Verdict
from pytest_ddpperf.run.call.references import PairedReferences
from pytest_ddpperf.settings import Settings
from tests.factories import make_launch, make_measurement, make_rank_launch, make_variant

STEP = 0.01  # seconds of a step that nothing holds up
MAX_TIME = 40.0  # a round takes a second
MOODS, OWN, STEPS = 0.2, 0.01, 0.1
"""Standard deviations, of logarithms: of rounds, of the launches of a round, and of single steps."""


def launch(rng: np.random.Generator, number: int, step: float, steps: int, *, pause: float, period: int) -> Launch:
    """A launch with a pause of so many seconds in a step of each period, of which the first may be any."""
    times = step * np.exp(rng.normal(0.0, OWN) + rng.normal(0.0, STEPS, steps))
    times[int(rng.integers(period)) :: period] += pause
    size = max(2, steps // 8)
    blocks = (size,) * (steps // size - 1)
    rank = make_rank_launch(0, tuple(map(float, times)), blocks=(*blocks, steps - sum(blocks)))
    return replace(make_launch((1.0,), round=number), ranks=(rank,))


def judged(
    rng: np.random.Generator, steps: int, pause: float, *, period: int = 10, faster: float = 1.0, same: bool = False
) -> Result:
    """The result of as many rounds as the judge asks for; ``same``: both sides have the pauses."""
    variant = make_variant("ddp")
    references = PairedReferences(
        revision=Revision("main", "3f2a1c0", Path("/project")), variants=(variant,), derive=alone, lacking={}
    )
    judge = Judge("test_it", Settings(launches=4, max_time=MAX_TIME), references)
    sides: tuple[list[Launch], list[Launch]] = ([], [])
    wanted, fresh_from = 4, 0
    while wanted:
        for number in range(len(sides[0]), len(sides[0]) + wanted):
            step = STEP * float(np.exp(rng.normal(0.0, MOODS)))
            sides[0].append(launch(rng, number, faster * step, steps, pause=pause, period=period))
            sides[1].append(launch(rng, number, step, steps, pause=pause if same else 0.0, period=period))
        elapsed = float(len(sides[0]))
        last, screened = elapsed + 1 > MAX_TIME, elapsed + 1 > MAX_TIME / 2
        interim = Interim(elapsed, 1.0, last=last, screened=screened, over=1.0 if last else elapsed / MAX_TIME)
        action = judge((measured(sides[0], fresh_from), measured(sides[1], fresh_from)), interim)
        fresh_from = len(sides[0]) if action.kind == "confirm" else fresh_from
        wanted = action.launches
    (result,) = judge.results
    return result


def measured(launches: list[Launch], fresh_from: int) -> Measurement:
    one = make_measurement(launches=tuple(launches), fresh_from=fresh_from, turns=True)
    return replace(one, series=series_of(one))


RUNS = 6


@pytest.mark.parametrize("steps", [16, 80])
@pytest.mark.parametrize("more", [0.1, 7.0])
def test_a_pause_in_each_tenth_step_is_red(steps: int, more: float) -> None:
    """It adds so much to the mean; launches of 16 steps hold one or two of them."""
    rng = np.random.default_rng(steps)
    verdicts = {judged(rng, steps, more * 10 * STEP).verdict for _ in range(RUNS)}
    assert verdicts == {Verdict.REGRESSED}


@pytest.mark.parametrize("steps", [16, 80])
def test_a_pause_that_makes_up_for_faster_steps_is_not_good(steps: int) -> None:
    """Steps take a tenth less, and pauses add 30 %: 20 % more in all."""
    rng = np.random.default_rng(steps)
    found = [judged(rng, steps, 0.3 * 10 * STEP, faster=0.9) for _ in range(RUNS)]
    assert not {result.verdict for result in found} & GREEN
    assert [result.verdict for result in found].count(Verdict.REGRESSED) >= RUNS - 1


@pytest.mark.parametrize(("period", "more"), [(40, 7.0), (80, 0.5)])
def test_pauses_that_most_launches_do_not_hold_are_never_good(period: int, more: float) -> None:
    """Launches have 16 steps: the estimate hardly counts those with a pause, and would call each eightieth step ok."""
    rng = np.random.default_rng(16)
    verdicts = {judged(rng, 16, more * period * STEP, period=period).verdict for _ in range(RUNS)}
    assert not verdicts & GREEN


@pytest.mark.parametrize(("steps", "pause"), [(16, 0.1), (80, 3.0)])
def test_the_same_pauses_on_both_sides_are_no_alarm(steps: int, pause: float) -> None:
    rng = np.random.default_rng(steps)
    verdicts = {judged(rng, steps, pause, same=True).verdict for _ in range(RUNS)}
    assert Verdict.REGRESSED not in verdicts
    assert verdicts & GREEN
