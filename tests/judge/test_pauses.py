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
    return make_launch(round=number, ranks=(rank,))


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


RUNS = 3


@pytest.mark.parametrize(("steps", "more"), [(16, 0.1), (80, 7.0)])
def test_a_pause_in_each_tenth_step_is_red(steps: int, more: float) -> None:
    """It adds so much to the mean; launches of 16 steps hold one or two of them."""
    rng = np.random.default_rng(steps)
    verdicts = {judged(rng, steps, more * 10 * STEP).verdict for _ in range(RUNS)}
    assert verdicts == {Verdict.REGRESSED}


def test_unchanged_code_is_green_and_code_slower_by_a_tenth_is_red() -> None:
    """Rounds differ by 20 %, and both sides of a round by 1.4 %."""
    rng = np.random.default_rng(1)
    same, slower = ([judged(rng, 80, 0.0, faster=factor).verdict for _ in range(RUNS)] for factor in (1.0, 1.1))
    assert {*same} <= GREEN
    assert {*slower} == {Verdict.REGRESSED}


@pytest.mark.parametrize(
    ("more", "period", "faster"),
    [
        pytest.param(0.3, 10, 0.9, id="it makes up for steps that take a tenth less: 20 % more in all"),
        pytest.param(0.5, 80, 1.0, id="in each 80th step: most launches of 16 have none, and the estimate would be ok"),
    ],
)
def test_a_pause_that_the_estimate_hides_is_never_good(more: float, period: int, faster: float) -> None:
    rng = np.random.default_rng(16)
    runs = [judged(rng, 16, more * period * STEP, period=period, faster=faster) for _ in range(RUNS)]
    assert not {result.verdict for result in runs} & GREEN


def test_the_same_pauses_on_both_sides_are_no_alarm() -> None:
    rng = np.random.default_rng(80)
    verdicts = {judged(rng, 80, 3.0, same=True).verdict for _ in range(RUNS)}
    assert Verdict.REGRESSED not in verdicts
    assert verdicts & GREEN
