"""The tests that need a GPU."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec

from benchmarks.common.project import ENDED, ROOT, Ran, pytest_run
from benchmarks.gpu_pieces.piece import Piece, Place

FEWEST, MOST = 4, 14  # workers of pytest-xdist: two ranks of each may have a context on the GPU
TAIL = 30  # lines of what pytest printed


def lines(place: Place) -> Iterator[str]:
    """Runs these tests, and says what became of them."""
    workers = max(FEWEST, min(MOST, len(os.sched_getaffinity(0))))
    # Nothing is timed, and a few files have most of the tests.
    parallel = (f"-n{workers}", "--dist=worksteal") if find_spec("xdist") is not None and not place.dry else ()
    begun = time.monotonic()
    ran = pytest_run(ROOT, [*parallel, "-ra", "-m", "gpu", *place.chosen((), ("tests/gpu",))])
    return told(ran, time.monotonic() - begun)


def told(ran: Ran, seconds: float) -> Iterator[str]:
    """Yields what became of the tests of a run, or what pytest printed if it ended in another way."""
    if ran.status not in ENDED:
        yield from (f"pytest ended with status {ran.status}", *ran.printed.splitlines()[-TAIL:])
        return
    failed, skipped = [], Counter[str]()
    for name, test in ran.tests.items():
        wrong, left_out = [*test.iter("failure"), *test.iter("error")], test.find("skipped")
        if wrong:
            failed.append(f"  FAILED {name}: {(wrong[0].get('message') or '').partition(chr(10))[0][:300]}")
        elif left_out is not None:
            skipped[left_out.get("message") or ""] += 1
    passed = len(ran.tests) - len(failed) - skipped.total()
    yield f"{passed} passed, {len(failed)} failed, {skipped.total()} skipped in {seconds:.0f} s"
    yield from (*failed, *(f"  skipped {times}: {reason}" for reason, times in skipped.items()))


PIECE = Piece(name="gpu_tests", question="Do all tests pass that need a GPU?", seconds=360, lines=lines)
