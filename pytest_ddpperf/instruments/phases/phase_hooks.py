"""Finds when phases begin and end in any training code, by the functions of torch that all training code calls."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol

from pytest_ddpperf.instruments.phases.recorder import Section
from pytest_ddpperf.instruments.torch_internals import replaced, subclasses, uncompiled
from pytest_ddpperf.records.phases import BACKWARD, DATA_WAIT, FORWARD, GRADIENT_SYNC, OPTIMIZER, OTHER

# Ranges of a trace within ``OPTIMIZER``; a scheduler of the user's own is called outside of it.
CLIPPING, SCALING, SCHEDULING, ZERO_GRAD = "gradient_clipping", "loss_scaling", "lr_scheduling", "zero_grad"


class Follower(Protocol):
    """A recorder that phase hooks call when a phase or a section begins, and when it ends."""

    def enter(self, phase: str, name: str = "") -> Any:
        """Begins a phase, named ``name`` in a trace; returns an argument for ``go``, or None if no phase begins."""

    def enter_section(self, name: str) -> Any:
        """Begins a section; returns an argument for ``go``, or None if no section begins."""

    def go(self, place: Any) -> None:
        """Ends a phase or section; ``place`` is the result of the call that began it."""


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
    "all_gather_tensor",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all_single",
    "broadcast",
    "reduce_scatter_tensor",
    "wait_tensor",
)
_CLIPPING = (
    "_clip_grads_with_norm_",
    "_get_total_norm",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
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
    """Returns the functions of torch whose time belongs to a phase, if their modules are loaded.

    For forward this is ``Module.__call__``. torch's global module hooks are not used: they slow every module down, make
    torch.compile warn, and are compiled into its graphs.
    """
    import torch
    from torch._C import _distributed_c10d as c10d
    from torch.nn.utils import clip_grad
    from torch.optim import lr_scheduler
    from torch.utils.data import dataloader

    schedulers = (lr_scheduler.LRScheduler, *subclasses(lr_scheduler.LRScheduler))
    owners: list[tuple[Any, Sequence[str], str, str]] = [
        (torch.nn.Module, ("__call__",), FORWARD, ""),
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

    torch's hooks of optimizers are used, because each class has a separate ``step``, and a learning rate scheduler
    keeps the ``step`` that it found. A graph that contains ``step`` is recompiled while there are hooks.
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
