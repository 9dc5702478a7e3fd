"""The tests that need a GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from benchmarks.gpu_pieces.piece import Notes, Piece, Place
from benchmarks.gpu_pieces.pytest_runs import outcome_lines, outcomes

FEWEST, MOST = 4, 14  # workers of pytest-xdist: two ranks of each may have a context on the GPU


def run(place: Place, notes: Notes) -> None:
    workers = max(FEWEST, min(MOST, len(os.sched_getaffinity(0))))
    # Nothing is timed, and a few files have most of the tests.
    parallel = (f"-n{workers}", "--dist=worksteal") if find_spec("xdist") is not None and not place.dry else ()
    notes(tests=outcomes([*parallel, "-m", "gpu", *place.chosen((), ("tests/gpu",))]))


def lines(found: Mapping[str, Any]) -> list[str]:
    return outcome_lines(found["tests"]) if "tests" in found else []


PIECE = Piece(
    name="gpu_tests",
    question="Do all tests pass that need a GPU?",
    seconds=360,
    run=run,
    lines=lines,
    dry="those of tests/gpu, which skip themselves",
)
