"""How far it is from judged results to the lines of the terminal: the files and functions that the screen runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import pytest_ddpperf
from pytest_ddpperf.reports.summary import summary_parts
from tests.reports.golden_runs import SCREENS

PACKAGE = Path(pytest_ddpperf.__file__).parent
MAX_FILES, MAX_FUNCTIONS = 11, 78  # both may only fall


@contextmanager
def walked() -> Iterator[set[tuple[str, str]]]:
    """The files and functions of the package that are entered meanwhile; without lambdas and comprehensions."""
    found: set[tuple[str, str]] = set()

    def enter(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and not code.co_name.startswith("<") and code.co_filename.startswith(str(PACKAGE)):
            found.add((str(Path(code.co_filename).relative_to(PACKAGE)), f"{code.co_name} {code.co_firstlineno}"))

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        yield found
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("name", SCREENS)
def test_rendering_results_for_the_terminal_takes_few_calls(name: str) -> None:
    summary_parts(SCREENS[name], 100)  # imports, and what is remembered
    with walked() as found:
        summary_parts(SCREENS[name], 100)
    files = {file for file, _ in found}
    assert "reports/summary.py" in files
    assert len(files) <= MAX_FILES, sorted(files)
    assert len(found) <= MAX_FUNCTIONS, sorted(found)
