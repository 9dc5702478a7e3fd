from __future__ import annotations

from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.calls import calibration_table
from pytest_ddpperf.reports.outputs import Outputs
from pytest_ddpperf.reports.screen import summary_parts
from pytest_ddpperf.reports.table import render
from tests.reports.made import make_calibrated


def test_a_row_for_each_benchmark() -> None:
    """The runs of the second one are apart by 40 ms to 64 ms, 60 %; half as much again is 90 %."""
    runs = ((0.064, Verdict.REGRESSED), (0.04, Verdict.INCONCLUSIVE), (0.05, Verdict.OK), (0.05, Verdict.UNCHANGED))
    table = calibration_table([make_calibrated(), make_calibrated(*runs, test="t.py::test_apart")])
    assert table.headers == ("benchmark", "ranks", "step time\nms", "red", "green", "at most\n%", "finds\n%", "gross")
    assert table.rows == (
        ("test_step[bucketed]", "2", "50.0", "0 of 2", "2 of 2", "3", "5", "0.5"),
        ("test_apart bucketed", "2", "50.0", "1 of 4", "2 of 4", "3", "5", "0.9"),
    )
    assert table.notes == ("1 of 6 comparisons of unchanged code with itself were red",)


def test_each_column_is_explained_below_the_table() -> None:
    (title, text), *_ = summary_parts(Outputs(calibrated=[make_calibrated()]), 100, verbosity=1)
    assert title == "ddpperf calibration"
    assert text == render(calibration_table([make_calibrated()]), 100)
    for meaning in (
        "red: runs in which unchanged code was called slower",
        "gross: a suitable value of ddpperf_gross: 1.5 times the largest difference between two runs",
    ):
        assert meaning in " ".join(text.split())
