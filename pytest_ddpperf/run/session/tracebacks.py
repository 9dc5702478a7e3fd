"""Finds the user's code that led to an error, and sets the text that pytest shows for the error."""

from __future__ import annotations

import contextlib
import os
import sysconfig
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_ddpperf import errors

_STANDARD_LIBRARY = f"{sysconfig.get_path('stdlib')}{os.sep}"
_INSTALLED = f"{sysconfig.get_path('purelib')}{os.sep}"  # lies inside the standard library


@contextlib.contextmanager
def skipping() -> Iterator[None]:
    """Makes pytest skip the test if the code in this context raises RankSkipped."""
    __tracebackhide__ = True
    try:
        yield
    except errors.RankSkipped as skipped:
        # pytest would show the line of contextlib that this passes through as the line that skips.
        raise pytest.skip.Exception(str(skipped), _use_item_location=True) from None


def end_in_code_of_user(error: BaseException) -> None:
    """Removes this package's frames from the end of an error's traceback, which then ends in the user's code.

    A debugger then stops at the user's line, and a report shows it. Frames of the standard library and hidden
    frames, such as a timeout handler's, do not count as the user's code.
    """
    caller, inside = None, False
    entry = error.__traceback__
    while entry is not None:
        file = entry.tb_frame.f_code.co_filename
        library = file.startswith(_STANDARD_LIBRARY) and not file.startswith(_INSTALLED)
        if file.startswith(errors.PACKAGE):
            inside = True
        elif not library and not entry.tb_frame.f_locals.get("__tracebackhide__", False):
            caller, inside = entry, False
        entry = entry.tb_next
    if caller is not None and inside:
        caller.tb_next = None


def place(error: BaseException, file: str, test: str) -> str:
    """Returns the line in ``file`` that led to an error, as text for a message: ``at test_a.py:9 in test_b``."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_code.co_filename == file:
            return f"  at {test.partition('::')[0]}:{line} in {frame.f_code.co_name}"
    return f"  in {test}"


def text_alone(error: errors.DdpperfError, file: str, test: str, width: int, *, verbose: bool) -> Any:
    """Returns pytest's representation of an error of the plugin: its message and the test's line, no traceback."""
    shown = pytest.ExceptionInfo.from_exception(error).getrepr(style="value", chain=False)
    if shown.reprcrash is not None:
        shown.reprcrash.message = error.summary
    text = str(error)
    if isinstance(error, (errors.RankFailed, errors.IncorrectTraining)):
        from pytest_ddpperf.reports.failure import error_text

        text = error_text(error, width, verbose=verbose)
    for entry in shown.reprtraceback.reprentries:
        entry.lines = [*text.split("\n"), place(error, file, test)]
    return shown


def show(report: pytest.TestReport, error: BaseException, item: pytest.Item) -> None:
    """Replaces the traceback in a report by the message of the plugin's error; leaves other errors unchanged."""
    if not isinstance(error, errors.DdpperfError):
        return
    from pytest_ddpperf.reports.failure import WIDTH

    shown = item.config.pluginmanager.has_plugin("terminalreporter")
    width = item.config.get_terminal_writer().fullwidth if shown else WIDTH
    verbose = item.config.get_verbosity() > 0
    report.longrepr = text_alone(error, str(item.path), item.nodeid, width, verbose=verbose)
    report.sections.extend(error.sections)


def finding_in(error: BaseException | None) -> errors.FoundWrong | None:
    """Searches an error, its causes and contexts, and exception groups for a FoundWrong; None if there is none."""
    left, seen = [error], set[int]()
    while left:
        one = left.pop()
        if isinstance(one, errors.FoundWrong):
            return one
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            left += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    return None


def error_of_repeat(error: errors.DdpperfError, file: str, test: str) -> errors.DdpperfError:
    """Returns the error for a repetition of a failed test: ``error``, and a note that nothing was measured again."""
    words = "not measured again: a verdict is final, so that a failed test cannot be repeated until it passes"
    return errors.extended(error, after=f"\n{place(error, file, test)}\n{words}").with_traceback(None)


def ended_at(error: BaseException, file: str, test: str) -> str:
    """Returns a text with the error that ended a test early, and with the line of the test."""
    return f"{error}; the test ended {place(error, file, test).strip()}, and checked nothing after it"
