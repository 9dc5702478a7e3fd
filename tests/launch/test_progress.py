"""How far ranks have come, as their controller reads it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_ddpperf.instruments.clock import system_time
from pytest_ddpperf.launch import progress
from pytest_ddpperf.launch.progress import Progress, ProgressFile, advanced, told


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProgressFile]:
    monkeypatch.setattr(progress._Own, "memory", None)
    monkeypatch.setattr(progress._Own, "offset", 0)
    file = ProgressFile(2)
    yield file
    file.close()


def test_the_progress_of_a_rank_is_read_at_any_time(shared: ProgressFile, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 12.0, 13.5, 20.0])
    monkeypatch.setattr(system_time, "monotonic", lambda: next(now))
    progress.begin(shared.descriptor, 1)
    assert shared.read(1) is None
    progress.stage("timed step")  # at 10
    assert shared.read(1) == Progress("timed step", 0, 2.0)
    progress.step()  # at 13.5
    assert shared.read(1) == Progress("timed step", 1, 6.5)
    assert shared.read(0) is None


def test_ranks_that_are_equally_far_are_listed_together_with_the_longest_time() -> None:
    ranks = {
        0: Progress("timed step", 41, 9.2),
        1: Progress("warm-up step", 2, 11.7),
        2: Progress("timed step", 41, 9.8),
    }
    assert told(ranks) == "ranks 0, 2 in timed step 41 for 10 s; rank 1 in warm-up step 2 for 12 s"
    assert told({0: Progress("the start", 0, 0.4)}) == "rank 0 in the start"
    assert told({}) == told({0: Progress(progress.FUNCTION, 0, 5.0)}) == ""


def test_a_launch_advances_if_a_rank_has_begun_another_step() -> None:
    first = {0: Progress("timed step", 3, 0.5), 1: Progress("timed step", 3, 0.5)}
    assert not advanced(first, {0: Progress("timed step", 3, 1.0), 1: Progress("timed step", 3, 1.0)})
    assert advanced(first, {0: Progress("timed step", 3, 1.0), 1: Progress("timed step", 4, 0.1)})
    assert not advanced({}, first)  # nothing is known of before
