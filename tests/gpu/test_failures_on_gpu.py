"""Ranks that fail on a GPU: reported in time, with their cause, and the next launch works."""

from __future__ import annotations

import pytest

from benchmarks.gpu_pieces.failures import CASES, Case, holds_as_much, reported, tried
from benchmarks.gpu_pieces.piece import Place
from pytest_ddpperf.launch.launcher import Launcher


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_a_failure_is_reported_with_its_cause(launcher: Launcher, place: Place, case: Case) -> None:
    told = tried(launcher, place, case)
    assert told["right"], told["error"]["text"]
    assert told["error"]["memory"] == (case.title == "out of memory")
    assert told["next"] == ""


def test_memory_of_a_rank_that_was_killed_is_free_for_the_next_launch(launcher: Launcher, place: Place) -> None:
    (killed,) = (case for case in CASES if case.title == "killed with memory held")
    error = reported(
        lambda: launcher.run(killed.function, world_size=1, device=place.device, backend=place.backend, timeout=60)
    )
    assert error["type"] == "RankFailed"
    free = launcher.run(holds_as_much, world_size=1, device=place.device, backend=place.backend, timeout=60).rank(0)
    assert free > 0.5
