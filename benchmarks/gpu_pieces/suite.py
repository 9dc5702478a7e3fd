"""The tests that need a GPU."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from benchmarks.common.project import ENDED, ROOT, pytest_run
from benchmarks.gpu_pieces.piece import Notes, Piece, Place

FEWEST, MOST = 4, 14  # workers of pytest-xdist: two ranks of each may have a context on the GPU
TAIL = 30  # lines of what pytest printed


def run(place: Place, notes: Notes) -> None:
    workers = max(FEWEST, min(MOST, len(os.sched_getaffinity(0))))
    # Nothing is timed, and a few files have most of the tests.
    parallel = (f"-n{workers}", "--dist=worksteal") if find_spec("xdist") is not None and not place.dry else ()
    begun = time.monotonic()
    ran = pytest_run(ROOT, [*parallel, "-ra", "-m", "gpu", *place.chosen((), ("tests/gpu",))])
    passed, failed, skipped = 0, {}, Counter[str]()
    for name, test in ran.tests.items():
        wrong = [*test.iter("failure"), *test.iter("error")]
        left_out = test.find("skipped")
        if wrong:
            failed[name] = (wrong[0].get("message") or "").partition("\n")[0][:300]
        elif left_out is not None:
            skipped[left_out.get("message") or ""] += 1
        else:
            passed += 1
    of_pytest = {"status": ran.status, "seconds": time.monotonic() - begun, "said": ran.printed.splitlines()[-TAIL:]}
    notes(tests={"passed": passed, "failed": failed, "skipped": dict(skipped), **of_pytest})


def lines(found: Mapping[str, Any]) -> list[str]:
    tests = found.get("tests")
    if tests is None:
        return []
    if tests["status"] not in ENDED:
        return [f"pytest ended with status {tests['status']}", *tests["said"]]
    skipped = sum(tests["skipped"].values())
    told = [f"{tests['passed']} passed, {len(tests['failed'])} failed, {skipped} skipped in {tests['seconds']:.0f} s"]
    told += [f"  FAILED {name}: {reason}" for name, reason in tests["failed"].items()]
    return [*told, *(f"  skipped {times}: {reason}" for reason, times in tests["skipped"].items())]


PIECE = Piece(
    name="gpu_tests",
    question="Do all tests pass that need a GPU?",
    seconds=360,
    run=run,
    lines=lines,
    dry="those of tests/gpu, which skip themselves",
)
