"""What is kept of a real run, by results whose times are worked by hand; the file that keeps it, and the table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.project import BrokenFile
from benchmarks.verdicts.cells import CELLS, SUITES, Goal
from benchmarks.verdicts.outcomes import (
    Outcome,
    append,
    goal_lines,
    notable_lines,
    others_of,
    read,
    report,
    table,
    tally,
    told,
    why_left_out,
)

RUN = {"number": 0, "tree": "3f2a1c0", "machine": "cpu-2c", "began": "2026-01-12T10:00:00+00:00", "seconds": 40.0}
OUTCOME = Outcome(cell="10%-20s-quiet", verdict="regressed", **RUN)  # type: ignore[arg-type]


def result(**changed: Any) -> dict[str, Any]:
    """Two launches of two steps of 10 and 30 ms, and of a reference whose steps take 10 ms; 64 samples a rank."""
    step = {"value": 0.02, "change": 0.98, "bound": 1.2, "verdict": "regressed", "gated": True, "note": "every step"}
    health = [{"cpu": {"others": others, "steal": 0.02}} for others in (0.01, 0.03)]
    return {
        "verdict": "regressed",
        "metrics": {
            "step_time": {**step, "baseline_samples": [0.01, 0.01]},
            "throughput": {"value": 6400.0, "gated": True, "verdict": "regressed", "note": ""},
            "cpu_time": {"value": 1.0, "gated": False, "verdict": "regressed"},
        },
        "step_times": [[0.01, 0.03], [0.01, 0.03]],
        "seconds": 12.0,
        "health": health,
        "findings": ["rank 1 hangs"],
        **changed,
    }


def test_reported_values_are_compared_with_the_step_times_of_the_result() -> None:
    """A mean of 20 ms is twice the reference's; 128 samples in 20 ms are 6400 a second."""
    found = told(result())
    assert found["true"] == pytest.approx(1.0)
    assert (found["red"], found["said"]) == (["step_time", "throughput"], "step_time every step; throughput")
    assert found["others"] == pytest.approx(0.04)
    assert found["steps"] == 2
    assert found["apart"] == pytest.approx([0.0, 0.0])
    wrong = result()
    wrong["metrics"]["throughput"]["value"] = 12800.0
    assert told(wrong)["apart"] == pytest.approx([0.0, 1.0])


def test_launches_without_the_cpu_time_of_other_processes_are_omitted_from_its_mean() -> None:
    """Known are 30 % and 2 % of a hypervisor; of the others only the hypervisor's 2 % are known."""
    unknown = {"cpu": {"others": None, "steal": 0.02}}
    assert others_of(result(health=[unknown, None, {"cpu": None}])) is None
    known = {"cpu": {"others": 0.3, "steal": 0.02}}
    assert others_of(result(health=[unknown, unknown, known])) == pytest.approx(0.32)


def test_of_a_run_without_times_the_findings_are_kept() -> None:
    assert told(result(verdict="broken", step_times=[])) == {"verdict": "broken", "said": "rank 1 hangs"}


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
        ("suite-same", {"others": 0.11}, "not quiet: others used 11% of the cores while it was compared"),
        ("pauses-busy", {"true": 0.099}, "its mean step is +9.9%: it takes +10%"),
        ("pauses-busy", {"true": 0.1}, ""),
        ("pauses-busy", {"verdict": "none"}, ""),
    ],
)
def test_runs_on_another_machine_than_the_cell_says_do_not_count(cell: str, fields: dict[str, Any], why: str) -> None:
    assert why_left_out({**CELLS, **SUITES}[cell], replace(OUTCOME, cell=cell, **fields)) == why


def test_outcomes_that_were_appended_are_read_back(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    assert read(file) == []
    full = replace(OUTCOME, number=1, red=["step_time"], change=0.1, programs={"after": {"work": 0.1}})
    append(file, [OUTCOME])
    append(file, [full])
    assert read(file) == [OUTCOME, full]
    file.write_text('{"schema": "other"}\n')
    with pytest.raises(BrokenFile, match=r"runs\.jsonl, line 1: not a real run: TypeError"):
        read(file)


def suite(number: int, verdicts: str, **fields: Any) -> list[Outcome]:
    """A run of the example suite whose benchmarks have these verdicts."""
    names = {"o": "ok", "u": "unchanged", "i": "inconclusive", "b": "broken", "r": "regressed"}
    run = replace(OUTCOME, cell="suite-10%", number=number, took=319.0, **fields)
    return [replace(run, test=f"test_{place}", verdict=names[letter]) for place, letter in enumerate(verdicts)]


def test_goals_count_benchmarks_planted_slowdowns_or_runs() -> None:
    outcomes = [*suite(0, "ouib"), *suite(0, "rb", planted=True), *suite(1, "oooo")]
    assert tally(Goal("green", 0.95, at_least=True), outcomes) == (6, 8)
    assert tally(Goal("red", 0.0, at_least=False), outcomes) == (1, 8)
    assert tally(Goal("red", 0.95, at_least=True, planted=True), outcomes) == (1, 2)
    in_time = [tally(Goal("in time", 1.0, at_least=True, seconds=seconds), outcomes) for seconds in (320.0, 318.0)]
    assert in_time == [(2, 2), (0, 2)]


def test_a_row_counts_runs_and_benchmarks() -> None:
    (row,) = table([*suite(0, "ouib"), *suite(0, "rb", planted=True), *suite(1, "oooo", left_out="not quiet")]).rows
    assert row[:12] == ("suite-10%", "1", "20", "1", "4", "1", "1", "1", "1", "0", "25.0 % [1 .. 81]", "1 of 2")


def test_goals_name_missed_runs_and_the_number_of_runs_that_remain() -> None:
    outcomes = [replace(OUTCOME, cell="50%-20s-quiet", number=number, apart=(0.0, 0.02)) for number in range(2)]
    outcomes.append(replace(outcomes[0], number=2, verdict="ok", change=0.01, true=0.5, apart=(0.0,)))
    assert goal_lines(outcomes) == [
        "goal, 50%-20s-quiet: red always: 2 of 3, 66.7 % [9 .. 99], missed, 27 runs to come",
        "step time and throughput lie within 1% of the result's own step times in 1 of 3; 2.00% at most",
    ]
    assert notable_lines(outcomes)[1:] == ["  50%-20s-quiet #2, 2026-01-12T10:00:00+00:00: ok, truly +50.0% "]


def test_trees_and_machines_have_separate_tables() -> None:
    other = replace(OUTCOME, tree="0000000")
    assert report([OUTCOME, other]).count("tree ") == 2
    assert "tree 0000000 on cpu-2c" in report([OUTCOME, other], "0000000")
    assert report([]) == "there are no runs yet"
