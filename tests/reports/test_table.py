from __future__ import annotations

import pytest

from pytest_ddpperf.reports.table import Column, Quantity, Table, render, table_of
from tests.factories import make_interval

TIMES = Table(
    headers=("benchmark", "time\nms [95 % CI]", "memory\nMiB", "change\n% [95 % CI]", "verdict"),
    rows=(
        ("test_a naive", "47.3 [46.8, 47.8]", "412", "+13.2 [+11.9, +14.6]", "regressed"),
        ("test_a ddp accumulation_steps=4 no_sync=false", "147 [99.8, 210]", "-", "-", "new"),
    ),
    notes=("a remark that is too long for its line by far, unlike its first 39 %",),
    title="some machine",
    legend={"memory": "of a rank", "new": "without a baseline"},
)


def test_if_no_table_fits_every_row_is_a_paragraph() -> None:
    assert render(TIMES, 35).splitlines()[:8] == [
        "some machine",
        "test_a naive",
        "    time 47.3 [46.8, 47.8] ms,",
        "    memory 412 MiB,",
        "    change +13.2 [+11.9, +14.6] %,",
        "    verdict regressed",
        "test_a ddp accumulation_steps=4",
        "  no_sync=false",
    ]


def test_a_wide_character_takes_two_columns() -> None:
    table = Table(("test", "time"), (("\u901f\u5ea6\u901f", "1.50"), ("abcdef", "12.5")), right=0)
    assert render(table).splitlines()[1:] == ["------  ----", "\u901f\u5ea6\u901f  1.50", "abcdef  12.5"]
    assert render(Table((), (), ("\u901f" * 15,)), 20).splitlines() == ["\u901f" * 10, "  " + "\u901f" * 5]


def test_no_line_ends_between_a_number_and_its_percent() -> None:
    assert render(Table((), (), ("a b c d e f g h i j 39 %",)), 23).splitlines() == ["a b c d e f g h i j", "  39 %"]
    assert render(Table((), (), (f"  a {'b' * 10} {'c' * 10} d",)), 20).splitlines() == [
        f"  a {'b' * 10}",
        f"    {'c' * 10} d",
    ]


@pytest.mark.parametrize("width", [None, 95, 70, 30])
def test_a_red_row_is_red_as_a_whole_and_colours_change_nothing_else(width: int | None) -> None:
    painted = render(TIMES, width, lambda text, colour: f"<{colour}>{text}</{colour}>")
    assert painted.replace("<red>", "").replace("</red>", "") == render(TIMES, width)
    reds = [line for line in painted.splitlines() if line.startswith("<red>")]
    assert reds[0].startswith("<red>test_a naive")
    assert reds[-1].endswith("regressed</red>")
    assert not any("accumulation" in line for line in reds)


def test_a_table_without_rows_is_its_notes() -> None:
    assert render(Table(("a", "b"), (), ("nothing",))) == "nothing"


def test_quantities_of_one_unit_read_well_together() -> None:
    table = table_of(
        [0.5, 0.25],
        {
            "step": Quantity(value=lambda each: each, unit="s"),
            "half": Quantity(value=lambda each: each / 2, unit="s"),
            "share": Quantity(value=lambda each: each, unit="%"),
        },
    )
    assert table.headers == ("step\nms", "half\nms", "share\n%")
    assert table.rows == (("500", "250", "50"), ("250", "125", "25"))


def test_a_column_with_intervals_shows_their_confidence_and_an_empty_column_is_omitted() -> None:
    ends = make_interval(0.4, 0.6)
    columns: dict[str, Column[float]] = {
        "step": Quantity(value=lambda each: each, unit="s", interval=lambda _: ends),
        "text": Quantity(value=lambda each: each, unit="1", text=lambda _, number: f"about {number(1.0)}"),
        "none": Quantity(value=lambda _: None, unit="B"),
    }
    table = table_of([0.5], columns, every=False)
    assert table.headers == ("step\nms [95 % CI]", "text")
    assert table.rows == (("500 [400, 600]", "about 1.00"),)


@pytest.mark.parametrize("width", [None, 20])
def test_a_header_writes_nothing_but_text_to_a_terminal(width: int | None) -> None:
    text = render(Table(headers=("name", "time\n\x1b]0;owned\x07"), rows=(("a", "1"),)), width)
    assert "\x1b" not in text
    assert "\\x1b]0;owned\\x07" in text
