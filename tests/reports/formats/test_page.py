from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf.reports.charts.chart import Axis, ChartPoint, ChartSeries
from pytest_ddpperf.reports.formats.page import chart_data
from tests.reports.made import made_chart


def drawn(unit: str, *points: ChartPoint) -> dict[str, Any]:
    chart = made_chart(ChartSeries("ddp", points), x=Axis(name="steps", unit=unit))
    (series,) = chart_data(chart)["series"]
    return series  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("unit", "xs", "expected"),
    [
        ("", (100_000, 123_456, 1_234_567), [100_000, 123_456, 1_234_567]),
        ("", (123_456, 123_457, 123_458), 123_456),  # the first, where whole numbers follow it
        ("", (0.5, 12.3456789, 13), [0.5, 12.3456789, 13]),
        ("s", (0.0011, 0.0123456789, 0.1234565), [1.1, 12.3456789, 123.4565]),  # in ms, without what division leaves
    ],
)
def test_places_keep_their_digits_and_values_have_five(unit: str, xs: tuple[float, ...], expected: object) -> None:
    series = drawn(unit, *(ChartPoint(x, 1.2345678, 1.1111111, 1234567) for x in xs))
    assert series == {"name": "ddp", "x": expected, "y": [1.2346] * 3, "low": [1.1111] * 3, "high": [1234600] * 3}
