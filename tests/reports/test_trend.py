from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import msgspec
import pytest

from pytest_ddpperf.baselines.history.database import Benchmark, Entry, HistoryRun
from pytest_ddpperf.baselines.history.trend import Trend, trends
from pytest_ddpperf.reports.table import render
from pytest_ddpperf.reports.trend import TrendsFile, change_texts, changes_text, trend_table, trends_text
from tests.factories import make_interval
from tests.shell import shown

BENCHMARK = Benchmark(
    test="t.py::test_a",
    name="ddp",
    strategy="ddp",
    mode=None,
    recipe="{}",
    world_size=2,
    environment_key="cpu-a-2c",
    metric="step_time",
    unit="s",
    better="lower",
    scale="ratio",
)
COUNTED = replace(BENCHMARK, metric="collective_calls", unit="1", scale="exact")
EFFICIENCY = replace(BENCHMARK, metric="scaling_efficiency", unit="1", better="higher", scale="difference")


def run(number: int) -> HistoryRun:
    day = f"2026-10-{1 + number:02}T00:00:00+00:00"
    return HistoryRun(date=day, commit=f"{number:x}" * 40, commit_date=day, branch="main", dirty=False)


def trend(values: list[float], benchmark: Benchmark = BENCHMARK) -> Trend:
    """A value for each of as many commits: 0000000, 1111111, ..."""
    entries = (
        Entry(
            benchmark=benchmark,
            run=run(i),
            value=value,
            interval=make_interval(value * 0.99, value * 1.01),
            min_tolerance=0.0,
            gated=True,
        )
        for i, value in enumerate(values)
    )
    (made,) = trends(entries)
    return made


LOSS = replace(BENCHMARK, metric="final_loss", unit="1", scale="difference")
PLACE = "between 3333333 (2026-10-04) and 4444444 (2026-10-05)"
STEP = trend([0.04] * 4 + [0.05] * 4)


def test_a_table_has_a_line_for_each_commit() -> None:
    lines = render(trend_table(STEP)).splitlines()
    assert lines[:3] == [
        "t.py::test_a: ddp",
        "cpu-a-2c",
        "step_time, lower is better: 8 runs, 2026-10-01 to 2026-10-08; change: compared with the level before",
    ]
    rows = [line.split() for line in lines[6:14]]
    assert rows[0] == ["0000000", "2026-10-01", "40.0", "[39.6,", "40.4]", "-", "o" + "." * 31]
    assert rows[4] == ["4444444", "2026-10-05", "50.0", "[49.5,", "50.5]", "+25.0", "." * 31 + "o"]
    assert lines[-1].startswith(
        "between 3333333 (2026-10-04) and 4444444 (2026-10-05): step_time +25.0 % [95 % CI +25.0"
    )


def test_counts_are_shown_to_the_last_digit() -> None:
    """In MiB both would be 27.0."""
    nbytes = replace(BENCHMARK, metric="collective_bytes", unit="B", scale="exact")
    table = trend_table(trend([28_311_552.0, 28_311_556.0], nbytes))
    assert table.headers[2:] == ("collective_bytes\nB", "change\nB", "28,311,552 .. 28,311,556 B")
    assert [row[2].split()[0] for row in table.rows] == ["28,311,552", "28,311,556"]
    assert [row[3] for row in table.rows] == ["-", "+4"]
    assert trend_table(trend([0.25, 0.25], COUNTED)).rows[1][2:4] == ("0.25 [0.247, 0.253]", "0")


def test_differences_have_a_separate_unit() -> None:
    """Seconds that are subtracted: 8 ms, then 2 ms more, of which the header tells."""
    exposed = replace(BENCHMARK, metric="exposed_communication", scale="difference")
    table = trend_table(trend([0.008] * 4 + [0.010] * 4, exposed))
    assert table.headers[2:4] == ("exposed_communication\nms", "change\nms")
    assert [row[3] for row in table.rows] == ["-", "0", "0", "0", "+2.00", "0", "0", "0"]


def test_a_small_loss_is_shown_with_four_digits() -> None:
    table = trend_table(trend([0.007277, 0.007345], LOSS))
    assert [row[2].split()[0] for row in table.rows] == ["0.007277", "0.007345"]
    assert table.headers[-1] == "0.007277 .. 0.007345"
    still = trend_table(trend([0.1, 0.1 + 1.7e-17], LOSS))
    assert [row[3] for row in still.rows] == ["-", "0"]


def test_an_end_of_an_interval_that_is_only_rounding_is_shown_as_zero() -> None:
    loss = trend([0.3] * 6 + [0.31] * 6, LOSS)
    (change,) = loss.changes
    (sentence,) = change_texts(replace(loss, changes=(replace(change, low=1.7e-20, high=0.02),)))
    assert "final_loss +0.010 [95 % CI 0 .. +0.020], worse" in sentence


def test_a_loss_says_after_how_many_steps_it_is() -> None:
    alone, interleaved = (replace(LOSS, interleaved=flag) for flag in (False, True))
    assert render(trend_table(trend([0.5] * 8, interleaved))).startswith("t.py::test_a: ddp, interleaved\n")
    assert "side by side" not in render(trend_table(trend([0.5] * 8, alone)))
    heads = [render(trend_table(trend([0.5] * 8, replace(LOSS, steps=steps)))).splitlines()[0] for steps in (65, None)]
    assert heads == ["t.py::test_a: ddp, after 65 steps", "t.py::test_a: ddp"]


def test_the_level_of_a_trend_is_drawn_next_to_the_values() -> None:
    noisy = trend([0.040, 0.042, 0.040, 0.042, 0.040, 0.042])
    (*_, first) = render(trend_table(noisy)).splitlines()[6].split()
    assert first == "o" + "." * 14 + "|" + "." * 16  # between the two, in logarithms
    assert change_texts(noisy) == ("no change; a change in the newest 2 commits would not show yet",)


def test_changes_of_a_trend_are_described_in_sentences() -> None:
    assert change_texts(STEP) == (f"{PLACE}: step_time +25.0 % [95 % CI +25.0 .. +25.0], worse",)
    assert change_texts(trend([0.9] * 4 + [0.8] * 4, EFFICIENCY)) == (
        f"{PLACE}: scaling_efficiency -0.100 [95 % CI -0.100 .. -0.100], worse",
    )
    assert change_texts(trend([5, 9], COUNTED)) == (
        "between 0000000 (2026-10-01) and 1111111 (2026-10-02): collective_calls 5 -> 9, worse",
    )
    assert change_texts(trend([0.04] * 5)) == ("fewer than 6 commits: no change can be distinguished from noise",)
    assert change_texts(trend([5, 5], COUNTED)) == ("no change",)


def test_a_creep_says_how_slow_it_is() -> None:
    (text,) = change_texts(trend([0.04 * 0.99**i for i in range(11)]))
    assert text.startswith("creep from 0000000 (2026-10-01) to aaaaaaa (2026-10-11): step_time -9.6 % [95 % CI -9.6 ")
    assert text.endswith(", better, by about -0.96 % a commit")


def test_the_docs_show_a_step_and_a_creep() -> None:
    test, key = "perf_tests/test_strategies.py::test_step[ddp]", "cpu-amd-epyc-2c-t1-gloo-w2-torch2.13"
    values = [0.04] * 6 + [0.0424] * 6 + [0.0424 * 1.009**i for i in range(1, 12)]
    made = trend(values, replace(BENCHMARK, test=test, environment_key=key))
    changes = tuple(replace(one, low=one.size - 0.006, high=one.size + 0.006) for one in made.changes)
    text = changes_text([replace(made, changes=changes)], "step_time")
    assert shown("over-time.md", "creep") == text.partition("\n\n")[0] + "\n"


def test_a_step_whose_place_is_not_sure_says_so() -> None:
    change = replace(STEP.changes[0], earliest=2, latest=5)
    (text,) = change_texts(replace(STEP, changes=(change,)))
    assert text.endswith("; with 95 % confidence between 2222222 (2026-10-03) and 5555555 (2026-10-06)")


def test_a_trend_table_has_notes_on_branches_changes_and_outliers() -> None:
    points = list(STEP.points)
    points[1] = replace(points[1], run=replace(run(1), branch="topic", dirty=True), runs=2, interval=None)
    points[2] = replace(points[2], run=replace(run(2), commit=None, branch=None))
    table = trend_table(replace(STEP, points=tuple(points), outliers=(1,)))
    assert table.headers[2] == "runs"
    assert table.rows[1][0] == "1111111+changes"
    assert table.rows[1][-1].startswith("x.")
    assert table.rows[2][0] == "-"
    assert table.notes[1:] == (
        "values far from their neighbours (marked x) count less in the fitted level: 1111111+changes (2026-10-02)",
        "runs of several branches (a detached HEAD, main, topic); --branch selects one",
    )


def test_of_all_tests_the_changed_ones_come_worst_first() -> None:
    better = trend([0.05] * 4 + [0.02] * 4, replace(BENCHMARK, test="t.py::test_better"))
    worse = trend([0.04] * 4 + [0.08] * 4, replace(BENCHMARK, test="t.py::test_worse"))
    still = trend([0.04] * 8, replace(BENCHMARK, test="t.py::test_still"))
    short = trend([0.04] * 2, replace(BENCHMARK, test="t.py::test_short"))
    text = changes_text([better, STEP, still, worse, short], "step_time")
    blocks = text.split("\n\n")
    assert [block.split("\n")[0] for block in blocks[:-1]] == [
        "t.py::test_worse: ddp",
        "t.py::test_a: ddp",
        "t.py::test_better: ddp",
    ]
    assert blocks[-1] == (
        "step_time changed in 3 of 5 benchmarks; a change in the newest 2 commits would not show yet; "
        "1 of them has fewer than 6 commits, which is too few"
    )


def test_the_json_keeps_to_its_schema() -> None:
    counted, creep = trend([5, 9], COUNTED), trend([0.04 * 0.99**i for i in range(11)])
    loss = trend([0.5] * 8, replace(LOSS, steps=65))
    document = json.loads(trends_text([STEP, counted, creep, loss], "step_time"))
    jsonschema.validate(document, msgspec.json.schema(TrendsFile))
    first = document["trends"][0]
    assert [point["value"] for point in first["points"]] == [0.04] * 4 + [0.05] * 4
    (change,) = first["changes"]
    assert (change["kind"], change["size"]) == ("step", pytest.approx(0.25))
    assert [first["points"][change[place]]["run"]["commit"] for place in ("before", "after")] == ["3" * 40, "4" * 40]
    assert document["trends"][1]["changes"][0]["evidence"] is None
    assert [one["benchmark"]["steps"] for one in document["trends"]] == [None, None, None, 65]
