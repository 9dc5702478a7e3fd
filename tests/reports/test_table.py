from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.summary import summary_table
from pytest_ddpperf.reports.table import Table, render, verdict_painter

TIMES = Table(
    headers=("benchmark", "time\nms [95 % CI]", "memory\nMiB", "change\n% [95 % CI]", "verdict"),
    rows=(
        ("test_a naive", "47.3 [46.8, 47.8]", "412", "+13.2 [+11.9, +14.6]", "regressed"),
        ("test_a ddp accumulation_steps=4 no_sync=false", "147 [99.8, 210]", "-", "-", "new"),
    ),
    notes=("a remark that is too long for its line by far, unlike its first 39 %",),
    title="some machine",
    narrower=("time", "memory", "change"),
    legend={"memory": "of a rank", "new": "without a baseline"},
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
        "",
        "x: y",
    ]


def test_numbers_in_the_last_column_stand_right_too() -> None:
    table = Table(("test", "share\n%"), (("a", "4.56"), ("b", "31.5")), right=0)
    assert render(table).splitlines()[3:] == ["a      4.56", "b      31.5"]


def test_values_stand_in_line_before_intervals_of_any_length() -> None:
    assert render(TIMES).splitlines()[1:6] == [
        "benchmark                                                   time  memory                change  verdict",
        "                                                    ms [95 % CI]     MiB           % [95 % CI]",
        "---------------------------------------------  -----------------  ------  --------------------  ---------",
        "test_a naive                                   47.3 [46.8, 47.8]     412  +13.2 [+11.9, +14.6]  regressed",
        "test_a ddp accumulation_steps=4 no_sync=false   147 [99.8, 210]        -      -                 new",
    ]


def test_where_room_is_short_names_are_cut_in_the_middle() -> None:
    assert render(TIMES, 90).splitlines()[4:6] == [
        "test_a naive                    47.3 [46.8, 47.8]     412  +13.2 [+11.9, +14.6]  regressed",
        "test_a dd...ps=4 no_sync=false   147 [99.8, 210]        -      -                 new",
    ]


def test_where_it_is_shorter_intervals_then_columns_are_left_out() -> None:
    lines = render(TIMES, 72).splitlines()
    assert lines[1:6] == [
        "benchmark                  time  memory                change  verdict",
        "                             ms     MiB           % [95 % CI]",
        "-------------------------  ----  ------  --------------------  ---------",
        "test_a naive               47.3     412  +13.2 [+11.9, +14.6]  regressed",
        "test_a ...4 no_sync=false   147       -      -                 new",
    ]
    assert lines[-1] == "not shown: intervals of time; 84 columns have room for all"
    assert render(TIMES, 50).splitlines()[4] == "test_a naive               47.3   +13.2  regressed"


def test_a_legend_tells_of_the_columns_that_are_shown() -> None:
    assert "memory: of a rank\nnew: without a baseline" in render(TIMES)
    assert "of a rank" not in render(TIMES, 50)
    assert "not shown: memory" in render(TIMES, 50)


def test_where_no_table_fits_every_row_is_a_paragraph() -> None:
    assert render(TIMES, 30).splitlines()[:8] == [
        "some machine",
        "test_a naive: regressed",
        "  time 47.3 [46.8, 47.8] ms,",
        "  memory 412 MiB, change +13.2",
        "   [+11.9, +14.6] %",
        "test_a ddp",
        "accumulation_steps=4",
        "no_sync=false: new",
    ]


def test_a_paragraph_without_a_verdict_is_headed_by_its_names() -> None:
    table = Table(("a", "b\ns", "c"), (("x" * 20, "1.00", "y" * 10), ("y", "2.00", "-")), right=0)
    assert render(table, 20).splitlines() == ["x" * 20, "  b 1.00 s,", f"  c {'y' * 10}", "y", "  b 2.00 s"]


def test_no_line_ends_between_a_number_and_its_percent() -> None:
    assert render(Table((), (), ("a b c d e f g h i j 39 %",)), 23).splitlines() == ["a b c d e f g h i j", "  39 %"]
    assert render(Table((), (), (f"  a {'b' * 10} {'c' * 10} d",)), 20).splitlines() == [
        f"  a {'b' * 10}",
        f"    {'c' * 10} d",
    ]


@pytest.mark.parametrize("width", [None, 95, 70, 30])
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
