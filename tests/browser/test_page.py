from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from pytest_ddpperf.reports.charts.chart import Axis, ChartPoint, ChartSeries
from pytest_ddpperf.reports.formats.html import html, two_runs_page
from pytest_ddpperf.reports.formats.page import Page, PageRow, html_of
from pytest_ddpperf.reports.formats.trends_page import trends_page
from pytest_ddpperf.reports.two_runs import two_runs
from tests.browser.conftest import Opened
from tests.factories import judged_anew, make_launch
from tests.reports.golden_runs import RUNS
from tests.reports.made import made_chart, make_document
from tests.reports.test_trend import STEP

pytestmark = pytest.mark.browser

Open = Callable[..., Opened]
SCRIPT = "<script>document.title='run'</script>"


@pytest.fixture
def golden(open_page: Open) -> Opened:
    """The golden run of 30 benchmarks, with launches that scatter and memory of ranks."""

    def change(data: Any) -> None:
        for result in data["results"]:
            if result["step_times"]:
                result["step_times"] = [[0.04, 0.05, 0.045], [0.041, 0.06]] * 5
                result["memory_by_rank"] = {"peak_resident": [2e6, 3e6]}

    return open_page(make_document(*RUNS[30].results, change=change))


def texts(found: Any) -> list[str]:
    return [text.strip() for text in found.all_text_contents()]


def open_all(opened: Opened) -> None:
    """Opens every benchmark, scrolls to the end and opens the data of each chart."""
    opened.page.evaluate("for (const entry of document.querySelectorAll('.entry')) entry.open = true")
    for part in opened.page.locator(".part").all():
        part.scroll_into_view_if_needed()
        part.locator(".charts, .block").first.wait_for()
    opened.page.evaluate("for (const data of document.querySelectorAll('figure details')) data.open = true")
    opened.page.wait_for_function("!document.querySelector('figure details:not(:has(table))')")


def test_a_page_asks_for_nothing_and_complains_of_nothing(golden: Opened) -> None:
    open_all(golden)
    assert golden.requests == [golden.file.as_uri()]
    assert golden.complaints == []


def test_each_chart_has_its_data(golden: Opened) -> None:
    open_all(golden)
    charts = json.loads(golden.page.locator("#data").text_content())["charts"]
    drawn = golden.page.evaluate(
        """[...document.querySelectorAll('figure')].map((figure) => ({
            title: figure.querySelector('figcaption').firstChild.textContent,
            kind: figure.dataset.kind,
            rows: figure.querySelectorAll('tbody tr').length,
            marks: figure.querySelectorAll(':scope > svg .mark').length,
            lines: figure.querySelectorAll(':scope > svg .line').length,
            described: figure.querySelector(':scope > svg desc').textContent,
        }))"""
    )
    assert {chart["title"] for chart in charts} == {figure["title"] for figure in drawn}
    points = {sum(len(each["y"]) for each in (*chart["series"], *chart["references"])) for chart in charts}
    assert {figure["rows"] for figure in drawn} == points
    assert all(figure["marks"] or figure["lines"] for figure in drawn)
    assert all("The data are in a table below." in figure["described"] for figure in drawn)
    assert {figure["lines"] for figure in drawn if figure["kind"] == "steps"} == {10}  # one for each launch


def test_a_click_on_a_header_sorts(golden: Opened) -> None:
    header = golden.page.locator("#table th", has_text="step time")
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    place = texts(golden.page.locator("#table thead th")).index(header.inner_text().replace("\n", " "))
    column = golden.page.locator(f"#table tbody tr > :nth-child({place + 1})")
    rising = [float(text.partition(" ")[0]) for text in texts(column) if text != "-"]
    assert rising == sorted(rising)
    assert len(set(rising)) > 10
    unknown = texts(column)[len(rising) :]
    assert unknown == ["-"] * len(unknown)
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    falling = [float(text.partition(" ")[0]) for text in texts(column) if text != "-"]
    assert falling == rising[::-1]
    assert texts(column)[len(rising) :] == unknown  # what is not known is last in both directions


def test_cells_are_sorted_by_the_number_that_they_begin_with(open_page: Open) -> None:
    cells = ("14 same", "-4.0", "-", ">+1000", "+13.2 [+11.9, +14.6]", "4.2e-06", "1,234", "47.3 [46.8, 47.8]")
    rows = tuple(PageRow(title=cell, cells=(str(i), cell), verdict="new") for i, cell in enumerate(cells))
    page = open_page(html_of(Page(title="t", headers=("benchmark", "value"), rows=rows))).page
    page.locator("#table th", has_text="value").locator("button").click()
    order = (1, 5, 4, 0, 7, 3, 6, 2)
    assert texts(page.locator("#table tbody td.number")) == [cells[i] for i in order]


def test_names_and_verdicts_filter(golden: Opened) -> None:
    page = golden.page
    page.fill("#find", "STRATEGIES naive")
    shown = texts(page.locator("#table tbody tr:visible th"))
    assert shown == ["test_step[naive]", "test_strategies_side_by_side naive"]
    assert page.locator(".entry:visible").count() == 2
    assert page.text_content("#shown") == "2 of 30 shown"
    page.fill("#find", "")
    page.uncheck("input[value=regressed]")
    verdicts = set(texts(page.locator("#table tbody tr:visible .verdict")))
    assert not any(verdict.startswith("regressed") for verdict in verdicts)
    assert {"broken", "unchanged"} <= verdicts


def test_all_works_by_keyboard(golden: Opened) -> None:
    page = golden.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the table"
    page.locator("#table thead button").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("#table th").first.get_attribute("aria-sort") == "ascending"
    link = page.locator("#table tbody a", has_text="test_step[naive]")
    link.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.tagName === 'SUMMARY'")
    assert page.evaluate("document.activeElement.textContent").startswith(
        "perf/test_strategies.py::test_step[naive] naive"
    )
    assert page.locator(".entry[open] h4").first.text_content() == "Verdict"
    page.keyboard.press("Enter")
    assert page.locator(".entry[open]").count() == 0


@pytest.mark.parametrize(
    "context",
    [
        {"color_scheme": "light"},
        {"color_scheme": "dark"},
        {"color_scheme": "light", "viewport": {"width": 390, "height": 800}},
    ],
    ids=["light", "dark", "narrow"],
)
def test_axe_finds_no_serious_fault(open_page: Open, context: dict[str, Any]) -> None:
    from axe_playwright_python.sync_playwright import Axe

    opened = open_page(make_document(*RUNS[30].results[:12]), **context)  # a curve and a comparison among them
    opened.page.evaluate("for (const entry of [...document.querySelectorAll('.entry')].slice(0, 3)) entry.open = true")
    for part in opened.page.locator(".part").all():
        part.scroll_into_view_if_needed()
        part.locator(".charts, .block").first.wait_for()
    opened.page.evaluate("document.querySelector('figure details').open = true")
    found = Axe().run(opened.page).response
    assert len(found["passes"]) > 20
    grave = [fault for fault in found["violations"] if fault["impact"] in {"serious", "critical"}]
    assert [(fault["id"], [node["html"] for node in fault["nodes"]][:3]) for fault in grave] == []
    assert opened.page.evaluate("document.body.scrollWidth <= innerWidth")


def test_the_other_pages_work_too(open_page: Open) -> None:
    before, after = make_document(*RUNS[6].results), make_document(*RUNS[6].results)
    both = judged_anew(before, after)
    for text in (two_runs_page(after, both, two_runs(before, after, both)), trends_page([STEP], "step_time")):
        opened = open_page(text)
        open_all(opened)
        assert opened.page.locator("figure > svg .mark").count() > 3
        assert (opened.requests, opened.complaints) == ([opened.file.as_uri()], [])


def test_a_name_that_is_a_script_stays_text(open_page: Open) -> None:
    def change(data: Any) -> None:
        for result in data["results"]:
            result["test"], result["name"] = f"t.py::test_a[{SCRIPT}]", SCRIPT
            result["findings"] = [SCRIPT]
            result["strategy"] = SCRIPT

    opened = open_page(make_document(*RUNS[6].results, change=change))
    open_all(opened)
    assert opened.page.title().startswith("ddpperf: ")
    assert opened.page.locator("script").count() == 2
    assert SCRIPT in opened.page.locator("h3").first.text_content()
    assert SCRIPT in texts(opened.page.locator(".body p, .body li"))
    assert opened.complaints == []


def test_the_button_changes_the_theme(open_page: Open) -> None:
    page = open_page(make_document(*RUNS[6].results), color_scheme="light").page
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    shown = []
    for _ in range(3):
        page.click("#theme")
        shown.append((page.text_content("#theme"), page.evaluate(ground)))
    assert shown == [
        ("Theme: light", "rgb(255, 255, 255)"),
        ("Theme: dark", "rgb(18, 22, 29)"),
        ("Theme: system", "rgb(255, 255, 255)"),
    ]
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(ground) == "rgb(18, 22, 29)"


def test_a_printed_page_has_nothing_to_click(open_page: Open) -> None:
    page = open_page(make_document(*RUNS[6].results)).page
    page.emulate_media(media="print")
    assert not any(map(page.is_visible, ("#theme", "#filter", "nav")))
    assert page.is_visible("#table")


def test_a_chart_of_200_000_points_is_drawn_although_another_chart_fails(
    open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_ddpperf.reports.formats.page._OF_CHART", 10**6)
    broken, large = (
        made_chart(
            ChartSeries("launch 1", tuple(ChartPoint(i, 1 + i % 7, 0.5, high) for i in range(points))),
            kind=kind,
            y=Axis(name="step time", unit="s"),
        )
        for kind, points, high in (("broken", 3, 3.5), ("large", 200_000, 90.0))
    )
    sections = {"Steps": (broken, ("beside it",), large), "Last": (("end",),)}
    row = PageRow(title="a", cells=("a",), verdict="new", sections=sections)
    text = html_of(Page(title="t", headers=("benchmark",), rows=(row,)))
    assert text.count('"y":[1,2,3]') == 1
    opened = open_page(text.replace('"y":[1,2,3]', '"y":null'))
    opened.page.evaluate("document.querySelector('.entry').open = true")
    opened.page.locator(".entry h4").nth(1).wait_for()
    assert texts(opened.page.locator(".entry h4")) == ["Steps", "Last"]
    assert opened.page.locator("figure[data-kind=large] > svg .line").count() == 1
    assert "launch 1: 200000 points, 1 to 7 s" in opened.page.text_content("figure[data-kind=large] > svg desc")
    shown = texts(opened.page.locator(".entry p"))
    cut = "An interval that ends at the edge continues beyond the edge."
    assert shown[1:] == ["beside it", "bars and bands: 95 % CI", cut, "end"]
    assert shown[0].startswith("This part cannot be shown: ")


def test_a_page_of_500_benchmarks_with_20_launches_is_shown_at_once(open_page: Open) -> None:
    """Their steps take 0.9 to 1.3 times as long as at first, by golden ratios: what looks like chance and is none."""
    measured = [one for one in RUNS[30].results if one.measurement.launches]
    results = []
    for i, one in enumerate(measured[i % len(measured)] for i in range(500)):
        step = one["step_time"].series.value
        steps = iter([step * (0.9 + 0.4 * (0.618034 * (i + j) % 1)) for j in range(800)])
        launches = tuple(make_launch(tuple(islice(steps, 40)), round=number) for number in range(20))
        timed = replace(one.measurement, launches=launches)
        results.append(replace(one, test=f"{one.test.partition('[')[0]}_{i // 10}[{i}]", measurement=timed))
    text = html(make_document(*results))
    assert len(text.encode()) < 10e6
    took = "performance.getEntriesByType('navigation')[0].loadEventEnd / 1000"
    page = open_page(text).page
    assert page.evaluate(took) < 2 or open_page(text).page.evaluate(took) < 2  # others use the machine, too
    assert page.text_content("#shown") == "500 of 500 shown"
    page.evaluate("document.querySelector('.entry').open = true")
    assert page.locator(".entry figure[data-kind=steps] > svg .line").count() == 20
