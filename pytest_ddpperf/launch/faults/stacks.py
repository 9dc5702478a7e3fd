"""Parses the stacks that faulthandler writes, and finds the positions of ranks in them."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from linecache import getline  # users' code may patch the module's
from pathlib import Path
from typing import NamedTuple

from pytest_ddpperf.instruments.host import from_here
from pytest_ddpperf.launch import interleaving
from pytest_ddpperf.launch.messages import StackPosition, grouped, numbers
from pytest_ddpperf.launch.redirection import installed_folders, own, told

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
_ESCAPED = re.compile(r"\\(?:x[0-9a-f]{2}|u(?!d[89a-f])[0-9a-f]{4}|U[0-9a-f]{8})")  # faulthandler writes only ASCII
STACK_SECONDS = 2.0  # in which ranks give their stacks
SIGNAL = signal.SIGUSR1  # makes faulthandler write the stacks of a rank's threads
MAIN_SIGNAL = signal.SIGWINCH  # makes it write the main thread's stack alone; without it a rank ignores this signal
_CUT = re.compile(r"^\.\.\.$", re.MULTILINE)  # after 100 threads faulthandler stops, and leaves the main one out
_ALONE = "Stack (most recent call first)"
_THREAD = re.compile(r"^(?=(?:Current thread|Thread) 0x|Stack \()", re.MULTILINE)
COLLECTIVES = "torch/distributed/distributed_c10d.py"
_DISTRIBUTED = ("/torch/distributed/", "/torch/nn/parallel/")
_OPERATORS = "torch/_ops.py"  # between a functional collective and the operator that waits
_WAIT = ".wait("  # for a handle of a collective; it has no Python frame
_BACKWARD = "_engine_run_backward"  # has no Python frames below it, but hooks that wait for other ranks' gradients
_TURNS = interleaving.__file__
_QUEUE = "the queue of interleaved launches"
_POOLS = ("/threading.py", "/concurrent/futures/thread.py")  # all that a thread runs until it is given a function
_PACKAGE = Path(__file__).parents[2]
_ANSWERING = str(Path(__file__).with_name("flight_recorder.py"))  # a thread of ours, which waits for the controller
GPU_WAIT = "a wait for its GPU"
# Lines that need a value of a tensor, and torch's functions that wait for the device: they have no frames below them.
_NEEDS_VALUE = re.compile(r"\.(?:item|tolist|cpu|synchronize)\(|\bfloat\(")
_SYNCHRONISING = ("torch/cuda/__init__.py", "torch/cuda/streams.py", "torch/accelerator/__init__.py")
_MACHINERY = tuple(str(_PACKAGE / folder) for folder in ("launch", "training"))
# Names of functions that torch wraps around the functions that users call.
_WRAPPERS = frozenset(
    {"wrapper", "inner", "_fn", "decorate_context", "_call_impl", "_wrapped_call_impl", "__call__", "compile_wrapper"}
)
_NOT_USERS = re.compile(r"/site-packages/|/(\w\w)/c\1[a-z2-7]{49}\.py$")  # torch.compile names a file by its hash


class Frame(NamedTuple):
    """One frame of a stack."""

    file: str
    line: int
    function: str


def threads(text: str) -> list[list[Frame]]:
    """Returns the stacks in faulthandler's text, one list of frames for each thread. The main thread comes first.

    Each list begins with the innermost frame. The main thread's list is empty if its stack is missing in the text.
    """
    read = _ESCAPED.sub(lambda escaped: escaped[0].encode().decode("unicode_escape"), text)
    stacks = [
        [Frame(found["file"], int(found["line"]), found["function"]) for found in _FRAME.finditer(part)]
        for part in _THREAD.split(read)
        if part.startswith(("Current thread", "Thread", _ALONE))
    ]
    own = [stack for stack in stacks if not any(frame.file == _ANSWERING for frame in stack)]
    return [*([[]] if lacks_main_thread(text) else []), *own[::-1]]


def lacks_main_thread(text: str) -> bool:
    """Returns whether faulthandler's text was cut because of many threads, so that the main thread is missing."""
    return _CUT.search(text) is not None and _ALONE not in text


def position(stack: Sequence[Frame], *, nccl: bool = False) -> StackPosition | None:
    """Returns the position in the user's code that a stack shows, or None for an empty stack.

    With ``nccl``, a rank that waits for its GPU counts as waiting for other ranks: NCCL's collectives run on the GPU.
    """
    on_gpu = nccl and bool(stack) and _waits_for_gpu(stack[0])
    if any(frame.file == _TURNS for frame in stack):
        return StackPosition("", _QUEUE, waits=True)
    frames = [frame for frame in stack if not _carries(frame)]
    user = next((frame for frame in frames if not in_library(frame.file)), None)
    inner = frames[: frames.index(user)] if user is not None else frames
    line = f"{told(from_here(own(user.file)))}:{user.line} in {user.function}" if user is not None else ""
    collective = next((frame.function for frame in inner if frame.file.endswith(COLLECTIVES)), "")
    called = next((frame.function for frame in reversed(inner) if frame.function not in _WRAPPERS), "")
    if line or called:
        call = collective or (GPU_WAIT if on_gpu and not (line and called) else called)
        return StackPosition(line, call, bool(collective) or on_gpu or _waits_inside(frames))
    return StackPosition("", GPU_WAIT if on_gpu else "the start of the rank", waits=on_gpu) if stack else None


def _waits_for_gpu(innermost: Frame) -> bool:
    if innermost.file.endswith(_SYNCHRONISING):
        return innermost.function == "synchronize"
    return _NEEDS_VALUE.search(getline(innermost.file, innermost.line)) is not None


def _waits_inside(frames: Sequence[Frame]) -> bool:
    """Returns whether the innermost frame is in backward, in torch.distributed, or in a wait for a handle."""
    innermost = next((frame for frame in frames if not frame.file.endswith(_OPERATORS)), frames[0])
    return (
        innermost.function == _BACKWARD
        or any(folder in innermost.file for folder in _DISTRIBUTED)
        or _WAIT in getline(innermost.file, innermost.line)
    )


def minority(groups: Sequence[list[int]]) -> list[int]:
    """Returns the ranks outside the largest group, no ranks on a tie, or all ranks if there is only one group."""
    if len(groups) <= 1:
        return [rank for group in groups for rank in group]
    first, second, *_ = sorted(groups, key=len, reverse=True)
    return [rank for group in groups if group is not first for rank in group] if len(first) > len(second) else []


def listing(stacks: Mapping[int, str], guilty: int | None = None) -> str:
    """Returns the stacks of all ranks as text: the guilty rank's first, and equal stacks only once."""
    order = sorted(stacks, key=lambda rank: (rank != guilty, rank))
    groups = grouped((rank, written(stacks[rank])) for rank in order)
    listed = [f"{numbers(ranks)}:\n{text}" for text, ranks in groups.items()]
    finished = [f"rank {guilty}:\n  had finished"] if guilty is not None and guilty not in stacks else []
    return "\n\n".join([*finished, *listed])


def written(text: str, *, idle: bool = False) -> str:
    """Returns faulthandler's text as a traceback without frames of this plugin; ``idle`` includes idle threads."""
    found = threads(text)
    if not found:
        return "  gave no stack: the rank was stopped, or in a system call that cannot be interrupted"
    parts: list[str] = []
    for stack in found:
        shown = [frame for frame in stack if not _carries(frame)]
        working = shown if idle else [frame for frame in shown if not frame.file.endswith(_POOLS)]
        if working or stack is found[0]:
            title = [f"  another thread ({len(parts)}):"] if parts else []
            lines = [f'  File "{from_here(f.file)}", line {f.line} in {f.function}' for f in shown[::-1]]
            parts.append("\n".join([*title, *lines]))
    waiting = any(frame.file == _TURNS for stack in found for frame in stack)
    return "\n".join(filter(None, parts)) or (f"  in {_QUEUE}" if waiting else "  the start of the rank")


def _carries(frame: Frame) -> bool:
    """Returns whether a frame is in the plugin's code that calls the user's function."""
    return is_machinery(frame.file) or frame.file == "<string>"


def is_machinery(filename: str) -> bool:
    """Returns whether a file belongs to this plugin or to cloudpickle, which call the user's function on a rank."""
    return filename.startswith(_MACHINERY) or "/cloudpickle/" in filename


def in_library(filename: str) -> bool:
    """Returns whether a file belongs to Python, to an installed package or to this plugin, or torch generated it."""
    return filename.startswith(("<", f"{_PACKAGE}/", *installed_folders())) or bool(_NOT_USERS.search(filename))
