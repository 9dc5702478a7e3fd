"""What real runs come to, in tables: counted by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.quality.project import SUITE
from benchmarks.quality.runs import Run, Runs
from benchmarks.quality.runs_report import (
    changes_table,
    missed_lines,
    noise_table,
    red_lines,
    report,
    rounds_of,
    suite_table,
    widths_table,
)
from benchmarks.quality.steps import UNCHANGED
from benchmarks.quality.verdicts import CONFIRMED
from pytest_ddpperf.reports.table import render


def metric(verdict: str, samples: Sequence[float] = (), base: Sequence[float] = (), **fields: Any) -> dict[str, Any]:
    filled = {
        "gated": True,
        "scale": "ratio",
        "mde": 0.08,
        "bound": 0.06,
        "change": 0.01,
        "change_interval": None,
        "note": "",
    }
    return {**filled, "verdict": verdict, "samples": [*samples], "baseline_samples": [*base], **fields}


def run(change: str, verdict: str, *, seconds: float = 40.0, finding: str = "", **metrics: Any) -> Run:
    result = {
        "test": "perf/test_training.py::test_step",
        "verdict": verdict,
        "metrics": metrics or ({} if verdict == "broken" else {"step_time": metric(verdict)}),
        "launches": 9,
        "seconds": seconds,
        "findings": [finding] if finding else [],
    }
    length = "" if change == SUITE else "12ms"
    return Run(change, length, "2026-01-12T10:00:00+00:00", seconds + 5, (result,))


RED = run(
    UNCHANGED,
    "regressed",
    seconds=60.0,
    finding=f"step_time looked worse in 7 launches; {CONFIRMED}",
    step_time=metric("regressed", change=0.055, change_interval={"low": 0.022, "high": 0.089, "confidence": 0.95}),
)


def test_verdicts_are_counted_by_change() -> None:
    """Medians: of 20, 40 and 60 s of measuring, and 5 s more for all of pytest; of changes of 1, 1 and 5.5 %."""
    runs = [run(UNCHANGED, "unchanged", seconds=20.0), run(UNCHANGED, "inconclusive"), RED]
    (unchanged,) = changes_table(runs).rows
    # runs, regressed, broken, inconclusive, unchanged, ok, improved, suspected, found
    assert unchanged[:10] == (UNCHANGED, "3", "1", "0", "1", "1", "0", "0", "1", "-")
    assert unchanged[10:] == ("+1.0%", "8.0%", "40", "45", "")


def test_how_often_a_change_is_found_and_by_what() -> None:
    calls = metric("regressed", scale="exact")
    found = run("all-reduce", "regressed", step_time=metric("inconclusive"), collective_calls=calls)
    (row,) = changes_table([found, run("all-reduce", "inconclusive")]).rows
    assert row[:10] == ("all-reduce", "2", "1", "0", "1", "0", "0", "0", "0", "50.0 % [1 .. 99]")
    assert row[-1] == "collective_calls 1"


def test_each_false_alarm_is_shown() -> None:
    grown = metric("regressed", scale="difference", baseline=0.0, value=7e4, note="leaks")
    (text,) = red_lines([run(UNCHANGED, "unchanged"), RED, run(UNCHANGED, "regressed", memory_growth=grown)])
    assert text.splitlines() == [
        "unchanged code was red in 66.7 % [9 .. 99] of its benchmarks",
        "  2026-01-12T10:00:00+00:00 perf/test_training.py::test_step: step_time +5.5% [+2.2% .. +8.9%]",
        "  2026-01-12T10:00:00+00:00 perf/test_training.py::test_step: memory_growth leaks (0 -> 70000)",
    ]
    assert red_lines([]) == []


def test_intervals_that_miss_what_is_unchanged_are_counted() -> None:
    """One of two, and none of one; a metric without an interval does not count."""
    around = metric("unchanged", change_interval={"low": -0.01, "high": 0.02, "confidence": 0.95})
    runs = [run(UNCHANGED, "unchanged", step_time=around, cpu_time=around), RED, run(UNCHANGED, "unchanged")]
    (text,) = missed_lines(runs)
    assert text == (
        "the 95 % interval of what unchanged code changed leaves out 0: "
        "step_time in 50.0 % [1 .. 99], cpu_time in 0.0 % [0 .. 98]"
    )
    assert text in report(Runs("cpu-2c", "3f2a1c0", {}, tuple(runs)))
    assert missed_lines([run(UNCHANGED, "unchanged")]) == []


def wide(change: str, verdict: str, low: float | None, high: float | None, by: float) -> Run:
    interval = {"low": low, "high": high, "confidence": 0.95}
    return run(change, verdict, step_time=metric(verdict, change=by, change_interval=interval))


def test_how_wide_the_printed_intervals_are() -> None:
    """10, 30 and infinitely many points: 30 in the middle, two of three above 20."""
    runs = [
        wide("+10%", "regressed", 0.45, 0.55, 0.5),
        wide("+10%", "inconclusive", 0.40, 0.70, 0.52),
        wide("+10%", "regressed", 0.30, None, 0.6),
        wide(UNCHANGED, "regressed", 0.01, 0.03, 0.02),
        run(UNCHANGED, "broken"),
    ]
    unchanged, half = widths_table(runs).rows
    assert half == (
        "+10%",
        "3",
        "2",
        "1",
        "0",
        "0",
        "0",
        "66.7 % [9 .. 99]",
        "+52.0%",
        "+6.0%",
        "30.0",
        "67%",
        "40",
        "45",
    )
    # Broken is red as well.
    assert unchanged[:8] == (UNCHANGED, "2", "2", "0", "0", "0", "0", "100.0 % [16 .. 100]")
    assert unchanged[8:] == ("+2.0%", "+6.0%", "2.0", "0%", "40", "45")


def test_an_interval_without_an_end_leaves_out_nothing_there() -> None:
    (text,) = missed_lines([wide(UNCHANGED, "unchanged", None, 0.1, 0.0)])
    assert text.endswith(" changed leaves out 0: step_time in 0.0 % [0 .. 98]")


def test_runs_under_other_terms_have_tables_of_their_own() -> None:
    usual = wide("+10%", "regressed", 0.05, 0.15, 0.1)
    loaded = replace(usual, max_time=20.0, load=2)
    other = replace(usual, length="60ms", budget="5min")
    text = report(Runs("cpu-2c", "3f2a1c0", {}, (usual, loaded, loaded, replace(loaded, load=1), other)))
    titles = [line for line in text.splitlines() if line.startswith("a step of")]
    assert [title.partition(";")[0] for title in titles] == [
        "a step of 12ms against another commit",
        "a step of 12ms",
        "a step of 12ms, max_time 20 s, beside 1 busy process",
        "a step of 12ms, max_time 20 s, beside 2 busy processes",
        "a step of 60ms against another commit",
        "a step of 60ms, budget 5min",
    ]
    rows = [line.split()[1] for line in text.splitlines() if line.startswith("+10%")]
    assert rows == ["1", "1", "1", "2", "1", "1"]


def test_a_table_of_widths_is_narrow() -> None:
    many = [replace(wide("all-reduce undone", "inconclusive", -1.2, 1.2, -0.1234), max_time=120.0, load=16)] * 600
    text = render(widths_table(many))
    assert max(map(len, text.splitlines())) <= 125


def test_a_suite_is_red_once_however_many_of_its_benchmarks_are() -> None:
    suite = run(SUITE, "regressed", step_time=RED.results[0]["metrics"]["step_time"])
    twice = replace(
        suite, results=(*suite.results, *run(SUITE, "broken", finding="rank 1 hangs").results), seconds=400.0
    )
    (row,) = suite_table([twice, run(SUITE, "new", seconds=395.0)]).rows
    assert row == ("2", "1.5", "1", "1", "0", "0", "0", "0", "1", "50.0 % [1 .. 99]", "+6.0%", "400")
    assert "rank 1 hangs" in red_lines([twice])[0]


def test_the_noise_of_rounds_is_that_of_their_differences() -> None:
    """Differences of +0.1 and -0.1 in turn: each neighbour is the opposite; 1 / sqrt(3) for three pairs of them."""
    alternating = [math.exp(sign * 0.1) for sign in (1, -1, 1, -1)]
    noisy = run(UNCHANGED, "inconclusive", step_time=metric("inconclusive", alternating, [1.0] * 4))
    assert rounds_of(noisy.results[0], "step_time") == pytest.approx([0.1, -0.1, 0.1, -0.1])
    table = noise_table([noisy, RED])
    assert table is not None
    assert table.rows == (("step_time", "4", "10.0%", "0.0 % [0 .. 60]", "-1.00 +- 0.58"),)
    assert noise_table([RED]) is None


def test_rounds_that_have_lost_a_side_tell_nothing() -> None:
    lame = run(UNCHANGED, "inconclusive", step_time=metric("inconclusive", [1.0, 1.0], [1.0]))
    assert rounds_of(lame.results[0], "step_time") == rounds_of(lame.results[0], "cpu_time") == []


def test_a_report_has_all_of_it() -> None:
    runs = (run(UNCHANGED, "unchanged"), RED, run("+10%", "regressed"), run(SUITE, "inconclusive"))
    text = report(Runs("cpu-2c", "3f2a1c0", {}, runs))
    assert text.startswith("4 runs since 2026-01-12T10:00:00+00:00 on cpu-2c, plugin's tree 3f2a1c0\n")
    assert "a step of 12ms against another commit" in text
    assert "perf_tests against its own commit" in text
    assert "unchanged code was red in 50.0 % [1 .. 99] of its benchmarks" in text
    assert "unchanged code was red in 0.0 % [0 .. 98] of its benchmarks" in text
