from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from pytest_ddpperf.judge.quality import trained
from pytest_ddpperf.records.verbs import LOSS, Convergence, Curve, FinalValue, Standing
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.breakdown import phase_table
from pytest_ddpperf.reports.documents.entries import PredictionEntry
from pytest_ddpperf.reports.formats.html import html
from pytest_ddpperf.reports.formats.page import Page, PageRow, html_of
from pytest_ddpperf.reports.phrases import findings
from pytest_ddpperf.reports.remarks import reasons
from tests.factories import make_interval, make_launch
from tests.reports.formats.samples import BROKEN, HOSTILE, REGRESSED, STEP, UNCHANGED
from tests.reports.formats.test_files import ADVICE
from tests.reports.golden_runs import RUNS, result
from tests.reports.made import make_comparison, make_document, make_result

ESCAPED = HOSTILE.replace("\n", "\\n")


class Read(HTMLParser):
    """A page as its elements and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data: str) -> None:
        self.text.setdefault(self._open, []).append(data)


def data_of(text: str) -> Any:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    data = json.loads(found)
    for part in (*data["sections"], *(part for entry in data["entries"] for part in entry)):
        part["blocks"] = [data["blocks"][number] for number in part["blocks"]]
    return data


def section(data: Any, entry: int, title: str) -> list[Any]:
    """The blocks of a section of an entry."""
    return next(each["blocks"] for each in data["entries"][entry] if each["title"] == title)


@pytest.mark.parametrize("verdict", [Verdict.BROKEN, Verdict.IMPROVED])
def test_less_work_of_a_broken_benchmark_is_no_improvement(verdict: Verdict) -> None:
    fewer = make_comparison("collective_calls", 0.0, Verdict.IMPROVED, baseline=1.0, change=-1.0)
    entries = data_of(html(make_document(make_result(verdict=verdict, comparisons=(fewer,)))))["entries"]
    assert ("improved" in str(entries)) is (verdict is Verdict.IMPROVED)


def test_verdicts_come_first() -> None:
    text = html(make_document(UNCHANGED, REGRESSED))
    page = Read(text)
    assert (
        page.text["h1"][0] == "ddpperf: PASSED: 1 regressed (does not fail), 1 passed | against the baseline of 3f2a1c0"
    )
    rows = [attributes for tag, attributes in page.elements if tag == "tr" and "data-verdict" in attributes]
    assert [row["data-verdict"] for row in rows] == ["regressed", "unchanged"]
    chips = [attributes["value"] for tag, attributes in page.elements if tag == "input" and "value" in attributes]
    assert chips == ["regressed", "unchanged"]
    assert text.index("<h1>") < text.index('id="table"') < text.index('id="entry-0"')


def test_each_benchmark_has_sections_with_all_its_facts() -> None:
    data = data_of(html(make_document(REGRESSED)))
    titles = [each["title"] for each in data["entries"][0]]
    assert titles == ["Verdict", "Notes", "Change", "Distribution over launches", "Counts", "Environment", "Settings"]
    assert section(data, 0, "Verdict") == [{"lines": reasons(REGRESSED)}]
    assert section(data, 0, "Notes") == [{"lines": list(findings(REGRESSED))}]
    (changes,) = section(data, 0, "Change")
    assert changes["table"]["rows"][0] == [
        *("step_time", "regressed", "41.8 ms -> 47.3 ms", "+13.2 % [95 % CI +11.9 .. +14.6]", "3 %", "2.1 %")
    ]
    counts = section(data, 0, "Counts")[0]["table"]
    assert counts["rows"] == [["collective_calls", "regressed", "2 -> 8"]]
    assert counts["notes"] == ["collective_calls: all_reduce 2 -> 8 calls per step (+6)"]
    (steps,) = section(data, 0, "Distribution over launches")
    chart = data["charts"][steps["chart"]]
    assert (chart["kind"], chart["y"]["unit"]) == ("steps", "ms")
    assert chart["series"][7] == {"name": "launch 8", "x": 1, "y": [50, 50, 50]}
    assert ["host", "runner-1"] in section(data, 0, "Environment")[0]["facts"]
    assert ["steps of a launch", "60, after 5 of warm-up"] in section(data, 0, "Settings")[0]["facts"]


def test_settings_say_whether_launches_were_interleaved() -> None:
    results = [make_result(comparisons=(), measured={"turns": turns}) for turns in (False, True)]
    data = data_of(html(make_document(*results)))
    interleaved = [dict(section(data, each, "Settings")[0]["facts"]).get("interleaved with others") for each in (0, 1)]
    assert sorted(interleaved, key=str) == [None, "yes"]


def test_phases_are_in_the_table_of_the_terminal_for_each_and_for_all() -> None:
    results = [result(f"t.py::test_a[{name}]", Verdict.NEW, 0.1) for name in ("x", "y")]
    data = data_of(html(make_document(*results)))
    (own,) = section(data, 0, "Phases")
    (both,) = next(part["blocks"] for part in data["sections"] if part["title"] == "Phases")
    assert both["table"]["caption"] == phase_table(results).title == own["table"]["caption"]
    assert [row[1:] for row in both["table"]["rows"]] == own["table"]["rows"] * 2


def test_predictions_and_advice_are_together() -> None:
    predicted = PredictionEntry(test=UNCHANGED.test, name="ddp", gain=None, **STEP)
    document = make_document(UNCHANGED)
    data = data_of(html(msgspec.structs.replace(document, predictions=(predicted,), advice=(ADVICE,))))
    shared = {each["title"]: each["blocks"] for each in data["sections"]}
    (predictions,) = shared["Predictions"]
    assert predictions["table"]["rows"] == [["test_b ddp", "64", "40.0 [30.0, 50.0]", "25", "75 [60, 90]"]]
    (advice,) = shared["Advice"]
    assert advice["table"]["caption"] == "test_a: variants on 64 ranks, pcie-ethernet100, computing of h100"
    assert [(row[0], row[-1]) for row in advice["table"]["rows"]] == [
        ("fsdp2", "best"),
        ("ddp", "does not fit: its tensors take 64 GiB of 32 GiB"),
    ]


def test_trainings_have_their_curves_and_their_ranking() -> None:
    ways = tuple(trained(name, [Curve(steps=(10, 20), values={LOSS: (2.0, 1.0)})]) for name in "ab")
    worse = FinalValue(value=0.25, interval=make_interval(0.2, 0.3), samples=(0.25,))
    kept = (Standing(name="b", quantity=LOSS, worse=worse, apart=0.25, allowed=None, tolerance=0.02),)
    found = Convergence(test="t.py::test_e", world_size=2, metric=LOSS, strategies=ways, kept=kept)
    data = data_of(html(make_document(convergences=[found])))
    (part,) = data["sections"]
    chart, standing = part["blocks"]
    assert (part["title"], data["charts"][chart["chart"]]["subject"]) == ("Convergence", "t.py::test_e loss on 2 ranks")
    assert standing["table"]["rows"] == [
        ["test_e a", "2", "20", "1", "1.00", "-", "-", "first"],
        ["test_e b", "2", "20", "1", "1.00", "+25.0 [+20.0, +30.0]", "2", "worse"],
    ]


def test_names_are_text() -> None:
    text = html(make_document(BROKEN, interrupted=HOSTILE))
    tags = [tag for tag, _ in Read(text).elements]
    assert tags.count("script") == 2  # the data and our own
    assert "<script>|" not in text
    assert ESCAPED in "".join(Read(text).text["h3"])
    (reason,) = section(data_of(text), 0, "Verdict")[0]["lines"]
    assert ESCAPED in reason


def test_the_page_needs_no_network() -> None:
    page = Read(html(make_document(REGRESSED)))
    addresses = [value or "" for _, found in page.elements for name, value in found.items() if name in {"href", "src"}]
    assert [address for address in addresses if not address.startswith(("#", "data:"))] == []
    assert not re.search(r"url\((?!#)|@import", "".join(page.text["style"]))
    (policy,) = [
        found["content"] for tag, found in page.elements if found.get("http-equiv") == "Content-Security-Policy"
    ]
    assert str(policy).startswith("default-src 'none'")


def test_a_run_without_benchmarks_says_so() -> None:
    text = html(make_document())
    assert "<h1>ddpperf: no benchmark was judged</h1>" in text
    assert "There is nothing to show." in text


def test_each_chart_is_on_the_page_once() -> None:
    text = html(make_document(*RUNS[30].results))
    headers = [header.strip() for header in Read(text).text["button"] if header.strip()]
    assert headers[:6] == ["Theme: system", "benchmark", "verdict", "change", "at most", "step time"]
    data = data_of(text)
    blocks = [block for each in (*data["entries"], data["sections"]) for part in each for block in part["blocks"]]
    used = [block["chart"] for block in blocks if "chart" in block]
    assert sorted(used) == list(range(len(data["charts"])))
    assert all(series["y"] for chart in data["charts"] for series in chart["series"])


def test_outliers_are_cut_off_and_the_scale_is_common() -> None:
    changes = (0.1, -0.1, *[0.0] * 16, 5.0)
    results = [
        result(f"t.py::test_a[{i}]", Verdict.OK, 0.1, change, step_time={"half": 0.1})
        for i, change in enumerate(changes)
    ]
    drawn = re.findall(r'class="span" d="M([\d.]+) 8H([\d.]+)"/><circle cx="([\d.]+)"', html(make_document(*results)))
    # Half of the intervals end at 0.1 or before, and five times as much is 42 pixels.
    assert drawn[0] == ("46.0", "62.8", "54.4")
    assert drawn[1] == ("29.2", "46.0", "37.6")
    assert drawn[2] == ("37.6", "54.4", "46.0")
    assert drawn[-1] == ("88.0", "89.0", "88.0")


def test_lines_are_broken_behind_the_marks_of_names() -> None:
    text = html(make_document(result("t.py::test_a_b[x-y]", Verdict.NEW, 0.1, measured={"name": "<b>&"})))
    assert '<a href="#entry-0">test_<wbr>a_<wbr>b[<wbr>x-<wbr>y] &lt;b&gt;&amp; ddp<wbr></a>' in text


def test_the_overview_marks_a_change_that_is_no_quotient_of_its_two_values() -> None:
    step = make_comparison("step_time", 0.0328, Verdict.REGRESSED, baseline=0.0206, change=0.576, paired=True)
    page = Read(html(make_document(make_result(comparisons=(step,)))))
    assert "+57.6*" in map(str.strip, page.text["td"])
    assert "* mean change of the rounds; both values are means of all launches" in page.text["li"]


def test_verdicts_without_a_change_have_none_drawn() -> None:
    assert 'class="drawn"' not in html(make_document(result("t.py::test_a", Verdict.NEW, 0.1)))


LINES = ((0.1,) * 8, (0.1, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1, 0.4))


@pytest.mark.parametrize(
    ("limit", "most", "launches", "shown", "every"),
    [
        ("_POINTS", 20, LINES * 3, [300, 100, 400], 3),  # of a page: 3 points for each of six lines
        ("_OF_CHART", 12, LINES, [200, 300, 100, 400], 2),  # of a chart: 6 points for each of two lines
    ],
)
def test_a_page_has_no_more_points_than_a_browser_draws(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int, launches: Any, *, shown: list[int], every: int
) -> None:
    monkeypatch.setattr(f"pytest_ddpperf.reports.formats.page.{limit}", most)
    monkeypatch.setattr("pytest_ddpperf.reports.formats.page._FEWEST", 2)
    timed = result("t.py::test_a", Verdict.NEW, 0.1, measured={"launches": tuple(map(make_launch, launches))})
    (chart,) = [chart for chart in data_of(html(make_document(timed)))["charts"] if chart["kind"] == "steps"]
    assert chart["series"][1]["y"] == shown
    assert chart["note"].endswith(f"of every {every} points the largest is shown")


def test_text_with_a_closing_script_tag_stays_data() -> None:
    page = Page(
        title="</script>",
        headers=("name",),
        rows=(PageRow(title='"><b>', cells=("</td><script>alert(1)</script>",), verdict="new"),),
        sections={"</script>": (("</script><!--",),)},
    )
    text = html_of(page)
    assert text.count("</script>") == 2
    assert data_of(text)["sections"][0] == {"title": "</script>", "blocks": [{"lines": ["</script><!--"]}]}
