"""The throw-away project: a git repository whose branches differ in one constant each."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.quality.conditions import Calibration
from benchmarks.quality.project import BASE, CHANGES, HELD, check_out, make_project, variations
from pytest_ddpperf.revision.git import commit_of, git

CALIBRATION = Calibration(step=0.012, product=2e-6, reduces={16: 1e-4, 4096: 6e-4})


def test_work_is_a_share_of_the_step_that_was_measured() -> None:
    """5 % of 12 ms are 600 us: 300 products of 2 us."""
    made = variations(CALIBRATION)
    assert (made["slower-5"].added.products, made["slower-10"].added.products) == (300, 600)
    assert made[BASE].added.products == made["all-reduce"].added.products == made["memory"].added.products == 0


def test_every_change_is_between_two_branches_that_are_there(tmp_path: Path) -> None:
    make_project(tmp_path, "12ms", CALIBRATION)
    assert git(tmp_path, "status", "--porcelain") == ""
    for change in CHANGES.values():
        assert commit_of(tmp_path, change.here) is not None, change.name
        assert change.against is None or commit_of(tmp_path, change.against) is not None, change.name


@pytest.mark.parametrize(
    ("branch", "constant"),
    [
        (BASE, "INJECTION = Injection(products=0, every=1, elements=0)"),
        ("slower-10", "INJECTION = Injection(products=600, every=1, elements=0)"),
        ("all-reduce", "INJECTION = Injection(products=0, every=1, elements=16)"),
        ("memory", f"HELD = {HELD}  # bytes"),
    ],
)
def test_a_branch_differs_from_the_base_in_its_own_constant_alone(tmp_path: Path, branch: str, constant: str) -> None:
    make_project(tmp_path, "12ms", CALIBRATION)
    check_out(tmp_path, branch)
    assert constant in (tmp_path / "src" / "training.py").read_text(encoding="utf-8").splitlines()
    differing = git(tmp_path, "diff", "--numstat", BASE)
    assert differing == ("" if branch == BASE else "1\t1\tsrc/training.py")
