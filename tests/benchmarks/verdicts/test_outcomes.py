"""What is kept of a real run, by results whose times are worked by hand; and the file that keeps it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.quality.project import BrokenFile
from benchmarks.quality.steps import Calibration
from benchmarks.verdicts.cells import CELLS, SUITES, Goal
from benchmarks.verdicts.outcomes import (
    Outcome,
    SuiteOutcome,
    append,
    append_calibration,
    others_of,
    read,
    suite_told,
    told,
    why_left_out,
)

OUTCOME = Outcome("10%-20s-quiet", 0, "3f2a1c0", "cpu-2c", "2026-01-12T10:00:00+00:00", 40.0, verdict="regressed")
SUITE = SuiteOutcome("suite-10%", 0, "3f2a1c0", "cpu-2c", "2026-01-12T10:00:00+00:00", 330.0)


def result(**changed: Any) -> dict[str, Any]:
    """Two launches of two steps of 10 and 30 ms, and of a reference whose steps take 10 ms; 64 samples a rank."""
    step = {
        "value": 0.02,
        "change": 0.98,
        "bound": 1.2,
        "mde": 0.1,
        "verdict": "regressed",
        "gated": True,
        "paired": True,
        "baseline_samples": [0.01, 0.01],
    }
    health = [{"cpu": {"others": others, "steal": 0.02}} for others in (0.01, 0.03)]
    return {
        "verdict": "regressed",
        "metrics": {
            "step_time": step,
            "throughput": {"value": 6400.0, "gated": True, "verdict": "regressed"},
            "cpu_time": {"value": 1.0, "gated": False, "verdict": "regressed"},
        },
        "step_times": [[0.01, 0.03], [0.01, 0.03]],
        "launches": 2,
        "seconds": 12.0,
        "health": health,
        "findings": ["2 of 4 steps are on average 3.00 times as long as the median step and take 75.0 % of the time"],
        **changed,
    }


def test_what_is_told_is_held_against_the_result_s_own_step_times() -> None:
    """A mean of 20 ms is twice the reference's; 128 samples in 20 ms are 6400 a second."""
    found = told(result())
    assert found["true"] == pytest.approx(1.0)
    assert found["apart"] == pytest.approx([0.0, 0.0])
    assert found["red"] == ["step_time", "throughput"]
    assert found["others"] == pytest.approx(0.04)
    assert (found["steps"], found["launches"], found["paired"], found["long"]) == (2, 2, True, True)
    capped = result()
    capped["metrics"]["throughput"]["value"] = 12800.0
    assert told(capped)["apart"] == pytest.approx([0.0, 1.0])
    assert replace(OUTCOME, apart=(0.009,)).agrees
    assert not replace(OUTCOME, apart=(0.0, 1.0)).agrees


def test_launches_that_do_not_know_what_others_took_say_nothing_of_it() -> None:
    """Known are 30 % and 2 % of a hypervisor; of the others only the hypervisor's 2 % are known."""
    unknown = {"cpu": {"others": None, "steal": 0.02}}
    assert others_of(result(health=[unknown, None, {"cpu": None}])) is None
    known = {"cpu": {"others": 0.3, "steal": 0.02}}
    assert others_of(result(health=[unknown, unknown, known])) == pytest.approx(0.32)


def test_of_a_run_without_times_the_findings_are_kept() -> None:
    found = told(result(verdict="broken", step_times=[], findings=["rank 1 hangs"]))
    assert found == {"verdict": "broken", "said": "rank 1 hangs"}


@pytest.mark.parametrize(
    ("cell", "fields", "why"),
    [
        ("10%-20s-quiet", {"others": 0.09}, ""),
        ("10%-20s-quiet", {"others": 0.11}, "not quiet: others used 11% of the cores while it was compared"),
        ("10%-20s-busy", {"others": 0.7}, ""),
        (
            "stored-50%-busy",
            {"others": 0.7, "others_saved": 0.3},
            "not quiet: others used 30% of the cores while it was saved",
        ),
        ("stored-10%-busy-quiet", {"others": 0.0, "others_saved": 0.7}, ""),
        ("pauses-busy", {"true": 0.099}, "its mean step is +9.9%: it takes +10%"),
        ("pauses-busy", {"true": 0.1}, ""),
        ("pauses-busy", {"verdict": "none"}, ""),
    ],
)
def test_runs_on_another_machine_than_the_cell_says_do_not_count(cell: str, fields: dict[str, Any], why: str) -> None:
    assert why_left_out(CELLS[cell], replace(OUTCOME, cell=cell, **fields)) == why


def benchmark(test: str, verdict: str, **changed: Any) -> dict[str, Any]:
    return result(test=f"perf_tests/{test}", name="ddp", world_size=2, verdict=verdict, **changed)


def test_of_a_suite_planted_tests_are_told_apart() -> None:
    red = benchmark("test_digits.py::test_digits", "regressed")
    red["metrics"] = {"peak_allocated": {"verdict": "regressed", "gated": True, "change": 0.25, "note": "held"}}
    small, green = benchmark("test_lm.py::test_small[ddp]", "regressed"), benchmark("test_scaling.py::test_weak", "ok")
    found = suite_told([red, small, green], ["test_small[ddp]", "test_larger"])
    assert found == {
        "verdicts": {
            "perf_tests/test_digits.py::test_digits ddp w2": "regressed",
            "perf_tests/test_scaling.py::test_weak ddp w2": "ok",
        },
        "planted": {"test_small[ddp]": "regressed", "test_larger": "none"},
        "true": {"test_small[ddp]": pytest.approx(1.0)},
        "said": "perf_tests/test_digits.py::test_digits ddp: peak_allocated +0.25 held",
    }


def test_why_a_broken_benchmark_of_a_suite_is_red_is_told_by_its_findings() -> None:
    broken = benchmark("test_digits.py::test_digits", "broken", metrics={}, step_times=[], findings=["rank 1 hangs"])
    assert suite_told([broken])["said"] == "perf_tests/test_digits.py::test_digits ddp: rank 1 hangs"


def test_a_suite_reaches_goals_by_benchmark_by_test_and_by_its_seconds() -> None:
    verdicts = {"a": "ok", "b": "unchanged", "c": "inconclusive", "d": "broken", "e": "new", "f": "improved"}
    run = replace(SUITE, verdicts=verdicts, planted={"slow": "regressed", "late": "broken"}, took=319.0)
    assert (run.green, run.red, run.open) == (["a", "b", "f"], ["d"], ["c", "e"])
    assert run.summary == "1 red, 3 green, 2 open, 1 of 2 planted found"
    assert run.tally(Goal("green", 0.95, at_least=True)) == (3, 6)
    assert run.tally(Goal("red", 0.0, at_least=False)) == (1, 6)
    found = {test: run.tally(Goal("red", 0.95, at_least=True, test=test)) for test in ("slow", "late", "unknown")}
    assert found == {"slow": (1, 1), "late": (0, 1), "unknown": (0, 1)}
    in_time = [run.tally(Goal("in time", 1.0, at_least=True, seconds=seconds)) for seconds in (320.0, 318.0)]
    assert in_time == [(1, 1), (0, 1)]


def test_a_suite_without_results_reaches_no_goal_but_that_of_red() -> None:
    reached = {goal.what: SUITE.tally(goal) for goal in SUITES["suite-same"].goals}
    assert reached == {"red": (0, 1), "green": (0, 1), "ended within 320 s": (0, 1)}


@pytest.mark.parametrize(
    ("cell", "fields", "why"),
    [
        ("suite-same", {"others": 0.09}, ""),
        ("suite-same", {"others": 0.11}, "not quiet: others used 11% of the cores while it was compared"),
        ("suite-stored", {"others_saved": 0.2}, "not quiet: others used 20% of the cores while it was saved"),
    ],
)
def test_suites_count_on_a_quiet_machine_alone(cell: str, fields: dict[str, Any], why: str) -> None:
    assert why_left_out(SUITES[cell], replace(SUITE, cell=cell, **fields)) == why


def test_what_is_added_is_read_and_a_cut_costs_the_last_run_alone(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    assert read(file).outcomes == ()
    full = replace(
        OUTCOME, number=1, red=["step_time"], change=0.1, programs={"after": {"work": 0.1}}, apart=[0.0, 0.01]
    )
    calibration = Calibration(0.01, 2e-6)
    append(file, OUTCOME)
    append_calibration(file, "cpu-2c", "12ms", calibration)
    suite = replace(
        SUITE, verdicts={"a": "ok"}, planted={"b": "none"}, true={"b": 0.125}, took=310.5, others=0.02, said="b: slower"
    )
    append(file, suite)
    append(file, full)
    whole = read(file)
    assert whole.outcomes == (OUTCOME, suite, full)
    assert whole.calibrations == {("cpu-2c", "12ms"): calibration}
    file.write_bytes(file.read_bytes()[:-10])
    assert read(file).outcomes == (OUTCOME, suite)
    append(file, full)
    assert read(file).outcomes == (OUTCOME, suite, full)
    assert [each.number for each in read(file).of("10%-20s-quiet", "3f2a1c0")] == [0, 1]
    assert read(file).of("10%-20s-quiet", "0000000") == []


def test_another_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text('{"schema": "other"}\n')
    with pytest.raises(BrokenFile, match=r"runs\.jsonl, line 1: not a real run: TypeError"):
        read(file)
