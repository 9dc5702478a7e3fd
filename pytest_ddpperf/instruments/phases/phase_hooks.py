"""Finds when phases begin and end in any training code, by functions of torch that it calls; shows them in a trace."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import get_ident, main_thread
from typing import Any, NamedTuple, Protocol, cast

from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.phases.recorder import OPENS, Section
from pytest_ddpperf.instruments.torch_internals import compiled_frames, replaced, subclasses, uncompiled
from pytest_ddpperf.records.phases import BACKWARD, DATA_WAIT, FORWARD, GRADIENT_SYNC, OPTIMIZER, OTHER, LearningRates

# Ranges of a trace within ``OPTIMIZER``; a scheduler of the user's own is called outside of it.
CLIPPING, SCALING, SCHEDULING, ZERO_GRAD = "gradient_clipping", "loss_scaling", "lr_scheduling", "zero_grad"


class Follower(Protocol):
    """A recorder that phase hooks call when a phase or a section begins, and when it ends."""

    def enter(self, phase: str, name: str = "") -> Any:
        """Begins a phase, ``name`` in a trace; returns the value for ``go`` to end it, or None if it cannot begin."""

    def enter_section(self, name: str) -> Any:
        """Begins a section that the user named; returns the value for ``go`` to end it, or None if it cannot begin."""

    def go(self, place: Any) -> None:
        """Ends a phase or section; ``place`` is the value that ``enter`` or ``enter_section`` returned at its start."""


class PhaseHook(NamedTuple):
    """A function whose running time belongs to one phase of the step."""

    owner: Any  # the module, class or object that the function is an attribute of
    name: str  # of the attribute, under which all callers look it up when they call
    phase: str  # one of ``PHASES``; ``OTHER`` for a part of a step that is a range of a trace, and no phase
    range: str = ""  # its name in a trace; empty for the name of the phase there


# The deepest calls in Python, so that the name under which a user imported their callers does not matter.
_COLLECTIVES = re.compile(
    r"_?(all_?(gather|reduce|to_?all)|reduce|broadcast|gather|scatter|send|recv|barrier|end_coal)"
)
_FUNCTIONAL_COLLECTIVES = (
    *("all_gather_tensor", "all_reduce", "all_reduce_coalesced", "all_to_all_single", "broadcast"),
    *("reduce_scatter_tensor", "wait_tensor"),
)
_CLIPPING = (
    *("_clip_grads_with_norm_", "_get_total_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"),
    "get_total_norm",
)
# Modules of torch that not every training loads, and the functions in them that are phases.
_WHERE_LOADED = (
    ("torch.distributed._functional_collectives", None, _FUNCTIONAL_COLLECTIVES, GRADIENT_SYNC, ""),
    ("torch.distributed._functional_collectives", "AsyncCollectiveTensor", ("wait",), GRADIENT_SYNC, ""),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", ("clip_grad_norm_",), OPTIMIZER, CLIPPING),
    ("torch.distributed.fsdp.sharded_grad_scaler", "ShardedGradScaler", ("unscale_", "update"), OPTIMIZER, SCALING),
)


def torch_phase_hooks() -> tuple[PhaseHook, ...]:
    """Returns the functions of torch whose time belongs to a phase, if their modules are loaded."""
    import torch
    from torch._C import _distributed_c10d as c10d
    from torch.nn.utils import clip_grad
    from torch.optim import lr_scheduler
    from torch.utils.data import dataloader

    schedulers = (lr_scheduler.LRScheduler, *subclasses(lr_scheduler.LRScheduler))
    owners: list[tuple[Any, Sequence[str], str, str]] = [
        (torch.nn.Module, ("__call__",), FORWARD, ""),  # global hooks would slow all modules, and be compiled
        (torch.Tensor, ("backward",), BACKWARD, ""),
        (torch.autograd, ("_engine_run_backward", "backward", "grad"), BACKWARD, ""),
        (torch.optim.Optimizer, ("zero_grad",), OPTIMIZER, ZERO_GRAD),
        (torch.amp.GradScaler, ("step",), OPTIMIZER, ""),
        (torch.amp.GradScaler, ("unscale_", "update"), OPTIMIZER, SCALING),
        (clip_grad, _CLIPPING, OPTIMIZER, CLIPPING),
        (torch.nn.utils, _CLIPPING, OPTIMIZER, CLIPPING),
        *((kind, ("step",), OTHER, SCHEDULING) for kind in schedulers if "step" in vars(kind)),
        (dataloader.DataLoader, ("__iter__",), DATA_WAIT, ""),  # the begin of an epoch may start workers
        (dataloader._BaseDataLoaderIter, ("__next__",), DATA_WAIT, ""),  # noqa: SLF001  all loaders' iterators are of it
        (c10d.ProcessGroup, tuple(filter(_COLLECTIVES.match, dir(c10d.ProcessGroup))), GRADIENT_SYNC, ""),
        (c10d.Work, ("wait",), GRADIENT_SYNC, ""),
    ]
    for module, owner, names, phase, within in _WHERE_LOADED:
        if module in sys.modules:
            loaded = sys.modules[module]
            owners.append((loaded if owner is None else getattr(loaded, owner), names, phase, within))
    return tuple(
        PhaseHook(owner, name, phase, within)
        for owner, names, phase, within in owners
        for name in names
        if hasattr(owner, name)
    )


@contextmanager
def followed(recorder: Follower, hooks: Sequence[PhaseHook]) -> Iterator[None]:
    """Makes phase hooks and the user's sections, in this context, report to a recorder."""
    with ExitStack() as stack:
        for hook in hooks:
            within = _within(recorder, hook, getattr(hook.owner, hook.name))
            stack.enter_context(replaced(hook.owner, hook.name, within))

        @uncompiled
        def enter(section: Section) -> None:
            section.before = recorder.enter_section(section.name)

        @uncompiled
        def leave(section: Section, *_raised: object) -> None:
            if section.before is not None:
                recorder.go(section.before)

        stack.enter_context(replaced(Section, "__enter__", enter))
        stack.enter_context(replaced(Section, "__exit__", leave))
        yield


def _within(recorder: Follower, hook: PhaseHook, function: Callable[..., Any]) -> Callable[..., Any]:
    enter, go, phase, name = recorder.enter, recorder.go, hook.phase, hook.range

    @uncompiled
    @functools.wraps(function)
    def within(*args: Any, **kwargs: Any) -> Any:
        before = enter(phase, name)
        if before is None:
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            go(before)

    return within


@contextmanager
def optimizers_followed(recorder: Follower) -> Iterator[None]:
    """Makes every optimizer's ``step``, in this context, report to a recorder.

    torch's hooks of optimizers are used, because learning rate schedulers would not see a replaced ``step``. A graph
    that contains ``step`` is recompiled while there are hooks.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    opened: dict[int, Any] = {}

    @uncompiled
    def before_step(optimizer: object, _args: object, _kwargs: object) -> None:
        before = recorder.enter(OPTIMIZER)
        if before is not None:
            opened[id(optimizer)] = before

    @uncompiled
    def after_step(optimizer: object, _args: object, _kwargs: object) -> None:
        before = opened.pop(id(optimizer), None)  # none for an optimizer that another one calls
        if before is not None:
            recorder.go(before)

    with ExitStack() as hooks:
        hooks.callback(register_optimizer_step_pre_hook(before_step).remove)
        hooks.callback(register_optimizer_step_post_hook(after_step).remove)
        yield


RANGES: Mapping[str, str] = {
    DATA_WAIT: "data_wait",
    FORWARD: "forward_pass",
    BACKWARD: "backward_pass",
    GRADIENT_SYNC: "gradient_sync",
    OPTIMIZER: "optimizer_step",
    OTHER: "other",
}


class Ranges:
    """A recorder that opens named ranges for phases, sections, named parts of a phase, and collectives in backward."""

    def __init__(self) -> None:
        for instrument in (Ranges.enter, Ranges.enter_section, Ranges.go, Ranges.note_rates):
            uncompiled(instrument)
        self._open: list[tuple[str, str, AbstractContextManager[Any]]] = []  # phase, name and range, outermost first
        self._thread = main_thread().ident
        self._rates: dict[int, list[tuple[int, tuple[float, ...]]]] = {}

    def enter(self, phase: str, name: str = "") -> int | None:
        """Begins a phase's range; returns the number of ranges that were open before, or None if no range begins."""
        name = name or RANGES[phase]
        top, top_name = self._open[-1][:2] if self._open else (OTHER, "")
        opens = phase in OPENS[top] or (phase, top) in {(GRADIENT_SYNC, BACKWARD), (OTHER, OTHER)}
        part = phase in {top, OTHER} and top_name == RANGES[top] != name
        if not (opens or part) or name == top_name or get_ident() != self._thread:
            return None
        return self._opened(phase, name)

    def enter_section(self, name: str) -> int | None:
        """Begins a section's range; returns the number of ranges that were open before, or None if no range begins."""
        if get_ident() != self._thread:
            return None
        top, top_name = self._open[-1][:2] if self._open else (OTHER, "")
        phase = name if name in RANGES else top
        name = RANGES.get(name, name)
        return None if name == top_name else self._opened(phase, name)

    def go(self, place: int) -> None:
        """Ends all open ranges except the ``place`` outermost ones."""
        while len(self._open) > place:
            self._open.pop()[2].__exit__(None, None, None)

    def note_rates(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        """Records the learning rates with which an optimizer begins a step, unless they are tensors on a GPU."""
        rates = [group.get("lr") for group in getattr(optimizer, "param_groups", ())]
        if all(isinstance(rate, (int, float)) or getattr(rate, "is_cpu", False) for rate in rates):
            self._rates.setdefault(id(optimizer), []).append((time.time_ns(), tuple(map(float, rates))))

    @property
    def rates(self) -> tuple[LearningRates, ...]:
        """Returns each optimizer's learning rates, with timestamps in ns. Optimizers with equal rates appear once."""
        different = {tuple(rates for _, rates in notes): tuple(notes) for notes in self._rates.values()}
        return tuple(different.values())

    def _opened(self, phase: str, name: str) -> int:
        from torch.profiler import record_function

        before, opened = len(self._open), cast("AbstractContextManager[Any]", record_function(name))
        opened.__enter__()
        self._open.append((phase, name, opened))
        return before


@contextmanager
def named_ranges(run: Callable[[], object], hooks: Sequence[PhaseHook]) -> Iterator[Ranges]:
    """Calls ``run``, a step, once; shows phases and sections as ranges of the profiler until this context ends."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    ranges = Ranges()
    with followed(ranges, (*torch_phase_hooks(), *hooks)), ExitStack() as optimizers:
        optimizers.callback(register_optimizer_step_pre_hook(ranges.note_rates).remove)
        optimizers.enter_context(optimizers_followed(ranges))
        frames = compiled_frames()
        run()
        if compiled_frames() > frames:
            optimizers.close()  # their steps may be part of a compiled graph, so they get no ranges
        yield ranges
