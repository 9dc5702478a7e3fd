"""The example suite can be copied as it is, and its red button presses as hard as it says."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from perf_tests import extra_work

SUITE = Path(__file__).parents[2] / "perf_tests"


@pytest.mark.parametrize(
    "mode", [*(pytest.param(mode, marks=pytest.mark.slow) for mode in ("prepend", "append")), "importlib"]
)
def test_a_copy_is_collected_under_every_import_mode(inner: pytest.Pytester, mode: str) -> None:
    shutil.copytree(SUITE, inner.path / "perf_tests", ignore=shutil.ignore_patterns("__pycache__"))
    apart = mode != "importlib"  # which goes by the search path, where the tests of this process come first
    runpytest = inner.runpytest_subprocess if apart else inner.runpytest
    run = runpytest("perf_tests", "--collect-only", "-q", f"--import-mode={mode}")
    assert run.ret == 0
    for test in ("test_small[naive]", "test_small[ddp]", "test_larger", "test_weak_scaling"):
        assert f"::{test}" in run.stdout.str()
    assert "::test_options" not in run.stdout.str()


@pytest.mark.parametrize(
    "chosen", [["-m", "sweep"], pytest.param(["perf_tests/test_strategies.py::test_options"], marks=pytest.mark.slow)]
)
def test_the_sweeps_run_when_chosen(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, chosen: list[str]) -> None:
    monkeypatch.chdir(SUITE.parent)
    run = inner.runpytest("perf_tests/test_strategies.py", "--collect-only", "-q", "-p", "no:cacheprovider", *chosen)
    assert run.ret == 0
    assert "::test_options[ddp[comm_hook=powersgd]]" in run.stdout.str()


def test_extra_work_takes_its_share_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 100 s on a clock that each reading moves by 0.1 s: 15 s more for a share of 0.15, to a few readings."""
    now = [0.0]

    def read() -> float:
        now[0] += 0.1
        return now[0]

    monkeypatch.setattr("time.perf_counter", read)
    monkeypatch.setenv("PERF_TESTS_SLOW", "small:0.15")
    model = extra_work.slowed(torch.nn.Linear(2, 2), "small")
    starts = []
    for _ in range(6):
        starts.append(now[0])
        model(torch.ones(1, 2))
        now[0] += 100.0  # the rest of the step
    longer = [after - before - 100.0 for before, after in pairwise(starts[1:])]
    assert longer == pytest.approx([15.0] * 4, abs=0.6)


def test_waits_of_interleaved_steps_do_not_count_as_step_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two steps of 10 s: half of the intervals hold 100 s in which another launch had its turn."""
    now = [0.0]

    def read() -> float:
        now[0] += 0.01
        return now[0]

    monkeypatch.setattr("time.perf_counter", read)
    hook, model, longer = extra_work.ExtraWork(0.1), torch.nn.Linear(2, 2), []
    for _ in range(20):
        now[0] += 100.0
        for _ in range(2):
            begun = now[0]
            hook(model, ())
            longer.append(now[0] - begun)
            now[0] += 10.0
    assert longer[-20:] == pytest.approx([1.0] * 20, abs=0.06)


def test_extra_work_leaves_other_workloads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def hooks_of(name: str) -> Any:
        return extra_work.slowed(torch.nn.Linear(2, 2), name)._forward_pre_hooks

    assert not hooks_of("small")
    monkeypatch.setenv("PERF_TESTS_SLOW", "small:0.15")
    assert hooks_of("small")
    assert not hooks_of("larger")
