from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.charts.chart import Axis, ChartPoint, ChartSeries
from pytest_ddpperf.reports.formats.html import two_runs_page
from pytest_ddpperf.reports.formats.page import chart_data
from pytest_ddpperf.reports.formats.trends_page import trends_page
from pytest_ddpperf.reports.trend import change_texts
from pytest_ddpperf.reports.two_runs import two_runs
from tests.factories import judged_anew
from tests.reports.formats.test_html import data_of, section
from tests.reports.golden_runs import metric, result, strategy
from tests.reports.made import made_chart, make_document
from tests.reports.test_trend import BENCHMARK, COUNTED, STEP, trend


def rows_of(text: str) -> list[list[str]]:
    """The cells of the overview as text, without what is drawn."""
    body = text.partition('<table id="table">')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    cells = [
        re.findall(r"<t[hd](?! class=\"drawn\")[^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in body.split("</tr>")[:-1]
    ]
    return [[re.sub("<[^>]*>", "", cell).replace("&gt;", ">") for cell in row] for row in cells]


def measured(step: float, calls: float, *samples: float) -> Result:
    counted = metric("collective_calls", calls, Verdict.NEW, exact=True)
    timed = {"samples": samples}
    return result("t.py::test_a", Verdict.NEW, step, None, (counted,), measured=strategy("ddp"), step_time=timed)


def test_two_runs_are_shown_side_by_side() -> None:
    before = make_document(measured(0.1, 2.0, 0.099, 0.1, 0.101))
    after = make_document(measured(0.2, 4.0, 0.198, 0.2, 0.202), result("t.py::test_b", Verdict.NEW, 0.1))
    both = judged_anew(before, after)
    table = two_runs(before, after, both)
    text = two_runs_page(after, both, table)
    ((name, verdict, change, *_),) = rows_of(text)
    assert (name, verdict, change.partition(" ")[0]) == ("test_a ddp", "inconclusive", "+100.0")
    assert ("test_a ddp", "collective_calls", "2", "4", "+100.0 % [counted]") in table.rows
    assert "only in the second run: test_b ddp" in text
    assert text.count('class="drawn"') == 1

    data = data_of(text)
    assert data["sections"][0]["blocks"][0]["table"]["rows"] == [list(row) for row in table.rows]
    chart = data["charts"][section(data, 0, "Distribution over launches")[0]["chart"]]
    assert [(each["name"], each["y"]) for each in chart["series"]] == [
        ("this run", [198, 200, 202]),
        ("baseline", [99, 100, 101]),
    ]


def test_two_runs_without_a_common_benchmark_say_so() -> None:
    before, after = make_document(), make_document(result("t.py::test_b", Verdict.NEW, 0.1))
    text = two_runs_page(after, [], two_runs(before, after, []))
    assert "no benchmark is in both runs" in text
    assert "There is nothing to show." in text


def test_trends_are_shown_with_the_worst_first() -> None:
    calm = trend([0.04] * 8, replace(BENCHMARK, name="calm"))
    better = trend([0.05] * 4 + [0.04] * 4, replace(BENCHMARK, name="better"))
    text = trends_page([calm, better, STEP], "step_time")
    assert "<h1>ddpperf: step_time changed in 2 of 3 benchmarks</h1>" in text
    assert rows_of(text) == [
        ["t.py::test_a: ddp", "worse", "cpu-a-2c", "8", "40.0", "50.0"],
        ["t.py::test_a: better (ddp)", "better", "cpu-a-2c", "8", "50.0", "40.0"],
        ["t.py::test_a: calm (ddp)", "no change", "cpu-a-2c", "8", "40.0", "40.0"],
    ]
    data = data_of(text)
    changes, chart, commits = data["entries"][0]
    assert changes["blocks"] == [{"lines": list(change_texts(STEP))}]
    assert data["charts"][chart["blocks"][0]["chart"]]["series"][0]["y"] == [40, 40, 40, 40, 50, 50, 50, 50]
    assert [row[0] for row in commits["blocks"][0]["table"]["rows"]] == [f"{i}" * 7 for i in range(8)]
    assert commits["blocks"][0]["table"]["headers"][-1] == "change %"


def test_values_of_trends_have_one_unit_by_which_they_are_sorted() -> None:
    short = trend([0.00095] * 8, replace(BENCHMARK, name="short"))
    long = trend([1.2] * 8, replace(BENCHMARK, name="long"))
    text = trends_page([short, long], "step_time")
    assert "first <small>ms</small>" in text
    assert [row[-1] for row in rows_of(text)] == ["0.950", "1200"]
    counted = trends_page([trend([123456.0] * 8, COUNTED)], "collective_calls")
    assert [row[-1] for row in rows_of(counted)] == ["123,456"]


def test_a_short_trend_is_not_called_without_change() -> None:
    text = trends_page([trend([0.04] * 5), trend([0.04] * 6, replace(BENCHMARK, name="longer"))], "step_time")
    assert [row[1] for row in rows_of(text)] == ["too few commits", "no change"]


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
    points = ChartSeries("ddp", tuple(ChartPoint(x, 1.2345678, 1.1111111, 1234567) for x in xs))
    (series,) = chart_data(made_chart(points, x=Axis(name="steps", unit=unit)))["series"]
    assert series == {"name": "ddp", "x": expected, "y": [1.2346] * 3, "low": [1.1111] * 3, "high": [1234600] * 3}
