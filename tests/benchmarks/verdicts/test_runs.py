"""Which run comes next, what is refused, what is planted, and real runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.project import ROOT, RunError, commit, repository, write
from benchmarks.verdicts import runs
from benchmarks.verdicts.cells import CELLS, PLANTED, SUITES, Cell
from benchmarks.verdicts.outcomes import Outcome, append, read
from benchmarks.verdicts.programs import AFTER, BEFORE, make_project
from benchmarks.verdicts.runs import SUITE, Bench, Ticks, compared, made, plant, run_next, touch, tree_of
from pytest_ddpperf.against.git import git
from pytest_ddpperf.errors import SettingError

QUIET, BUSY = (replace(CELLS[f"same-20s-{where}"], wanted=3) for where in ("quiet", "busy"))


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What others use of the cores, at each look; the last for all that follow."""
    shares = [0.0]
    monkeypatch.setattr(runs, "others_now", lambda: shares.pop(0) if len(shares) > 1 else shares[0])
    return shares


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Where each run takes a second, and nothing is run."""
    seconds = iter(range(10_000))

    def run_next(bench: Bench, cell: Cell) -> list[Outcome]:
        number = sum((each.cell, each.tree) == (cell.name, bench.tree) for each in read(bench.file))
        run = {"cell": cell.name, "number": number, "tree": bench.tree, "machine": "cpu-2c", "began": "2026-01-12"}
        outcome = Outcome(**run, verdict="ok", left_out="for once" if number == 1 else "")  # type: ignore[arg-type]
        append(bench.file, [outcome])
        return [outcome]

    monkeypatch.setattr(runs, "run_next", run_next)
    monkeypatch.setattr("benchmarks.verdicts.runs.time.sleep", lambda _: None)
    return Bench(tmp_path / "runs.jsonl", ROOT, "3f2a1c0", "cpu-2c", lambda: float(next(seconds)))


def names(bench: Bench, cells: list[Cell], until: float = 1e9, number: int | None = None) -> list[str]:
    return [outcome.cell for (outcome,) in made(bench, cells, until, number)]


def test_runs_of_cells_are_interleaved_until_each_cell_has_enough_valid_runs(bench: Bench, used: list[float]) -> None:
    """The second run of each does not count, so that four are made of each."""
    found = names(bench, [QUIET, BUSY])
    assert Counter(found) == {QUIET.name: 4, BUSY.name: 4}
    assert found[:3] == [QUIET.name, BUSY.name, QUIET.name]
    assert names(bench, [QUIET, BUSY]) == []
    assert names(replace(bench, tree="0000000"), [BUSY]) == [BUSY.name] * 4
    assert len(names(bench, [BUSY], number=2)) == 2


def test_quiet_runs_wait_while_other_processes_use_the_machine(bench: Bench, used: list[float]) -> None:
    used[:] = [0.5, 0.5, 0.0]
    found = names(bench, [QUIET, replace(BUSY, wanted=1)])
    assert found[0] == BUSY.name
    assert found[1:] == [QUIET.name] * 4


def test_no_run_is_begun_when_the_time_is_up(bench: Bench, used: list[float]) -> None:
    """The clock is read before each run."""
    assert len(names(bench, [BUSY], until=2.5)) == 3
    used[:] = [1.0]
    assert names(bench, [QUIET, SUITES["suite-same"]], until=50.0) == []


def test_the_package_is_named_by_its_tree_and_has_no_changes(tmp_path: Path) -> None:
    make_project(tmp_path, "x = 1\n", "x = 2\n")
    write(tmp_path, {"pytest_ddpperf/rules.py": ""})
    with pytest.raises(SettingError, match="pytest_ddpperf has changes: commit them"):
        tree_of(tmp_path)
    commit(tmp_path, "rules")
    assert git(tmp_path, "rev-parse", "HEAD:pytest_ddpperf").startswith(tree_of(tmp_path))


def test_a_run_of_the_suite_is_kept_whatever_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one ends without results, the second one with an open benchmark while others use 20 % of the cores."""
    bench = Bench(tmp_path / "runs.jsonl", ROOT, "3f2a1c0", "cpu-2c", iter(map(float, range(9))).__next__)
    found: list[list[dict[str, Any]]] = [[], [{"test": "a", "verdict": "inconclusive", "took": 301.0, "others": 0.2}]]

    def suite_run(*_: object) -> list[dict[str, Any]]:
        fields = found.pop(0)
        if not fields:
            raise RunError("pytest ended with status 4")
        return fields

    monkeypatch.setattr(runs, "suite_run", suite_run)
    monkeypatch.setattr(runs, "tree_of", lambda _: "3f2a1c0")
    (first,), (second,) = (run_next(bench, SUITES[name]) for name in ("suite-10%", "suite-same"))
    assert read(bench.file) == [first, second]
    assert (first.verdict, first.took, first.left_out, first.said) == ("none", None, "", "pytest ended with status 4")
    assert (second.number, second.seconds) == (0, 1.0)
    assert second.left_out == "not quiet: others used 20% of the cores while it was compared"


def test_a_run_number_always_has_the_same_programs_and_runs_of_a_cell_differ() -> None:
    cell = CELLS["pauses-quiet"]
    drawn = [cell.drawn(number) for number in range(40)]
    assert drawn == [cell.drawn(number) for number in range(40)]
    assert len({after for _, after in drawn}) > 20
    assert {(after.pause, after.every) for _, after in drawn} == {(p, e) for p in (5, 20, 100) for e in (5, 10, 20)}
    assert all(before == replace(after, pause=0.0, every=10, spins=False, alone=False) for before, after in drawn)
    with pytest.raises(TypeError, match="suite-same runs the example suite, which has no programs to draw"):
        SUITES["suite-same"].drawn(0)


def test_two_commits_differ_only_by_the_lines_that_are_slower(tmp_path: Path) -> None:
    before, after = CELLS["validation-busy"].drawn(0)
    make_project(tmp_path / "slower", before.text, after.text)
    make_project(tmp_path / "same", before.text, before.text)
    for name, lines in (("slower", "1\t1\ttrainer.py"), ("same", "2\t0\ttrainer.py")):
        assert git(tmp_path / name, "diff", "--numstat", BEFORE, AFTER) == lines


def test_work_is_planted_in_tests_that_exist(tmp_path: Path) -> None:
    module = (ROOT / SUITE / runs.SLOWER_MODULE).read_text()
    repository(tmp_path, {f"{SUITE}/{runs.SLOWER_MODULE}": module, f"{SUITE}/language_model.py": "x = 1\n"})
    plant(tmp_path, 0.1)
    assert git(tmp_path, "diff", "-U0", "HEAD~1").splitlines()[-2:] == [
        "-SHARE = 0.0  # of a step",
        "+SHARE = 0.1  # of a step",
    ]
    assert all(f"def {test.partition('[')[0]}(" in module for test in PLANTED)
    write(tmp_path, {"more": ""})
    touch(tmp_path)
    assert git(tmp_path, "show", "--stat", "--format=").endswith("3 files changed, 3 insertions(+)")
    with pytest.raises(RunError, match="nothing can be planted"):
        plant(tmp_path, 0.1)


def test_cpu_time_that_is_neither_idle_nor_own_belongs_to_other_processes() -> None:
    """Of 1,000 ticks 300 were idle and 500 its own; children that began earlier make no negative share."""
    assert Ticks(0, 0, 0.0).others(Ticks(1000, 300, 500.0)) == pytest.approx(0.2)
    assert Ticks(0, 0, 0.0).others(Ticks(100, 0, 150.0)) == 0.0
    assert Ticks.now(Path("/proc/none")).others(Ticks(0, 0, 0.0)) == 0.0


def test_cpu_time_of_a_child_and_a_grandchild_counts_as_own() -> None:
    before = Ticks.now()
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(10**7))'], check=True)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert Ticks.now().own - before.own >= 0.05 * os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.parametrize("git_there", [True, False])
def test_a_stored_baseline_is_compared_with_and_without_git(tmp_path: Path, *, git_there: bool) -> None:
    program = CELLS["same-20s-busy"].drawn(0)[0].text
    make_project(tmp_path / "project", program, program)
    cell = replace(CELLS["stored-latency-quiet-busy-git"], max_time=3.0, git=git_there, counted=False)
    found = compared(ROOT, tmp_path / "project", cell)
    assert max(found["apart"]) < 0.01
    assert found["others_saved"] is not None
    assert (tmp_path / "project" / ".git").is_dir()
