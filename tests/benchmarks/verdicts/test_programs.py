"""The programs of real runs: what makes them slower, and their projects."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from benchmarks.quality.steps import Calibration
from benchmarks.verdicts.cells import CELLS
from benchmarks.verdicts.programs import AFTER, BEFORE, LATENCY, Program, check_out, make_project
from pytest_ddpperf.against.git import git

KNOWN = {length: Calibration(step=0.01, product=2e-6) for length in ("4ms", "12ms", "60ms")}


def constants(program: Program) -> dict[str, Any]:
    """The names in capital letters that a module sets."""
    found: dict[str, Any] = {}
    for node in ast.parse(program.text(KNOWN)).body:
        if isinstance(node, ast.Assign):
            (target,) = node.targets
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            found |= {ast.unparse(name): ast.literal_eval(value) for name, value in zip(names, values, strict=True)}
    return found


def test_work_and_pauses_are_made_by_what_a_step_takes() -> None:
    """A tenth of 10 ms are 500 products of 2 us; 20 steps are 0.2 s."""
    found = constants(Program("4ms", work=0.1, pause=20, every=5, alone=True))
    assert (found["PRODUCTS"], found["PAUSE"], found["EVERY"]) == (500, pytest.approx(0.2), 5)
    assert (found["SPINS"], found["ALONE"]) == (False, True)
    plain = constants(Program("4ms"))
    assert (plain["PRODUCTS"], plain["PAUSE"]) == (0, 0.0)


def test_a_latency_bound_step_sends_84_bytes() -> None:
    """A weight for each of 20 inputs and a bias, of four bytes each."""
    found = constants(Program(LATENCY))
    assert (found["WIDTH"], found["DEPTH"]) == (20, 0)


def test_real_programs_are_worse_in_one_constant() -> None:
    loaders, validations = (
        [constants(Program("4ms", kind=kind, worse=worse)) for worse in (False, True)]
        for kind in ("loader", "validation")
    )
    assert [found["PERSISTENT"] for found in loaders] == [True, False]
    assert validations[1]["VALIDATED"] == 10 * validations[0]["VALIDATED"]
    assert validations[0]["EVERY"] == 20


@pytest.mark.parametrize("name", sorted(CELLS))
def test_each_program_of_each_cell_is_python(name: str) -> None:
    for number in range(6):
        for program in CELLS[name].drawn(number):
            compile(program.text(KNOWN), "trainer.py", "exec")


@pytest.mark.parametrize(("after", "changed"), [("x = 2\n", "1\t1\ttrainer.py"), ("x = 1\n", "2\t0\ttrainer.py")])
def test_a_project_has_two_commits_with_other_files(tmp_path: Path, after: str, changed: str) -> None:
    """Of the same code the second one has an empty line and a comment more."""
    project = tmp_path / "project"
    make_project(project, "x = 1\n", after)
    assert git(project, "diff", "--numstat", BEFORE, AFTER) == changed
    assert git(project, "rev-parse", f"{AFTER}~1") == git(project, "rev-parse", BEFORE)
    check_out(project, BEFORE)
    assert (project / "trainer.py").read_text() == "x = 1\n"
