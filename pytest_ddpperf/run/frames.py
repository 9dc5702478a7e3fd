"""Where an error comes from, in the code of the user."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_STANDARD_LIBRARY = f"{sysconfig.get_path('stdlib')}{os.sep}"
_INSTALLED = f"{sysconfig.get_path('purelib')}{os.sep}"  # which is inside of it


def end_in_code_of_user(error: BaseException) -> None:
    """Ends the traceback of an error that came out of this package in the code that has called the package.

    There a debugger stops, and a report shows the line. Frames of the standard library, and hidden ones, such as those
    of a handler of a timeout, are nobody's.
    """
    caller, inside = None, False
    entry = error.__traceback__
    while entry is not None:
        file = entry.tb_frame.f_code.co_filename
        library = file.startswith(_STANDARD_LIBRARY) and not file.startswith(_INSTALLED)
        if file.startswith(_PACKAGE):
            inside = True
        elif not library and not entry.tb_frame.f_locals.get("__tracebackhide__", False):
            caller, inside = entry, False
        entry = entry.tb_next
    if caller is not None and inside:
        caller.tb_next = None


def place(error: BaseException, file: str, test: str) -> str:
    """The line of the test's own file that led to the error."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_code.co_filename == file:
            return f"  at {test.partition('::')[0]}:{line} in {frame.f_code.co_name}"
    return f"  in {test}"


def ended_at(error: BaseException, file: str, test: str) -> str:
    """Why a test ended before its last line, and where."""
    return f"{error}; the test ended {place(error, file, test).strip()}, and checked nothing after it"
