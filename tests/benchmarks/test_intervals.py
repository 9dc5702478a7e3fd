"""What recorded launches bear out of the intervals: made-up ones, of which coverage and scatter are known."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks import intervals as command
from benchmarks.quality.campaign import Campaign, Recorded, write
from benchmarks.quality.intervals import (
    Intervals,
    Known,
    alone,
    in_short_turns,
    joined,
    moved_by,
    of_pairs,
    pairs_of,
    root,
    scatter_of,
    stretches_of,
    together,
)
from benchmarks.quality.simulate import CELL, ENVIRONMENT, recorded
from benchmarks.quality.steps import UNCHANGED
from pytest_ddpperf.metrics.launch_figures import moved_step
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.stats import centers
from pytest_ddpperf.stats.blocks import Expected
from pytest_ddpperf.training.timing import turn_sizes

STEPS = 40
BLOCKS = (0.06, -0.02, -0.06, 0.02) * 5  # influences that tell a standard error of 1 %


def drawing() -> random.Random:
    return random.Random(3)  # noqa: S311  no secret


def launch(number: int, level: float, draw: random.Random, *, condition: str, pair: str | None) -> Recorded:
    steps = tuple(level * draw.lognormvariate(0, 0.02) for _ in range(STEPS))
    return recorded(number, condition, steps, 0.1, started=float(number), pair=pair)


def campaign(rounds: int, effect: float = 0.10) -> Campaign:
    """Rounds of a pair of the same, a pair whose new side is slower, and a launch alone."""
    draw = drawing()
    launches: list[Recorded] = []
    for number in range(rounds):
        for condition, longer in ((UNCHANGED, 1.0), ("+10%", 1 + effect)):
            launches.append(launch(number, 0.01, draw, condition=UNCHANGED, pair=condition))
            launches.append(launch(number, 0.01 * longer, draw, condition=condition, pair=condition))
        launches.append(launch(number, 0.01, draw, condition=UNCHANGED, pair=None))
    return Campaign("2026-11-23T06:00:00+00:00", {2: ENVIRONMENT}, {}, tuple(launches))


def normal(number: int, spread: float, moved: tuple[float, ...] = BLOCKS) -> list[Known]:
    draw = drawing()
    return [Known(float(i), draw.gauss(0, spread), moved) for i in range(number)]


def test_blocks_move_a_launch_as_the_plugin_has_it() -> None:
    draw = drawing()
    steps = tuple(draw.lognormvariate(-4, 0.1) for _ in range(STEPS))
    sizes = turn_sizes(STEPS, 1)
    measured = Launch(
        round=0,
        ranks=(
            RankLaunch(
                rank=0,
                step_times=steps,
                memory={},
                loss=None,
                samples_per_step=None,
                tokens_per_step=None,
                blocks=sizes,
            ),
        ),
        seconds=1.0,
    )
    found = moved_by(recorded(0, UNCHANGED, steps), sizes)
    assert found.moved == pytest.approx(moved_step(measured))
    assert found.value == pytest.approx(math.log(sum(steps) / STEPS))


def test_effects_are_taken_off_and_what_is_left_keeps_its_variance() -> None:
    rounds = 60
    pairs = pairs_of(campaign(rounds).launches, CELL)
    assert len(pairs) == 2 * rounds
    assert [pair.started for pair in pairs] == sorted(pair.started for pair in pairs)
    assert max(abs(pair.value) for pair in pairs) < 0.05
    slower = [pairs[i].value for i in range(1, len(pairs), 2)]
    assert math.fsum(slower) == pytest.approx(0, abs=1e-12)
    assert np.mean(np.square(slower)) == pytest.approx(np.var(np.divide(slower, root(60 / 59)), ddof=1))
    assert len(pairs_of(campaign(2).launches, CELL)) == 2  # too few of the slower ones to know by how much


def test_pairs_that_scatter_as_their_blocks_tell_are_covered() -> None:
    """The blocks tell 1 % and a launch adds 1.5 % of its own; normal differences scatter by that."""
    pairs = normal(4000, math.hypot(0.01, 0.015))
    with_blocks, without = of_pairs(pairs, 2), of_pairs(pairs, 2, None)
    assert len(with_blocks.p) == 3999
    assert with_blocks.independent == 2000
    assert without.covers.value == pytest.approx(0.95, abs=0.015)
    assert without.beyond(0.05) == pytest.approx(0.05, abs=0.01)
    assert 0.97 < with_blocks.covers.value < 0.995
    assert with_blocks.median < without.median / 2


def test_pairs_that_scatter_by_far_more_are_not_covered() -> None:
    pairs = normal(1000, 0.10)
    assert of_pairs(pairs, 2).covers.value < 0.85
    assert of_pairs(pairs, 2, own=0.1).covers.value > 0.93
    assert of_pairs(pairs, 2, None).covers.value > 0.93


def test_one_pair_is_judged_by_its_blocks_or_not_at_all() -> None:
    pairs = normal(10, 0.01)
    assert len(of_pairs(pairs, 1).p) == 10
    assert of_pairs(pairs, 1, None).p == ()


def test_cells_are_counted_together() -> None:
    first = Intervals((0.5, 0.01), (0.1, 0.2), 1)
    both = together([first, Intervals((0.04, 0.2), (0.3, 0.4), 2)])
    assert both.covers.value == 0.75
    assert both.covers.independent == 3
    assert both.beyond(0.05) == 0.25
    assert both.median == pytest.approx(0.25)


def test_what_blocks_do_not_explain_is_a_launch_s_own() -> None:
    found = scatter_of(normal(3000, 0.05))
    own, low, high = found.own
    assert low < own < high
    told = math.sqrt(found.told[0])
    assert own == pytest.approx(math.sqrt(0.05**2 - told**2), rel=0.05)
    assert scatter_of(normal(300, told / 3)).own[0] < 0
    assert abs(np.mean(found.neighbours)) < 0.05
    assert len(joined([found, found]).shown) == 6000


@pytest.mark.parametrize(("moved", "correlation"), [((0.1, 0.1, -0.1, -0.1), 0.5), ((0.1, -0.1, 0.1, -0.1), -0.5)])
def test_neighbouring_blocks_correlate(moved: tuple[float, ...], correlation: float) -> None:
    """The known mean of 0 takes 1/4 off of four blocks; the rest is (1 - 1 + 1) / 4, or -3 / 4."""
    (found,) = scatter_of([Known(0.0, 0.1, moved)]).blocks
    assert found == pytest.approx(correlation)


def test_runs_that_deviate_as_a_whole_are_told_from_launches_that_do() -> None:
    draw = drawing()
    launches = normal(4000, 0.02)
    same = stretches_of(launches, 4)
    assert same is not None
    assert same.number == 1000
    assert same.scatter == pytest.approx(0.02, rel=0.05)
    assert same.usual == pytest.approx(0.02, rel=0.05)
    assert abs(same.runs) < 0.005
    shifts = [draw.gauss(0, 0.04) for _ in range(1000)]
    moved = [Known(launch.started, launch.value + shifts[i // 4], launch.moved) for i, launch in enumerate(launches)]
    apart = stretches_of(moved, 4)
    assert apart is not None
    assert apart.runs == pytest.approx(0.04, rel=0.1)
    assert stretches_of(launches[:7], 4) is None


def test_only_short_turns_count() -> None:
    found = campaign(3)
    assert in_short_turns(found)
    assert not in_short_turns(Campaign("2026-11-22T02:15:59+00:00", found.environments, {}, ()))
    assert len(alone(found.launches, CELL)) == 3


@pytest.mark.parametrize("samples", [(0.01, 0.012), (0.01, 0.2), (-0.03, 0.01, 0.02)])
def test_simulations_moderate_as_the_plugin_does(samples: tuple[float, ...]) -> None:
    side = centers.center_of(samples, robust=True)
    assert side.variance is not None
    expected = centers.moderated(side, Expected(0.02**2, 4.0))
    many = tuple(np.array([figure]) for figure in (side.mean, side.variance, side.df))
    error, df = command.moderated((many[0], many[1], many[2]), len(samples), np.array([0.02**2]), 4.0)
    assert expected.variance == pytest.approx(float(error[0]) ** 2)
    assert expected.df == pytest.approx(float(df[0]))


def test_simulated_launches_alone_are_covered() -> None:
    side, expected = command.drawn(np.random.default_rng(1), 20_000, 2, 0.015, 0.015)
    covers, errs, _ = command.simulated(side, 2, expected, 0.0)
    assert float(covers.rstrip("%")) == pytest.approx(95, abs=0.5)
    assert float(errs.rstrip("%")) == pytest.approx(1, abs=0.2)


def test_the_report_is_no_wider_than_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(campaign(12), tmp_path / "pairs.jsonl.gz")
    monkeypatch.setattr("sys.argv", ["intervals.py", "report", "--runs", "200", str(tmp_path / "pairs.jsonl.gz")])
    command.main()
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= command.WIDTH
    assert "pairs: 24 pairs in turns, 12 launches alone, 2026-11-23T06:00" in text
    assert "\nintervals of so many consecutive pairs" in text
