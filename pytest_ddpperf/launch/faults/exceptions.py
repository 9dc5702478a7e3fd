"""Turns an exception of a rank into the rank's report to the controller (pytest's process)."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from pytest_ddpperf.errors import DdpperfError
from pytest_ddpperf.instruments.clock import system_time
from pytest_ddpperf.instruments.torch_internals import collectives_called, process_groups
from pytest_ddpperf.launch import redirection, streams
from pytest_ddpperf.launch.faults.cures import WANT_OF_MEMORY
from pytest_ddpperf.launch.faults.stacks import COLLECTIVES, Frame, in_library, is_machinery, position
from pytest_ddpperf.launch.messages import Failed, FailureKind, Stage

T = TypeVar("T")
_VERIFICATION = str(Path(__file__).parents[2] / "training" / "correctness")
_INSTRUMENTS = str(Path(__file__).parents[2] / "instruments")
_PHASES = (  # the end of a file's path, the start of a function's name, and its phase
    ("training/model.py", "build_model", "building the model"),
    ("strategies/table.py", "parallelise", "wrapping the model"),
    ("training/trainer.py", "_make_optimizer", "making the optimizer"),
    ("training/data.py", "batches", "loading the first batch"),
    ("torch/_tensor.py", "backward", "backward"),
    ("torch/autograd/__init__.py", "backward", "backward"),
    ("torch/optim/optimizer.py", "", "the optimizer step"),
    ("torch/nn/modules/module.py", "_call_impl", "forward"),
)


def failed_report(error: BaseException, stage: Stage) -> Failed:
    """Returns the report of an exception in this stage; never raises, even if the exception's own methods raise."""
    first, *others = _chain(error)
    positions = [_unless_it_raises(None, lambda error: position(frames_of(error)), each) for each in (first, *others)]

    def verifying(error: BaseException) -> bool:
        return any(frame.file.startswith(_VERIFICATION) for frame in frames_of(error))

    return Failed(
        stage="verify" if stage == "run" and _unless_it_raises(False, verifying, error) else stage,  # noqa: FBT003
        kind=_unless_it_raises("raised", _kind, first),
        type=_name(first),
        text=_in_words(_text, first),
        traceback=traceback_text(error),
        stamp=system_time.time_ns(),
        position=next((each for each in positions if each is not None and each.line), positions[0]),
        sent=_unless_it_raises("", _sent, first),
        sequence=_unless_it_raises(None, _sequence, first),
        phase=_unless_it_raises("", _phase, first),
    )


def _chain(error: BaseException) -> list[BaseException]:
    """Returns [``error``]; for a SystemExit (as with Hydra), the errors that led to the SystemExit come first."""
    chain = [error]
    answers = isinstance(error, SystemExit) and error.code and not error.__suppress_context__
    before = error.__context__ if answers else None
    while before is not None and id(before) not in map(id, chain):
        chain.insert(0, before)
        before = before.__cause__ or (None if before.__suppress_context__ else before.__context__)
    return chain


def _unless_it_raises(otherwise: T, find: Callable[[BaseException], T], error: BaseException) -> T:
    try:
        return find(error)
    except BaseException:  # noqa: BLE001  an exception's own __str__, or a tensor's shape, may raise anything
        return otherwise


def _in_words(describe: Callable[[BaseException], str], error: BaseException) -> str:
    """Returns ``describe(error)``, cut to 64 KiB, or a text that says why ``describe`` failed."""
    try:
        text = redirection.told(describe(error))
    except BaseException as second:  # noqa: BLE001  e.g. MemoryError again, or an exception whose __str__ raises
        return f"(and {type(second).__name__} while its text was formatted)"
    cut, half = len(text) - streams.OUTPUT_LIMIT, streams.OUTPUT_LIMIT // 2
    return text if cut <= 0 else f"{text[:half]}\n[{cut} characters are cut here]\n{text[-half:]}"


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """Returns the frames of an exception with their line numbers, innermost first."""
    found, at = list[tuple[FrameType, int]](), error.__traceback__
    while at is not None:  # users' code may patch the functions of ``traceback``
        found.insert(0, (at.tb_frame, at.tb_lineno))
        at = at.tb_next
    return found


def frames_of(error: BaseException) -> list[Frame]:
    """Returns the file, line and function of each frame of an exception, innermost first."""
    return [Frame(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in _frames(error)]


def _sent(error: BaseException) -> str:
    """Returns a text with dtype and shape of the tensors passed to the collective that raised the exception."""
    for frame, _ in _frames(error):
        if frame.f_code.co_filename.endswith(COLLECTIVES):
            arguments = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            found = (_tensors(frame.f_locals.get(name)) for name in arguments)
            return next(filter(None, found), "")
    return ""


def _sequence(_: BaseException) -> int | None:
    """Returns the number of collectives that this rank has called; None if there are several process groups."""
    if "torch.distributed" not in sys.modules or len(process_groups()) > 1:
        return None
    return collectives_called()


def _phase(error: BaseException) -> str:
    """Returns the phase of training in which memory ran out, by the outermost frame in ``_PHASES``; else empty."""
    if _kind(error) != "memory":
        return ""
    seen = {id(error)}
    while error.__cause__ is not None and id(error.__cause__) not in seen:
        error = error.__cause__
        seen.add(id(error))
    for frame, _ in reversed(_frames(error)):
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        for of_file, of_function, phase in _PHASES:
            if file.endswith(of_file) and function.startswith(of_function):
                return phase
    return ""


def _tensors(value: Any) -> str:
    """Returns dtype and shape of a tensor or of a list of tensors, such as float32[8, 4]; empty for other values."""
    if isinstance(value, list) and value:
        shown = [_tensors(item) for item in value]
        return f"{len(shown)} x {shown[0]}" if len(set(shown)) == 1 else ", ".join(shown)
    if not (hasattr(value, "dtype") and hasattr(value, "shape")):
        return ""
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _kind(error: BaseException) -> FailureKind:
    names = {cls.__name__ for cls in type(error).__mro__}
    if "OutcomeException" in names:  # pytest's, whose __module__ says builtins
        return "skipped" if "Skipped" in names else "failed"
    if isinstance(error, DdpperfError):
        return "refused"
    if isinstance(error, SystemExit):
        return "exited"
    if names & {"MemoryError", "OutOfMemoryError"} or WANT_OF_MEMORY.search(str(error)[: streams.OUTPUT_LIMIT]):
        return "memory"
    return "raised"


def _name(error: BaseException) -> str:
    kind = type(error)
    prefix = "" if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}."
    return f"{prefix}{kind.__qualname__}"


def _text(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"sys.exit({'' if error.code is None else repr(error.code)})"
    return str(error)


def to_stderr(text: str) -> None:
    """Writes a line to stderr, although the user's code may have replaced ``print`` or removed the stream."""
    stream = sys.stderr or sys.__stderr__
    if stream is not None:
        stream.write(f"{text}\n")


def traceback_text(error: BaseException) -> str:
    """Returns an exception's traceback without frames of this plugin; never raises."""
    return _in_words(_traceback, error)


def _traceback(error: BaseException) -> str:
    if isinstance(error, DdpperfError):
        return ""  # the message says enough
    try:
        summary = traceback.TracebackException.from_exception(error)
        _cut_machinery(summary, set())
        return "".join(summary.format()).rstrip("\n")
    except RecursionError:  # thousands of causes
        return "".join(traceback.format_exception(type(error), error, error.__traceback__, chain=False)).rstrip("\n")
    except Exception:  # noqa: BLE001  users' code has patched what formats, or memory has run out
        kept = [frame for frame in frames_of(error)[::-1] if not is_machinery(frame.file)]
        lines = [f'  File "{frame.file}", line {frame.line}, in {frame.function}' for frame in kept]
        return "\n".join(["Traceback (most recent call last):", *lines, f"{_name(error)}: {_text(error)}"])


def _cut_machinery(summary: traceback.TracebackException, seen: set[int]) -> None:
    """Removes frames of this plugin and of cloudpickle from an exception and from the exceptions that caused it."""
    if id(summary) in seen:
        return
    seen.add(id(summary))
    kept = [frame for frame in summary.stack if not is_machinery(frame.filename)]
    users = next((i for i, frame in enumerate(kept) if not in_library(frame.filename)), None)
    ours = [frame.filename.startswith(_INSTRUMENTS) for frame in kept]
    if users is not None:  # instruments lead to the user's code, and from there to torch; the innermost may be at fault
        kept = [frame for i, frame in enumerate(kept) if not ours[i] or (ours[-1] and i > users)]
    summary.stack = traceback.StackSummary.from_list(kept)
    for cause in (summary.__cause__, summary.__context__):
        if cause is not None:
            _cut_machinery(cause, seen)
