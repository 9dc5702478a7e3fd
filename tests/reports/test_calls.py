"""Tables of calibrations and of advice, and the sentence below advice."""

from __future__ import annotations

from pytest_ddpperf.planner.advising import ranked
from pytest_ddpperf.planner.predictions import NamedNetwork, predicted
from pytest_ddpperf.records.predictions import Candidate, StrategyAdvice, Timeline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.calls import advice_table, best_line, calibration_table
from pytest_ddpperf.reports.outputs import Outputs
from pytest_ddpperf.reports.summary import summary_parts
from pytest_ddpperf.reports.table import render
from tests.reports.made import make_calibrated
from tests.shell import shown


def test_the_table_of_calls_has_a_row_for_each_benchmark() -> None:
    """The runs of the second one are apart by 40 ms to 64 ms, 60 %; half as much again is 90 %."""
    runs = ((0.064, Verdict.REGRESSED), (0.04, Verdict.INCONCLUSIVE), (0.05, Verdict.OK), (0.05, Verdict.UNCHANGED))
    table = calibration_table([make_calibrated(), make_calibrated(*runs, test="t.py::test_apart")])
    assert table.headers == ("benchmark", "ranks", "step time\nms", "red", "green", "at most\n%", "finds\n%", "gross")
    assert table.rows == (
        ("test_step[bucketed]", "2", "50.0", "0 of 2", "2 of 2", "3", "5", "0.5"),
        ("test_apart bucketed", "2", "50.0", "1 of 4", "2 of 4", "3", "5", "0.9"),
    )
    assert table.notes == ("1 of 6 comparisons of unchanged code with itself were red",)
    page = shown("over-time.md", "unchanged code")
    heads = zip(*(header.partition("\n")[::2] for header in table.headers), strict=True)
    assert page.partition("---")[0].split() == " ".join(map(" ".join, heads)).split()
    assert page.endswith(f"\n\n{table.notes[0].replace('1 of 6', '0 of 5')}\n")


def test_each_column_is_explained_below_the_table() -> None:
    (title, text), *_ = summary_parts(Outputs(calibrated=[make_calibrated()]), 100, verbosity=1)
    assert title == "ddpperf calibration"
    assert text == render(calibration_table([make_calibrated()]), 100)
    for meaning in (
        'red: runs of the unchanged code with the verdict "regressed" (false alarms)',
        "gross: a suitable value of ddpperf_gross: 1.5 times the largest difference between two runs",
    ):
        assert meaning in " ".join(text.split())


def candidate(strategy: str, seconds: float, batch_size: int | None = None) -> Candidate:
    """Of 4 ranks that send nothing."""
    prediction = predicted(
        Timeline(transfers=(), moments=(), rest=seconds),
        NamedNetwork(name="pcie-ethernet100"),
        name=strategy,
        world_size=4,
        samples=None if batch_size is None else 4.0 * batch_size,
    )
    return Candidate(name=strategy, strategy=strategy, batch_size=batch_size, prediction=prediction)


def advice(*candidates: Candidate) -> StrategyAdvice:
    return StrategyAdvice(test="", candidates=ranked(candidates), world_size=4, memory=None)


def test_for_batches_of_several_sizes_the_table_has_the_time_per_sample() -> None:
    table = advice_table(advice(candidate("ddp", 0.00501, 1), candidate("ddp", 0.00527, 16)))
    place = table.headers.index("sample\nus")
    assert [row[place] for row in table.rows] == ["82.3", "1252"]  # 5.27 ms / 64 and 5.01 ms / 4
    assert "sample" in table.legend


def test_for_batches_of_one_size_the_table_has_only_the_step_time() -> None:
    headers = advice_table(advice(candidate("ddp", 0.005, 16), candidate("flat", 0.006, 16))).headers
    assert not any(header.startswith("sample") for header in headers)


def test_the_best_candidate_is_named_with_the_number_of_equally_good_ones() -> None:
    assert best_line(advice(candidate("ddp", 0.005), candidate("flat", 0.009))) == "best: strategy='ddp'"
    close = advice(candidate("ddp", 0.005, 8), candidate("flat", 0.005, 8), candidate("naive", 0.009, 8))
    said = "best: strategy='ddp', with a batch of 8 samples on each rank; 1 other may be as good"
    assert best_line(close) == said
    assert best_line(advice(candidate("ddp", 0.005), *[candidate("flat", 0.005)] * 7)).endswith(
        "; 7 others may be as good"
    )
