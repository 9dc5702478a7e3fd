"""The lines of the user's code that call operators, and that make loaders, samplers and wrappers."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import sysconfig
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from linecache import getline  # users' code may patch the module's
from operator import attrgetter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

import torch
from torch.distributed._composable_state import _State
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer
from torch.utils.data import DataLoader, DistributedSampler

from pytest_ddpperf.instruments.torch_internals import compilations, graph_breaks, replaced, uncompiled
from pytest_ddpperf.records.rhythm import rhythm_of
from pytest_ddpperf.records.sites import STRATEGIES, CallSite

_TORCH = Path(torch.__file__).parent
_AROUND = (str(_TORCH / "_compile.py"), str(_TORCH / "_dynamo"))  # files of frames around a dispatched call
_DIGITS = 12  # of a digest
_PACKAGES = ("/site-packages/", "/dist-packages/")
_PLUGIN = Path(__file__).parents[2]
_MADE = "_ddpperf_made_at"  # of an object whose making was noted


class Place(NamedTuple):
    """A line of code, and the lines before and after it in the chain of calls."""

    file: str  # absolute; empty if no frame but those of torch and of the plugin is on the stack
    line: int
    function: str
    backward: bool  # whether autograd's backward led to it
    through: tuple[str, int, str] | None = None  # file, line and function of another package that called torch for it
    caller: tuple[str, int, str] | None = None  # the same of the user's code that called the function, if asked for


T = TypeVar("T")
SiteCounts = Mapping[str, Mapping[tuple[str, Place], float]]
"""Counts by metric, and then by part (such as an operator's name) and line of code."""


class Stack:
    """The Python stack of the running code.

    On a GPU, autograd runs in separate threads, whose stacks lack the frames that called backward. There the stack goes
    on with the frames of the thread that made this object, because that thread waits for backward.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def place(self) -> Place:
        """Returns the innermost line of the user's code or of a strategy; its field ``caller`` is None."""
        return self.call()._replace(caller=None)

    def call(self) -> Place:
        """Returns ``place()`` with the field ``caller``: the next line on the stack in another function of the user."""
        backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001  torch offers no other way to ask
        frames = self._frames()
        place = place_of(frames, _frame_file, _frame_line, backward=backward)
        for frame in frames:  # those around the place's
            code = frame.f_code
            if _owner(code.co_filename) == "user" and (code.co_filename, code.co_name) != (place.file, place.function):
                return Place(*place[:5], (code.co_filename, frame.f_lineno, code.co_name))
        return place

    def comes_from(self, codes: frozenset[CodeType]) -> bool:
        """Returns whether the stack contains a function that has one of these code objects."""
        return any(frame.f_code in codes for frame in self._frames())

    def optimizer_steps(self) -> int:
        """Returns how many calls of optimizers' ``step`` are running, one inside the other."""
        around = optimizer.__file__, "wrapper"  # torch's, which calls a step and its hooks
        return sum((frame.f_code.co_filename, frame.f_code.co_name) == around for frame in self._frames())

    def is_compiled(self, captured: frozenset[tuple[str, int]]) -> bool:
        """Returns whether torch.compile's wrapper is on the stack, and inside it a (file, line) of ``captured``."""
        found, wrappers = False, compiled_wrappers()
        for code in (frame.f_code for frame in self._frames()):
            found = found or _is_captured(code, captured)
            if code in wrappers:
                return found
        return False

    def _frames(self) -> Iterator[FrameType]:
        frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  inspect is much slower
        others = [] if threading.get_ident() == self._thread else [self._thread]
        while frame is not None:
            yield frame
            frame = frame.f_back
            if frame is None and others:
                frame = sys._current_frames().get(others.pop())  # noqa: SLF001  there is no other way


@cache
def compiled_wrappers() -> frozenset[CodeType]:
    """Returns the code objects of the wrappers that torch.compile makes, even if the wrapped code runs uncompiled."""
    from torch._dynamo.eval_frame import _TorchDynamoContext

    inside = (each for each in _TorchDynamoContext.__call__.__code__.co_consts if isinstance(each, CodeType))
    return frozenset(code for code in inside if code.co_name in {"compile_wrapper", "_fn"})  # of torch 2.8 and of 2.6


def captured_lines() -> frozenset[tuple[str, int]]:
    """Returns file and line of each function that torch.compile captured, and of each part after a graph break."""
    return frozenset((at.filename, at.lineno or 0) for _, at in compilations())


@cache
def _is_captured(code: CodeType, captured: frozenset[tuple[str, int]]) -> bool:
    lines = {code.co_firstlineno, *(line for *_, line in code.co_lines())}  # in Python 3.10 these are without the first
    return not captured or any((code.co_filename, line) in captured for line in lines)


def break_sites() -> dict[tuple[str, Place], float]:
    """Returns the number of graph breaks so far, by the first line of the break's reason and by line of code."""
    found: defaultdict[tuple[str, Place], float] = defaultdict(float)
    for reason, stack in graph_breaks():
        place = place_of(reversed(stack), file_of_trace, lambda frame: (frame.lineno or 0, frame.name), backward=False)
        if place.file:
            found[reason, place] += 1
    return dict(found)


def compiled_sites(reasons: Iterable[str]) -> dict[tuple[str, Place], float]:
    """Returns how often torch.compile has compiled functions for these reasons, by reason and by function."""
    found = Counter((said, Place(at.filename, at.lineno or 0, at.name, backward=False)) for said, at in compilations())
    return {key: float(times) for key, times in found.items() if key[0] in reasons}


@contextmanager
def making_noted() -> Iterator[None]:
    """Stores in each loader, sampler, wrapper and optimizer that is made in this context the line that made it."""
    stack = Stack()

    def noting(init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def make(made: Any, *args: Any, **kwargs: Any) -> None:
            init(made, *args, **kwargs)
            vars(made)[_MADE] = tuple(stack.place())  # it may be pickled with the object

        return uncompiled(make)

    with ExitStack() as opened:
        for kind in _noted():
            opened.enter_context(replaced(kind, "__init__", noting(kind.__init__)))
        yield


def _noted() -> list[Any]:
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # to import it takes seconds
    kinds = [DataLoader, DistributedSampler, DistributedDataParallel, CheckpointWrapper, _State, torch.optim.Optimizer]
    return kinds if fsdp is None else [*kinds, fsdp.FullyShardedDataParallel]


def made_at(made: object) -> Place | None:
    """Returns the line that made an object; None if ``making_noted`` was not active."""
    found = getattr(made, "__dict__", {}).get(_MADE)
    return None if found is None else Place(*found)


def without_callers(found: Mapping[tuple[str, Place], float]) -> dict[tuple[str, Place], float]:
    """Adds up each line's counts over its callers. Keys have a part of the count, such as an operator, and a line."""
    lines: defaultdict[tuple[str, Place], float] = defaultdict(float)
    for (part, place), value in found.items():
        lines[part, place._replace(caller=None)] += value
    return dict(lines)


def call_sites(
    steps: Sequence[SiteCounts], roots: Sequence[str], strategy: str = ""
) -> dict[str, tuple[CallSite, ...]]:
    """Returns the call sites of each metric; a site's value is its mean over the steps that have the metric."""
    metrics = dict.fromkeys(metric for step in steps for metric in step)
    found = {metric: _sites([step[metric] for step in steps if metric in step], roots, strategy) for metric in metrics}
    return {metric: sites for metric, sites in found.items() if sites}


def _sites(
    steps: Sequence[Mapping[tuple[str, Place], float]], roots: Sequence[str], strategy: str
) -> tuple[CallSite, ...]:
    found: defaultdict[CallSite, float] = defaultdict(float)
    for part, place in dict.fromkeys(key for step in steps for key in step):
        file = _relative(place.file, roots)
        site = CallSite(
            part=part,
            file=file,
            line=place.line,
            function=place.function,
            source=_source(place.through or place[:3]),
            backward=place.backward,
            value=0.0,
            strategy="" if file and not file.startswith(STRATEGIES) else strategy,
            through=_text(place.through, roots),
            caller=_text(place.caller, roots),
            caller_source=_source(place.caller),
        )
        found[site] += rhythm_of([step.get((part, place), 0.0) for step in steps]).mean
    return tuple(replace(site, value=found[site]) for site in sorted(found) if found[site])


def _source(line: tuple[str, int, str] | None) -> str:
    return "" if line is None else digest(getline(*line[:2]).strip())


def _text(line: tuple[str, int, str] | None, roots: Sequence[str]) -> str:
    return "" if line is None else f"{_relative(line[0], roots)}:{line[1]} in {line[2]}"


def place_of(
    frames: Iterable[T], file_of: Callable[[T], str], line_of: Callable[[T], tuple[int, str]], *, backward: bool
) -> Place:
    """Returns the user's line of code in a stack as ``Stack.place`` does; ``frames`` begin with the innermost."""
    through: tuple[str, int, str] | None = None
    for frame in frames:
        owner = _owner(file := file_of(frame))
        if owner == "user":
            return Place(file, *line_of(frame), backward, through)
        if owner:
            through = through or (file, *line_of(frame))
    return Place(*(through or ("", 0, "")), backward)


file_of_trace: Callable[[Any], str] = attrgetter("filename")
_frame_file: Callable[[FrameType], str] = attrgetter("f_code.co_filename")
_frame_line: Callable[[FrameType], tuple[int, str]] = attrgetter("f_lineno", "f_code.co_name")


@cache
def _owner(file: str) -> str:
    """Returns whose code a file is: ``user`` (project or strategy), ``package``, or "" (torch, Python, the plugin)."""
    if file.startswith(("<", f"{Path(torch.__file__).parent}/")):
        return ""
    if file.startswith(f"{_PLUGIN}/"):
        return "user" if file.startswith(f"{_PLUGIN.parent}/{STRATEGIES}") else ""
    if any(folder in file for folder in _PACKAGES):
        return "package"
    library = any(file.startswith(f"{sysconfig.get_path(name)}/") for name in ("stdlib", "platstdlib"))
    return "" if library else "user"


def digest(source: str) -> str:
    """Returns a hash of a line of code, because baselines may not store the user's code; "" for no text."""
    return hashlib.sha256(source.encode(errors="replace")).hexdigest()[:_DIGITS] if source else ""


def _relative(file: str, roots: Sequence[str]) -> str:
    """Returns a file's path relative to site-packages, ``roots`` or ``sys.path``; for a file elsewhere, its name."""
    for folder in _PACKAGES:
        if folder in file:
            return file.rpartition(folder)[2]
    for folder in _folders(roots):
        if file.startswith(folder):
            return file.removeprefix(folder)
    return Path(file).name


def _folders(roots: Sequence[str]) -> Iterable[str]:
    imported = sorted((entry for entry in sys.path if Path(entry).is_absolute()), key=len, reverse=True)
    folders = [*roots, *map(os.path.realpath, roots), str(_PLUGIN.parent), *imported]
    return [f"{folder.rstrip(os.sep)}{os.sep}" for folder in folders]


def calling(mode: str) -> tuple[CodeType, int, int] | None:
    """Returns the code, frame and instruction that called an operator; ``mode`` is the file of the dispatch mode."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  inspect is much slower
    while frame is not None and frame.f_code.co_filename.startswith((mode, *_AROUND)):
        frame = frame.f_back
    return None if frame is None else (frame.f_code, id(frame), frame.f_lasti)
