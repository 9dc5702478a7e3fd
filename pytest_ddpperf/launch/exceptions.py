"""An exception on a rank as a message for the controller."""

from __future__ import annotations

import sysconfig
import time
import traceback
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpperf.errors import DdpperfError
from pytest_ddpperf.launch.messages import Failed

if TYPE_CHECKING:
    from pytest_ddpperf.launch.messages import FailureKind, Stage

_PACKAGE = Path(__file__).parents[1]
_MACHINERY = tuple(str(_PACKAGE / folder) for folder in ("launch", "training"))
_INSTRUMENTS = str(_PACKAGE / "instruments")
_CPU_ALLOCATOR = "DefaultCPUAllocator: can't allocate memory"


def failed_report(error: BaseException, stage: Stage) -> Failed:
    """Describe an exception; this never raises one itself."""
    try:
        return Failed(stage, _kind(error), _name(error), _text(error), _traceback(error), time.time_ns())
    except Exception as second:  # noqa: BLE001  e.g. MemoryError again, or an exception whose repr raises
        text = f"(and {type(second).__name__} while it was put into words)"
        return Failed(stage, "raised", type(error).__name__, text, "", time.time_ns())


def _kind(error: BaseException) -> FailureKind:
    names = {cls.__name__ for cls in type(error).__mro__}
    if "OutcomeException" in names:  # pytest's, whose __module__ says builtins
        return "skipped" if "Skipped" in names else "failed"
    if isinstance(error, DdpperfError):
        return "refused"
    if isinstance(error, SystemExit):
        return "exited"
    if names & {"MemoryError", "OutOfMemoryError"} or _CPU_ALLOCATOR in str(error):
        return "memory"
    return "raised"


def _name(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__ if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}.{kind.__qualname__}"
    )


def _text(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"sys.exit({'' if error.code is None else repr(error.code)})"
    return str(error)


def _traceback(error: BaseException) -> str:
    if isinstance(error, DdpperfError):
        return ""  # the message has it all
    summary = traceback.TracebackException.from_exception(error)
    _cut_machinery(summary, set())
    return "".join(summary.format()).rstrip("\n")


def _cut_machinery(summary: traceback.TracebackException, seen: set[int]) -> None:
    """Remove the frames between the fork and the user's function from an exception, its cause and its context."""
    if id(summary) in seen:
        return
    seen.add(id(summary))
    kept = [frame for frame in summary.stack if not is_machinery(frame.filename)]
    users = next((i for i, frame in enumerate(kept) if not in_library(frame.filename)), 0)
    # Frames of instruments lead to the user's code too; where none of it follows, the fault may be an instrument's.
    leading = [frame for frame in kept[:users] if not frame.filename.startswith(_INSTRUMENTS)]
    summary.stack = traceback.StackSummary.from_list([*leading, *kept[users:]])
    for cause in (summary.__cause__, summary.__context__):
        if cause is not None:
            _cut_machinery(cause, seen)


def is_machinery(filename: str) -> bool:
    """Whether a frame of this plugin or of cloudpickle brings the user's function to its rank."""
    return filename.startswith(_MACHINERY) or "/cloudpickle/" in filename


def in_library(filename: str) -> bool:
    """Whether a frame is in code of Python, of an installed package, or of this plugin."""
    return filename.startswith(("<", *_folders())) or "/site-packages/" in filename


@cache
def _folders() -> tuple[str, ...]:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(f"{folder}/" for folder in {*folders, str(_PACKAGE)})
