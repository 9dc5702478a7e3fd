"""Builds a workload's model, finds its blocks, saves and restores its state; makes the learning-rate scheduler."""

from __future__ import annotations

import contextlib
import copy
import random
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.checkpoint import checkpoint

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.strategies.replicas import at_different_addresses
from pytest_ddpperf.training.subject import Workload, located, unfit

MODEL_SEED = 0
_made: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()  # by id
DATA_SEED = MODEL_SEED + 1  # weights and data must not use the same random numbers


def seed(number: int) -> None:
    """Seeds the random numbers of torch, Python and numpy."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002  datasets draw from the global one


def build_model(workload: Workload, number: int = MODEL_SEED) -> nn.Module:
    """Builds the workload's model with weights seeded by a number; raises a WorkloadError if it is no module."""
    seed(number)
    model = workload.model()
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f"{located(workload.model)} returned {describe_value(model)}: model() must return a torch.nn.Module"
        )
    require_new(model, workload.model, "model()")
    _require_trainable(model, f"{located(workload.model)} gave a {type(model).__name__}")
    return model


def _require_trainable(model: nn.Module, gave: str) -> None:
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise WorkloadError(f"{gave}: model() must return the unwrapped module; strategy='ddp' wraps it")
    named = [*model.named_parameters(), *model.named_buffers()]
    lazy = next((name for name, tensor in named if is_lazy(tensor)), None)
    if lazy is not None:
        raise WorkloadError(f"{gave} with uninitialized {lazy}, which has no shape yet: let model() run one batch")
    empty = next((name for name, tensor in named if tensor.is_meta), None)
    if empty is not None:
        reason = f"{gave} with {empty} on the meta device, which has no values"
        cure = "model() must build it on the CPU, without torch.device('meta'); a strategy shards and moves it"
        raise WorkloadError(f"{reason}: {cure}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        frozen = next(model.parameters(), None) is not None
        lacking = "whose parameters are all frozen" if frozen else "without parameters"
        cure = "call requires_grad_(True) on some of them" if frozen else "return a model with parameters"
        raise WorkloadError(f"{gave} {lacking}: {cure}")


def require_new(made: object, factory: Callable[..., object], call: str) -> None:
    """Raises an error that names ``call`` if ``factory`` returns an earlier object, which two trainings would share."""
    with contextlib.suppress(TypeError):  # an object that takes no weak reference
        if _made.get(id(made)) is made:
            raise WorkloadError(
                f"{located(factory)} returned the same {type(made).__name__} twice: each {call} must make a new one"
            )
        _made[id(made)] = made


def require_optimizer(optimizer: Any, factory: Callable[..., object], module: nn.Module | None) -> None:
    """Raises an error for an object without ``step``, or an optimizer that trains no parameter of the given module."""
    require_new(optimizer, factory, "optimizer(parameters)")
    gave = f"{located(factory)} returned {describe_value(optimizer)}"
    if not (hasattr(optimizer, "step") and hasattr(optimizer, "zero_grad")):
        raise WorkloadError(f"{gave}: optimizer(parameters) must return a torch optimizer")
    gave = f"{located(factory)} gave a {type(optimizer).__name__}"
    if isinstance(optimizer, torch.optim.LBFGS):
        raise WorkloadError(f"{gave}, whose step needs a closure: give build(ctx) -> step in place of a Workload")
    if module is None or not hasattr(optimizer, "param_groups"):
        return
    if len(untrained(module, optimizer)) == sum(parameter.requires_grad for parameter in module.parameters()):
        raise WorkloadError(f"{gave} without any parameter of the model: optimizer(parameters) must use its argument")


def untrained(module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Parameter, ...]:
    """Returns the trainable parameters that ``optimizer`` does not hold; all if it has no parameter groups."""
    groups = getattr(optimizer, "param_groups", ())
    held = {id(parameter) for group in groups for parameter in group["params"]}
    return tuple(found for found in module.parameters() if found.requires_grad and id(found) not in held)


def describe_value(value: object) -> str:
    """Returns the type or shape of a value, for error messages."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "None" if value is None else f"a value of type {type(value).__name__}"


def blocks_of(module: nn.Module, chosen: Callable[[nn.Module], Iterable[nn.Module]] | None) -> tuple[nn.Module, ...]:
    """Returns the blocks that sharding and checkpointing treat one by one: the chosen ones, or layers that repeat."""
    if chosen is None:
        return repeated(module)
    given: Any = chosen(module)
    if not isinstance(given, Iterable):
        reason = f"Workload(blocks=...) {located(chosen)} gave a {type(given).__name__}"
        raise WorkloadError(f"{reason}: return a list of modules of the model, such as model.layers")
    blocks = tuple(given)
    inside = set(module.modules())
    for block in blocks:
        if not isinstance(block, nn.Module) or block not in inside:
            raise WorkloadError(
                f"Workload(blocks=...) {located(chosen)} gave a {type(block).__name__} that is no module inside the "
                "model: return modules of the model, such as model.layers"
            )
    return blocks


def repeated(module: nn.Module) -> tuple[nn.Module, ...]:
    """Returns the largest group of sibling modules of one class, such as the layers of a transformer.

    The largest group has the most parameters; of equally large groups the outermost counts. Modules without submodules,
    such as Linear, are too small to form a group. Empty if nothing repeats.
    """
    families: dict[tuple[nn.Module, type[nn.Module]], list[nn.Module]] = defaultdict(list)
    for parent in module.modules():
        for child in parent.children():
            if next(child.children(), None) is not None:
                families[parent, type(child)].append(child)
    candidates = [members for members in families.values() if len(members) > 1 and _size(members)]
    return tuple(max(candidates, key=_size, default=[]))  # the first, and so the outermost, of equals


def _size(modules: Iterable[nn.Module]) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def size_of(model: nn.Module) -> dict[str, dict[str, float]]:
    """Returns a model's trainable elements (``parameters``) and bytes (``model_size``), by dtype; {} for FSDP1."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        return {}  # this rank sees only its shard
    number, nbytes = Counter[str](), Counter[str]()
    for parameter in model.parameters():
        kind = str(parameter.dtype).removeprefix("torch.")
        number[kind] += parameter.numel() * parameter.requires_grad
        nbytes[kind] += parameter.numel() * parameter.element_size()
    nbytes["buffers"] = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    counted = {"parameters": number, "model_size": nbytes}
    return {metric: {kind: float(n) for kind, n in kinds.items() if n} for metric, kinds in counted.items()}


def recompute(blocks: Sequence[nn.Module]) -> None:
    """Enables activation checkpointing for each block: backward recomputes it. Names of modules stay as they are."""
    for block in blocks:
        forward: Callable[..., Any] = block.forward
        block.forward = partial(checkpoint, forward, use_reentrant=False)


@torch.no_grad()
def snapshot(
    module: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None = None
) -> Callable[[], None]:
    """Copies parameters, buffers, optimizer state and loss scale to the CPU; returns a function that restores them."""
    tensors = [(tensor, _copied(tensor)) for tensor in (*module.parameters(), *module.buffers())]
    states = [(state, {name: _copied(value) for name, value in state.items()}) for state in _states(optimizer)]
    scale: Mapping[str, Any] = {} if scaler is None else scaler.state_dict()

    @torch.no_grad()
    def restore() -> None:
        for tensor, kept in tensors:
            _local(tensor).copy_(kept)
        for state, values in states:
            for name, kept in values.items():
                if isinstance(kept, Tensor):
                    _local(state[name]).copy_(kept)
                else:
                    state[name] = copy.deepcopy(kept)
        if scaler is not None and scale:
            scaler.load_state_dict(dict(scale))

    return restore


def snapshot_bytes(module: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Returns how many bytes of host memory a snapshot's tensors take."""
    kept = (value for state in _states(optimizer) for value in state.values() if isinstance(value, Tensor))
    return sum(_local(tensor).nbytes for tensor in (*module.parameters(), *module.buffers(), *kept))


def _states(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    inner: Any = getattr(optimizer, "optim", optimizer)  # which a wrapper has
    return list(inner.state.values())


def _copied(value: Any) -> Any:
    return _local(value).detach().to("cpu", copy=True) if isinstance(value, Tensor) else copy.deepcopy(value)


def _local(tensor: Tensor) -> Tensor:
    """Returns a writable view of a tensor, or of this rank's shard of a DTensor; does not import DTensor."""
    to_local: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
    return at_different_addresses(tensor if to_local is None else to_local())


def linear_warmup(optimizer: torch.optim.Optimizer, steps: int) -> Callable[[], None]:
    """Returns a function to call after each step, which raises the learning rate linearly during ``steps`` steps."""
    goals = [group["lr"] for group in optimizer.param_groups]
    done = 0  # torch's schedulers warn if fp16 skips a step, and depend on the optimizer's class

    def rise() -> None:
        nonlocal done
        done += 1
        if done <= steps:
            for group, goal in zip(optimizer.param_groups, goals, strict=True):
                group["lr"] = goal * min(1.0, (done + 1) / steps)

    for group, goal in zip(optimizer.param_groups, goals, strict=True):
        group["lr"] = goal / steps
    return rise


def scheduler_for(
    factory: Callable[[torch.optim.Optimizer], Any], optimizer: torch.optim.Optimizer
) -> torch.optim.lr_scheduler.LRScheduler:
    """Returns the scheduler that the factory makes; raises a WorkloadError if it cannot follow this optimizer."""
    scheduler = factory(optimizer)
    gave = f"Workload(scheduler=...): {located(factory)} returned {describe_value(scheduler)}"
    step = getattr(scheduler, "step", None)
    if not callable(step) or getattr(scheduler, "optimizer", optimizer) is not optimizer:
        another = ", which schedules another optimizer" if callable(step) else ""
        raise WorkloadError(
            f"{gave}{another}: scheduler(optimizer) must return a torch scheduler for that optimizer, such as "
            "torch.optim.lr_scheduler.LinearLR(optimizer)"
        )
    problem = unfit(step)
    if problem is not None:
        raise WorkloadError(f"{gave}, whose step() cannot run after each optimizer step: {problem}")
    return scheduler  # type: ignore[no-any-return]  # nothing more is needed of it
