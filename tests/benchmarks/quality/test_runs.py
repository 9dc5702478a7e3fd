"""Real runs survive their file, and are never counted with those of other rules; they take turns by weight."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.quality import runs
from benchmarks.quality.campaign import BrokenFile
from benchmarks.quality.project import BASE, CHANGES, SUITE, RunError, check_out, make_project
from benchmarks.quality.runs import (
    KEPT,
    Run,
    Runs,
    Terms,
    code_version,
    in_turn,
    joined,
    read,
    require_same,
    run_change,
    write,
)
from benchmarks.quality.runs_report import report, rounds_of
from benchmarks.quality.steps import Calibration
from pytest_ddpperf.errors import SettingError

CALIBRATION = Calibration(step=0.012, product=2e-6, reduces={16: 1e-4})
RUN = Run("+10%", "12ms", "2026-01-12T10:00:00+00:00", 41.5, ({"verdict": "regressed"},))
SHORT = Terms("4ms")
RUNS = Runs("cpu-2c", "3f2a1c0", {"12ms": CALIBRATION}, (RUN, replace(RUN, change=SUITE, length="")))


def test_files_of_one_machine_are_reported_together() -> None:
    later = replace(RUNS, code="9d8c7b6", runs=(replace(RUN, seconds=50.0),))
    assert joined([RUNS]) == RUNS
    together = joined([RUNS, later, RUNS])
    assert (together.code, together.runs) == ("3f2a1c0, 9d8c7b6", (*RUNS.runs, *later.runs, *RUNS.runs))
    with pytest.raises(SettingError, match=r"^--data: files of several machines \(cpu-2c, cpu-4c\): give those of one"):
        joined([RUNS, replace(RUNS, environment="cpu-4c")])


def test_runs_are_read_as_they_were_written(tmp_path: Path) -> None:
    loaded = replace(RUN, length="60ms", max_time=20.0, load=2)
    for some in (RUNS, replace(RUNS, runs=(loaded,))):
        write(some, tmp_path / "runs.gz")
        assert read(tmp_path / "runs.gz") == some
    assert [path.name for path in tmp_path.iterdir()] == ["runs.gz"]


HEADER = b'{"schema": "pytest-ddpperf/real-runs/1"}'


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"no gzip", id="no gzip"),
        pytest.param(b"", id="empty"),
        pytest.param(gzip.compress(b"{}" * 99)[:-12], id="cut off"),
        pytest.param(gzip.compress(b"[1]"), id="a list"),
        pytest.param(gzip.compress(b'{"schema": "other/1"}'), id="another schema"),
        pytest.param(gzip.compress(b"{"), id="half"),
        pytest.param(gzip.compress(HEADER), id="nothing but a header"),
    ],
)
def test_another_file_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "runs.gz"
    file.write_bytes(content)
    with pytest.raises(BrokenFile, match=r"runs\.gz: not a file of real runs"):
        read(file)


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (replace(RUNS, environment="cpu-8c"), "another machine (cpu-8c, here cpu-2c): give another file"),
        (replace(RUNS, code="0000000"), "another version of pytest_ddpperf (0000000, here 3f2a1c0): give another file"),
    ],
)
def test_runs_by_other_rules_or_of_another_machine_are_kept_apart(there: Runs, words: str) -> None:
    require_same(Path("runs.gz"), RUNS, RUNS)
    with pytest.raises(SettingError, match=re.escape(f"--data runs.gz is of {words}")):
        require_same(Path("runs.gz"), there, RUNS)


def test_the_version_is_the_tree_of_the_package_as_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    monkeypatch.setattr(runs, "PACKAGE", "src")
    make_project(tmp_path, "12ms", CALIBRATION)
    version = code_version()
    assert re.fullmatch("[0-9a-f]{7,}", version)
    check_out(tmp_path, BASE)
    assert code_version() != version
    (tmp_path / "src" / "training.py").touch()
    (tmp_path / "src" / "more.py").touch()
    with pytest.raises(SettingError, match="src has changes: commit them"):
        code_version()


def test_a_round_has_every_change_as_often_as_its_weight_says() -> None:
    weights = Counter({name: change.weight for name, change in CHANGES.items()})
    draw = in_turn(list(CHANGES), "0")
    first, second = (list(islice(draw, sum(weights.values()))) for _ in range(2))
    assert Counter(first) == Counter(second) == weights
    assert first != second
    assert list(islice(in_turn([SUITE], "0"), 2)) == [SUITE, SUITE]


def test_options_of_pytest_are_those_of_the_terms() -> None:
    assert SHORT.options == ()
    both = replace(SHORT, max_time=20.0, budget="5min")
    assert both.options == ("--ddpperf-max-time=20", "--ddpperf-budget=5min")


@pytest.mark.slow
def test_a_real_run_finds_what_is_counted_and_keeps_both_sides_of_each_round(tmp_path: Path) -> None:
    project = tmp_path / "project"
    make_project(project, "4ms", CALIBRATION)
    few = ("--ddpperf-launches=2",)
    run = run_change(project, CHANGES["all-reduce"], replace(SHORT, max_time=4.0, load=1), few)
    assert (run.length, run.max_time, run.load) == ("4ms", 4.0, 1)
    (result,) = run.results
    assert result["verdict"] == "regressed"
    assert result["metrics"]["collective_calls"]["verdict"] == "regressed"
    assert set(result) == set(KEPT)
    assert len(rounds_of(result, "step_time")) == result["launches"]
    text = report(replace(RUNS, runs=(run,)))
    assert re.search(r"^all-reduce +1 +1 +0 +0 +0 ", text, re.MULTILINE)


@pytest.mark.slow
def test_a_run_without_a_verdict_is_no_run(tmp_path: Path) -> None:
    project = tmp_path / "project"
    make_project(project, "4ms", CALIBRATION)
    with pytest.raises(RunError, match=r"(?s)all-reduce: pytest ended with status 4.*--no-such-option"):
        run_change(project, CHANGES["all-reduce"], SHORT, ("--no-such-option",))
    (project / "perf" / "test_training.py").write_text("def test_step(ddpperf): pass\n")
    with pytest.raises(RunError, match="unchanged: pytest ended with status 0"):
        run_change(project, CHANGES["unchanged"], SHORT)
