from __future__ import annotations

from collections.abc import Callable

from pytest_ddpperf.reports.table import Table, summary_table
from pytest_ddpperf.reports.terminal import render
from pytest_ddpperf.results import Comparison, Result
from pytest_ddpperf.verdict import Verdict


def test_words_stand_left_and_numbers_right() -> None:
    table = Table(
        ("test", "time\nms", "verdict"), (("a", "1.50", "new"), ("bcdef", "12.5", "unchanged")), ("x: y",), "t"
    )
    assert render(table).splitlines() == [
        "t",
        "test   time  verdict",
        "         ms",
        "-----  ----  ---------",
        "a      1.50  new",
        "bcdef  12.5  unchanged",
        "x: y",
    ]


def test_a_table_without_rows_is_its_notes() -> None:
    assert render(Table(("a", "b"), (), ("nothing",))) == "nothing"


def test_ordinary_names_fit_120_columns(
    make_result: Callable[..., Result], make_comparison: Callable[..., Comparison]
) -> None:
    others = (
        make_comparison("throughput", 676.4, Verdict.UNCHANGED),
        make_comparison("peak_resident", 412 * 2.0**20, Verdict.UNCHANGED),
        make_comparison("scaling_efficiency", 0.874, Verdict.UNCHANGED),
    )
    results = [
        make_result(
            test="perf_tests/test_language_model.py::test_larger",
            comparisons=(*make_result().comparisons, *others),
            verdict=Verdict.INCONCLUSIVE,
            measured={"name": "weak", "mode": "weak", "strategy": "ddp"},
        )
    ]
    lines = render(summary_table(results)).splitlines()
    assert max(map(len, lines[:-1])) <= 120
