from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pytest_ddpperf.baselines.calibration import Calibrated, Recommended
from pytest_ddpperf.reports.calibration import calibration_table, marker
from pytest_ddpperf.reports.table import render
from pytest_ddpperf.stats.rates import Rate

Make = Callable[..., Calibrated]


def test_a_row_for_each_benchmark(make_calibrated: Make) -> None:
    table = calibration_table([make_calibrated(), make_calibrated(mde=None, alarms=Rate(1, 20, 2))])
    assert table.rows == (
        ("test_step[bucketed] bucketed", "2", "50.0", "15", "2", "0.400", "4.2", "6.1", "3 of 20", "0 [0, 84.2]"),
        ("test_step[bucketed] bucketed", "2", "50.0", "15", "2", "0.400", "4.2", "-", "3 of 20", "5 [0, 86.6]"),
    )
    assert {len(row) for row in table.rows} == {len(table.headers)}


def test_what_is_said_below(make_calibrated: Make) -> None:
    """51 s from the first to the fifth run are 12.75 s from start to start."""
    other = make_calibrated(test="perf_tests/test_strategies.py::test_other")
    text = render(calibration_table([make_calibrated(), other]))
    assert "5 runs of each, 12.8 s from start to start" in text
    assert "the interval of false alarms rests on 2 comparisons without a common run" in text
    assert "both benchmarks: other processes used 37.1 % of the cores in 1 of 8 launches" in text
    assert "  @pytest.mark.ddpperf(launches=8, steps=24)\n    perf_tests/test_" in text
    assert "\n    perf_tests/test_strategies.py::test_other\n" in text


def test_a_marker_suits_all_benchmarks_of_its_test(make_calibrated: Make) -> None:
    one = make_calibrated()
    assert marker([one]) == "@pytest.mark.ddpperf(launches=8, steps=24)"
    other = replace(one, recommended=Recommended(12, 60, None))
    assert marker([one, other]) == "@pytest.mark.ddpperf(launches=12)"


def test_steps_that_were_short_of_time_are_not_kept(make_calibrated: Make) -> None:
    longer = make_calibrated(recommended=Recommended(12, 5, 45.0))
    assert marker([longer]) == "@pytest.mark.ddpperf(launches=12, max_time=45)"


def test_runs_that_lie_far_apart_are_told_with_a_cure(make_calibrated: Make) -> None:
    one = make_calibrated()
    apart, further = (replace(one, calibration=replace(one.calibration, floor=floor)) for floor in (0.2, 0.33))
    told = "one run in 20 of the same code is slower than another by more than"
    assert told not in render(calibration_table([one]))
    assert (
        f"test_step[bucketed]: {told} 33 %: calibrate again where less disturbs it, or hold it against a revision side "
        "by side with --ddpperf-against\n"
    ) in render(calibration_table([further]))
    both = render(calibration_table([apart, replace(further, test="perf_tests/test_strategies.py::test_other")]))
    assert (
        f"both benchmarks: {told} 20 % to 33 %: calibrate again where less disturbs them, or hold them against a "
        "revision side by side with --ddpperf-against\n"
    ) in both
