"""Noise learned from recorded runs, by hand on logarithms."""

from __future__ import annotations

import math

import pytest

from pytest_ddpperf.baselines.history.database import Benchmark, Entry, HistoryRun
from pytest_ddpperf.baselines.history.noise_from_history import learned_noise
from pytest_ddpperf.records.results import Noise


def entries(
    commit: str | None, *logs: float, dirty: bool = False, key: str = "here", recipe: str = "{}"
) -> list[Entry]:
    """Runs of a commit with these logarithms of seconds."""
    benchmark = Benchmark(
        test="t.py::test",
        name="ddp",
        strategy="ddp",
        mode=None,
        recipe=recipe,
        world_size=2,
        environment_key=key,
        metric="step_time",
        unit="s",
        better="lower",
        scale="ratio",
    )
    run = HistoryRun(date="2026-01-12T00:00:00+00:00", commit=commit, commit_date=None, branch="main", dirty=dirty)
    return [
        Entry(benchmark=benchmark, run=run, value=math.exp(log), interval=None, min_tolerance=0.0, gated=True)
        for log in logs
    ]


def learned(*recorded: list[Entry]) -> Noise | None:
    return learned_noise(
        [entry for commit in recorded for entry in commit], environment_key="here", strategy="ddp", recipe={}
    )


def test_runs_of_one_commit_tell_how_far_the_same_code_lies_apart() -> None:
    """Squares 2 around 0 and 8 around 5, of 2 + 2 degrees of freedom: 10 / 4; the step from 0 to 5 is the code's."""
    found = learned(entries("a", -1, 0, 1), entries("b", 3, 5, 7), entries("c", 40))
    assert found is not None
    assert found.between_runs.sd == pytest.approx(math.sqrt(2.5))
    assert found.between_runs.df == 4
    assert found.floor == pytest.approx(math.expm1(2.131847 * math.sqrt(2 * 2.5)))  # t(95 %, 4 df)
    assert found.origin == "learned from 6 recorded runs of 2 commits"


def test_a_few_runs_tell_nothing() -> None:
    assert learned(entries("a", 0, 1, 2, 3)) is None
    assert learned(*(entries(commit, 0) for commit in "abcdefgh")) is None


@pytest.mark.parametrize(
    "other",
    [
        entries("a", 9, dirty=True),
        entries("a", 9, key="another machine"),
        entries("a", 9, recipe='{"precision": "bf16"}'),
        entries(None, 8, 9),
    ],
)
def test_what_is_not_the_same_code_on_the_same_machine_does_not_count(other: list[Entry]) -> None:
    assert learned(entries("a", 0, 1, 2, 3), other) is None
    assert learned(entries("a", 0, 1, 2, 3, 4), other) == learned(entries("a", 0, 1, 2, 3, 4))
