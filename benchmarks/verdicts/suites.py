"""Makes a run of the example suite: in a throw-away clone of a checkout, as that checkout has committed it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.quality.project import AS_NOBODY, RunError, pytest_results
from benchmarks.verdicts.cells import PLANTED, Cell, Suite
from benchmarks.verdicts.machine import ticks
from benchmarks.verdicts.outcomes import suite_told
from benchmarks.verdicts.programs import BASELINES
from pytest_ddpperf.against.git import git

SUITE = "perf_tests"
CLONE_SECONDS = 300.0
SLOWER_MODULE = "test_language_model.py"  # whose tests are PLANTED
IMPORTED = "from .language_model import LARGER, SMALL, language_model\n"
INSTEAD = "from .language_model import LARGER, SMALL\nfrom .planted import language_model\n"
PLANT = '''\
"""The language model with extra work in each step; each side finds its own by the name of a function."""

from dataclasses import replace
from functools import partial

from . import language_model as plain
from .extra_work import ExtraWork

SHARE = {share}  # of a step


def slower(build):
    model = build()
    model.register_forward_pre_hook(ExtraWork(SHARE))
    return model


def language_model(size, batch_size):
    workload = plain.language_model(size, batch_size)
    return replace(workload, model=partial(slower, workload.model))
'''


def suite_run(package: Path, project: Path, cell: Cell, suite: Suite, ranks: int) -> dict[str, Any]:
    """Clone the checkout, save or plant what has to be, run the suite, and tell what came out, in fields of an outcome.

    Saving runs the whole suite once more, without a budget: that takes some minutes in each run of its cell.
    """
    git(package, "clone", "-q", str(package), str(project), seconds=CLONE_SECONDS)

    def results(*options: str) -> list[dict[str, Any]]:
        return pytest_results(cell.name, project, (SUITE, *options), (project,), ranks)

    options = [f"--ddpperf-budget={suite.budget}", *([] if cell.counted else ["--ddpperf-counts=off"])]
    of_saved: dict[str, Any] = {}
    if cell.saved_busy is not None:
        shutil.rmtree(project / BASELINES, ignore_errors=True)  # of other machines, and maybe of another format
        before = ticks()
        saved = results("--ddpperf-save")
        of_saved["others_saved"] = before.others(ticks())
        if not (project / BASELINES).is_dir():
            raise RunError(f"{cell.name}: nothing was stored: {saved[0]['findings']}")
        commit(project, BASELINES)
        touch(project)
    elif suite.slower:
        plant(project, suite.slower)
        options.append("--ddpperf-against=HEAD~1")
    else:
        options.append("--ddpperf-against=HEAD")
    start, before = time.monotonic(), ticks()
    found = results(*options)
    took, others = time.monotonic() - start, before.others(ticks())
    return {**suite_told(found, planted_by(suite)), **of_saved, "took": took, "others": others}


def planted_by(suite: Suite) -> Sequence[str]:
    """The tests that are slower than in the commit before."""
    return PLANTED if suite.slower else ()


def plant(project: Path, share: float) -> None:
    """Commit tests whose models are called through a hook, and then work in that hook: both sides share the tests."""
    module, planted = project / SUITE / SLOWER_MODULE, project / SUITE / "planted.py"
    text = module.read_text(encoding="utf-8")
    if IMPORTED not in text:
        raise RunError(f"{SUITE}/{SLOWER_MODULE} has no line '{IMPORTED.strip()}': nothing can be planted in its tests")
    module.write_text(text.replace(IMPORTED, INSTEAD), encoding="utf-8")
    for of_step in (0.0, share):
        planted.write_text(PLANT.format(share=of_step), encoding="utf-8")
        commit(project, f"extra work of {of_step:.0%}")


def touch(project: Path) -> None:
    """Commit a comment in each module that is measured: another commit with the same code."""
    for module in (project / SUITE).glob("*.py"):
        module.write_text(module.read_text(encoding="utf-8") + "# touched\n", encoding="utf-8")
    commit(project, "touched")


def commit(project: Path, message: str) -> None:
    """Commit all changes."""
    git(project, "add", "-A")
    git(project, *AS_NOBODY, "commit", "-q", "-m", message)
