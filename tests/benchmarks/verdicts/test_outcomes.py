"""What is kept of a real run, by results whose times are worked by hand; and the file that keeps it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.quality.campaign import BrokenFile
from benchmarks.quality.steps import Calibration
from benchmarks.verdicts.cells import CELLS
from benchmarks.verdicts.outcomes import Outcome, append, append_calibration, read, told, why_left_out

OUTCOME = Outcome("10%-20s-quiet", 0, "3f2a1c0", "cpu-2c", "2026-01-12T10:00:00+00:00", 40.0, "regressed")


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


def test_what_is_added_is_read_and_a_cut_costs_the_last_run_alone(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    assert read(file).outcomes == ()
    full = replace(
        OUTCOME, number=1, red=["step_time"], change=0.1, programs={"after": {"work": 0.1}}, apart=[0.0, 0.01]
    )
    calibration = Calibration(0.01, 2e-6, {16: 1e-4})
    append(file, OUTCOME)
    append_calibration(file, "cpu-2c", "12ms", calibration)
    append(file, full)
    whole = read(file)
    assert whole.outcomes == (OUTCOME, full)
    assert whole.calibrations == {("cpu-2c", "12ms"): calibration}
    file.write_bytes(file.read_bytes()[:-10])
    assert read(file).outcomes == (OUTCOME,)
    append(file, full)
    assert read(file).outcomes == (OUTCOME, full)
    assert [each.number for each in read(file).of("10%-20s-quiet", "3f2a1c0")] == [0, 1]
    assert read(file).of("10%-20s-quiet", "0000000") == []


def test_another_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text('{"schema": "other"}\n')
    with pytest.raises(BrokenFile, match=r"runs\.jsonl, line 1: not a real run: TypeError"):
        read(file)
