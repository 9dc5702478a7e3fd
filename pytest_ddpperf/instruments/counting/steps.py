"""Combines the counts of several steps into the counts of one step, and recognises steps that do other work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MethodWrapperType
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, autograd, overrides
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch as dispatching

from pytest_ddpperf.errors import TrainingEnded
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.torch_internals import collectives_called, process_groups, replaced
from pytest_ddpperf.records.counts import Counts, count_row
from pytest_ddpperf.records.rhythm import components_of, rhythm_of, rhythm_of_all, rhythm_text
from pytest_ddpperf.units import format_number

Details = dict[str, dict[str, float]]
Whole: TypeAlias = "Mapping[str, Mapping[str, float]]"
Seen: TypeAlias = "dict[str, Mapping[Any, float]]"
"""The counts of a step by metric, and then by part (an operator, say) and line of code (None if there is none)."""

K = TypeVar("K")

_LEVELS = frozenset({"peak_tensor_bytes", "model_state_bytes"})  # of several steps the largest is used, not the mean
_OF_STEP = _LEVELS | {"retained_bytes"}  # counts that only steps counted in full have
_UNUSUAL = "most steps do other work than the steps that were counted in full"
_FUNCTION_MODES: Any = overrides._get_current_function_mode_stack, overrides._push_mode, overrides._pop_mode  # noqa: SLF001 - torch has no other
_DISPATCH_MODES: Any = dispatching._get_current_dispatch_mode_stack, dispatching._push_mode, dispatching._pop_mode  # noqa: SLF001 - torch has no other
_TELLING = (torch.dtype, torch.device, torch.layout, bool, str)  # numbers change from step to step, as a learning rate


def per_step(steps: Sequence[Details]) -> Details:
    """Returns the mean counts of steps that form one repeating period; for bytes in use, the largest count."""
    return {
        metric: max((step[metric] for step in steps), key=total_of)
        if metric in _LEVELS
        else _means([step[metric] for step in steps])
        for metric in _common(steps)
    }


def _common(found: Sequence[Whole]) -> list[str]:
    """Returns the metrics that all steps have, because the profiler may miss a metric in some steps."""
    return [metric for metric in found[0] if all(metric in details for details in found)] if found else []


def _means(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: math.fsum(values) / len(found) for name, values in _values(found).items()}


def _values(found: Sequence[Mapping[K, float]]) -> dict[K, tuple[float, ...]]:
    names = dict.fromkeys(name for parts in found for name in parts)
    return {name: tuple(parts.get(name, 0.0) for parts in found) for name in names}


def usual_steps(counted: Sequence[Details], shown: Sequence[Seen], seen: Sequence[Seen]) -> list[list[Details]]:
    """Returns the steps in ``counted`` that do the same work as most steps, each step as a list of one step.

    ``counted`` has full counts of some steps. ``shown`` has their cheap counts, and ``seen`` all steps' cheap counts.
    """
    most = max(map(seen.count, seen))
    return [[step] for step, does in zip(counted, shown, strict=False) if seen.count(does) >= most - 1]


def counts_of(alike: Sequence[Whole], of_device: Sequence[Whole], seen: Sequence[Seen], *, unusual: bool) -> Counts:
    """Returns a step's counts: the mean over steps for metrics in ``seen``, the largest count for other metrics.

    ``seen`` has cheap counts of all steps. ``alike`` has full counts of some steps. ``unusual`` is True if most steps
    do other work than the steps in ``alike``. ``of_device`` has counts of the profiler.
    """
    details: dict[str, Mapping[str, float]] = {}
    totals, unstable, varying = {}, {}, {}
    for steps in (alike, of_device):
        for metric in _common(steps):
            last = steps[-1][metric]
            details[metric] = max((each[metric] for each in reversed(steps)), key=total_of)
            totals[metric] = total_of(details[metric])
            differences = [_difference(each[metric], last) for each in steps]
            told = next(filter(None, differences), _UNUSUAL if unusual and metric in _OF_STEP else "")
            if told and count_row(metric).gated:
                unstable[metric] = told
    for metric in seen[0]:
        of_part: dict[str, list[tuple[float, ...]]] = {}
        for (part, _), values in _values([each[metric] for each in seen]).items():
            of_part.setdefault(part, []).append(values)
        every = [values for parts in of_part.values() for values in parts]
        details[metric] = {**details.get(metric, {}), **{part: _mean(parts) for part, parts in of_part.items()}}
        totals[metric] = totals.get(metric, 0.0) + _mean(every)
        made_of = of_part if count_row(metric).made_up else {}
        different = {part: components_of(parts) for part, parts in {"": every, **made_of}.items()}
        if different[""] and count_row(metric).gated:
            varying[metric] = {part: found for part, found in different.items() if found}
            if rhythm_of_all(different[""]).irregular:
                unstable[metric] = _widest(of_part)
    totals["ddp_buckets"] = float(len(details["ddp_buckets"]))
    return Counts(totals=totals, details=details, unstable=unstable, steps=len(seen), varying=varying)


def _mean(parts: Sequence[tuple[float, ...]]) -> float:
    return math.fsum(rhythm_of(values).mean for values in parts)


def _widest(of_part: Mapping[str, Sequence[tuple[float, ...]]]) -> str:
    """Returns a text with the part, such as an operator, whose count varies most between steps, and with its counts."""
    sums = {part: tuple(map(math.fsum, zip(*parts, strict=True))) for part, parts in of_part.items()}
    part = max(sums, key=lambda part: max(sums[part]) - min(sums[part]))
    return f"{part} {rhythm_text(sums[part])}"


def _difference(first: Mapping[str, float], following: Mapping[str, float]) -> str:
    """Returns, as text, the part that differs most between two steps in a row; empty if the steps are equal."""
    sizes = {name: abs(following.get(name, 0.0) - first.get(name, 0.0)) for name in {**following, **first}}
    name = max(sizes, key=sizes.__getitem__, default="")
    if not sizes.get(name):
        return ""
    before, after = (format_number(parts.get(name, 0.0)) for parts in (first, following))
    return f"{name} {before} in one step, {after} in the next"


def total_of(parts: Mapping[str, float]) -> float:
    """Returns the sum of the parts of a count."""
    return float(sum(parts.values()))


def graph_so_far() -> tuple[int, int]:
    """Returns how many autograd nodes this thread has made, and how many collectives ran in all process groups."""
    return torch._C._autograd._get_sequence_nr(), collectives_called(process_groups())  # noqa: SLF001 - no public number


class LowestMode:
    """A mixin of torch modes that enter the mode stack below the user's modes, and can leave it from any position.

    Only two kinds stay lower: the mode of ``torch.set_default_device``, and modes with an attribute ``below_counts``.
    """

    def __enter__(self) -> Any:
        with self._changed_modes() as modes:
            low = [hasattr(mode, "old_device") or hasattr(mode, "below_counts") for mode in modes]
            modes.insert(low.index(False) if False in low else len(low), self)
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed_modes() as modes:
            if self in modes:
                modes.remove(self)

    @contextmanager
    def _changed_modes(self) -> Iterator[list[Any]]:
        """Yields a list of this thread's modes, lowest first; after this context, the thread has the list's modes."""
        now, push, pop = _FUNCTION_MODES if isinstance(self, TorchFunctionMode) else _DISPATCH_MODES
        modes = [mode for mode in now() if getattr(mode, "_mode_key", None) is None]  # others are below, and stay
        for _ in modes:
            pop()
        yield modes
        for mode in modes:
            push(mode)


class CallWatch(LowestMode, TorchFunctionMode):
    """A mode that computes a checksum of the torch functions that Python calls, with their arguments.

    Of tensors, the checksum uses shape, dtype and device; of other arguments, dtypes, devices, strings and booleans. It
    omits calls inside another call. It does not see which branches C++ code takes, such as in a scripted module.
    """

    def __init__(self, paused: Callable[[], bool]) -> None:
        super().__init__()
        self._paused = paused
        self.calls = 0  # a sum over the calls, so that their order does not matter

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if type(func) is not MethodWrapperType and not self._paused():  # an attribute that is read is no work
            self.calls = (self.calls + _mark(func, (*args, *kwargs.values()))) % 2**64
        return func(*args, **kwargs)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Computes the checksum of all calls in this context, including calls of hooks that backward runs."""
        run: Callable[..., Any] = autograd._engine_run_backward  # type: ignore[attr-defined]  # noqa: SLF001  all begin there

        def with_hooks(*args: Any, **kwargs: Any) -> Any:
            with self:  # torch leaves a mode while the function runs that it was called for
                return run(*args, **kwargs)

        self.calls = 0
        with replaced(autograd, "_engine_run_backward", with_hooks), self:
            yield


def _mark(func: Any, given: tuple[Any, ...]) -> int:
    """Returns a hash of a function and its arguments; 1 if arguments, such as lazy parameters, cannot be inspected."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - else classes of the user are asked
        try:
            return hash((func, *_looks(given)))
        except Exception:  # noqa: BLE001 - tensors of the user may raise anything; nothing of that is the step's
            return 1


def _looks(given: Any) -> list[Any]:
    found: list[Any] = []
    for each in given:
        if isinstance(each, Tensor):
            if not isinstance(each, FakeTensor):
                found += (each.numel() if each.is_nested else each.shape, each.dtype, each.device)
        elif isinstance(each, (list, tuple)):
            found.append(len(each))
            if each and not isinstance(each[0], (int, float)):
                found += _looks(each)
        elif isinstance(each, _TELLING):
            found.append(each)
    return found


class OtherSteps:
    """The steps after the fully counted steps, until training has ended or the time is up on any rank."""

    def __init__(self, run: Callable[[], Any], on_any_rank: Callable[[bool], bool], seconds: float) -> None:
        self._run, self.any, self._seconds = run, on_any_rank, seconds
        self._until = time.monotonic() + seconds
        self.over = self.ended = False  # whether no step follows; whether that is because training has ended

    def begin_anew(self) -> None:
        """Restarts the time limit for the steps that follow."""
        self._until = time.monotonic() + self._seconds

    def run_one(self, look: Callable[[Callable[[], Any]], bool]) -> bool:
        """Calls ``look(run)`` to run a step; returns whether it returned True on any rank and training goes on."""
        ended, last = False, False
        try:
            last = look(self._run)
        except (TrainingEnded, StopIteration):
            ended = True
        if not self.any(ended or last or time.monotonic() > self._until):
            return False
        self.ended, last = self.any(ended), self.any(last)
        self.over = self.ended or not last
        return last and not self.ended
