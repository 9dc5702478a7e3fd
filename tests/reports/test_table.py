from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.summary import summary_table
from pytest_ddpperf.reports.table import Table, render, verdict_painter

TIMES = Table(
    headers=("benchmark", "variant", "time\nms", "change\n%", "verdict"),
    rows=(
        ("test_a", "naive", "47.3 [46.8, 47.8]", "+13.2 [+11.9, +14.6]", "regressed"),
        ("test_a", "ddp accumulation_steps=4 no_sync=false", "147 [99.8, 210]", "-", "new"),
    ),
    notes=("a remark that is too long for its line by far, unlike its first 39 %",),
    title="some machine; [intervals]: 95 % CI",
    left=2,
)


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


def test_numbers_in_the_last_column_stand_right_too() -> None:
    table = Table(("test", "share\n%"), (("a", "4.56"), ("b", "31.5")), right=0)
    assert render(table).splitlines()[3:] == ["a      4.56", "b      31.5"]


def test_values_stand_in_line_before_intervals_of_any_length() -> None:
    assert render(TIMES).splitlines()[1:6] == [
        "benchmark  variant                                              time                change  verdict",
        "                                                                  ms                     %",
        "---------  --------------------------------------  -----------------  --------------------  ---------",
        "test_a     naive                                   47.3 [46.8, 47.8]  +13.2 [+11.9, +14.6]  regressed",
        "test_a     ddp accumulation_steps=4 no_sync=false   147 [99.8, 210]       -                 new",
    ]


def test_where_room_is_short_variants_stand_below_their_benchmark() -> None:
    assert render(TIMES, 95).splitlines()[1:7] == [
        "benchmark                                              time                change  verdict",
        "                                                         ms                     %",
        "----------------------------------------  -----------------  --------------------  ---------",
        "test_a",
        "  naive                                   47.3 [46.8, 47.8]  +13.2 [+11.9, +14.6]  regressed",
        "  ddp accumulation_steps=4 no_sync=false   147 [99.8, 210]       -                 new",
    ]


def test_where_it_is_shorter_names_are_folded_then_intervals_are_left_out_but_the_last() -> None:
    assert render(TIMES, 80).splitlines()[4:8] == [
        "test_a",
        "  naive                     47.3 [46.8, 47.8]  +13.2 [+11.9, +14.6]  regressed",
        "  ddp accumulation_steps=4",
        "  no_sync=false              147 [99.8, 210]       -                 new",
    ]
    assert render(TIMES, 70).splitlines()[1:8] == [
        "benchmark                   time                change  verdict",
        "                              ms                     %",
        "--------------------------  ----  --------------------  ---------",
        "test_a",
        "  naive                     47.3  +13.2 [+11.9, +14.6]  regressed",
        "  ddp accumulation_steps=4",
        "  no_sync=false              147      -                 new",
    ]


def test_where_no_table_fits_every_row_is_a_paragraph() -> None:
    assert render(TIMES, 44).splitlines() == [
        "some machine; [intervals]: 95 % CI",
        "test_a naive: regressed",
        "  time 47.3 [46.8, 47.8] ms,",
        "  change +13.2 [+11.9, +14.6] %",
        "test_a ddp accumulation_steps=4 no_sync=false: new",
        "  time 147 [99.8, 210] ms",
        "a remark that is too long for its line by",
        "  far, unlike its first 39 %",
    ]


def test_a_paragraph_without_a_verdict_is_headed_by_its_names() -> None:
    table = Table(("a", "b\ns"), (("x" * 20, "1.00"), ("y", "2.00")), right=0)
    assert render(table, 12).splitlines() == ["x" * 20, "  b 1.00 s", "y", "  b 2.00 s"]


def test_no_line_ends_between_a_number_and_its_percent() -> None:
    assert render(Table((), (), ("a b c 39 %",)), 9).splitlines() == ["a b c", "  39 %"]
    assert render(Table((), (), ("  a b c d",)), 7).splitlines() == ["  a b c", "    d"]


@pytest.mark.parametrize("width", [None, 95, 70, 44])
def test_colours_change_nothing_else(width: int | None) -> None:
    def markup(text: str, **colours: bool) -> str:
        (colour,) = colours
        return f"<{colour}>{text}</{colour}>"

    painted = render(TIMES, width, verdict_painter(markup))
    assert painted.count("<red>regressed</red>") == 1
    assert painted.replace("<red>", "").replace("</red>", "") == render(TIMES, width)


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
    table = summary_table(results)
    lines = render(table).splitlines()
    assert max(map(len, lines)) <= 120
    assert render(table, 120).splitlines() == lines
