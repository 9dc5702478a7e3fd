"""Made-up launches: exact where there is no noise."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.quality.simulate import lengthened, recorded
from benchmarks.quality.steps import CONDITIONS, UNCHANGED


def test_one_step_in_ten_counts_from_the_first_warm_up_step() -> None:
    """Five steps of warm-up, so that the fifth timed one is the tenth."""
    steps = lengthened(CONDITIONS["1 step in 10"], 80)
    assert [i for i, longer in enumerate(steps) if longer != 1] == [4, 14, 24, 34, 44, 54, 64, 74]
    assert set(steps) == {1.0, 1.5}
    assert statistics.fmean(steps) == 1.05


def test_other_work_is_in_every_step() -> None:
    assert lengthened(CONDITIONS[UNCHANGED], 2) == [1.0, 1.0]
    assert lengthened(CONDITIONS["+10%"], 2) == [1.1, 1.1]
    assert lengthened(CONDITIONS["comm +5%"], 2) == [1.05, 1.05]


def test_a_launch_takes_its_steps_and_its_start() -> None:
    launch = recorded(3, UNCHANGED, [0.1, 0.2], 0.4, pair="+5%")
    assert (launch.round, launch.pair) == (3, "+5%")
    assert launch.seconds == pytest.approx(0.7)
    assert launch.mean == pytest.approx(0.15)
