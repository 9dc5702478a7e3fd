"""Makes models, and the memory layouts of their gradients, equal on all ranks; wraps models in torch's DDP."""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.records.measurement import SIMULATED
from pytest_ddpperf.strategies.strategy import Parallel, RankView

_OWNERS = 2  # of a storage of one tensor: the tensor, and the handle that is used to ask
_PIECE = 32 * 2**20  # bytes
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Trained:
    """A parameter that is trained."""

    name: str  # the first one, if modules share it
    parameter: nn.Parameter
    strides: tuple[int, ...]  # of its gradient on every rank: the parameter's own if those leave no gaps in memory

    def gradient(self) -> Tensor:
        """Returns this rank's gradient, or zeros, in the memory layout that all ranks share.

        The result shares memory with no other tensor, and is set as ``parameter.grad``.
        """
        found = self.parameter.grad
        if found is not None:
            self.check_plain(found)
            if self._is_laid_out(found) and _has_own_memory(found):
                return found
        laid_out = self.parameter.new_empty_strided(self.parameter.shape, self.strides)
        self.parameter.grad = laid_out.zero_() if found is None else laid_out.copy_(found)
        return laid_out

    def check_plain(self, gradient: Tensor) -> None:
        """Raises a WorkloadError for a sparse gradient, and for a gradient that itself requires gradients."""
        if gradient.layout is not torch.strided:
            raise WorkloadError(
                f"parameter {self.name} has a gradient of layout {gradient.layout}, but this strategy sends only dense "
                "gradients: create its nn.Embedding without sparse=True, or use strategy 'ddp'"
            )
        if gradient.requires_grad:
            raise WorkloadError(
                f"the gradient of parameter {self.name} requires gradients itself, as after "
                "backward(create_graph=True), but this strategy would cut its graph: compute the inner gradient by "
                "torch.autograd.grad(..., create_graph=True)"
            )

    def _is_laid_out(self, gradient: Tensor) -> bool:
        """Returns whether the gradient has the common memory layout, so that an all-reduce adds matching elements."""
        strides = gradient.stride()
        # Along a dimension of size 1 a stride means nothing, and kernels write any number.
        return strides == self.strides or all(
            size == 1 or ours == common
            for size, ours, common in zip(gradient.shape, strides, self.strides, strict=True)
        )


def _has_own_memory(gradient: Tensor) -> bool:
    """Returns whether no other tensor shares this gradient's memory.

    Autograd does not copy gradients. So a gradient may be a view of a tensor that backward still has to pass to earlier
    layers (in ``h + p.unsqueeze(0)``, say), or of another parameter's gradient (in ``u.view(n) + v.view(n)``).
    """
    storage = gradient.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata) <= _OWNERS  # noqa: SLF001  torch offers no other way to ask


@dataclass(frozen=True, eq=False)
class Replica:
    """One rank's copy of the model; made by ``replicate``."""

    trained: tuple[Trained, ...]  # in the module's order; a tied weight is there once
    frozen: tuple[tuple[str, nn.Parameter], ...]  # the other parameters, by name

    def check_same_trained(self) -> None:
        """Raises a WorkloadError if a parameter has been frozen or unfrozen since the strategy began."""
        changed = [(trained.name, "frozen") for trained in self.trained if not trained.parameter.requires_grad]
        changed += [(name, "unfrozen") for name, parameter in self.frozen if parameter.requires_grad]
        if changed:
            name, change = changed[0]
            reason = f"parameter {name} was {change} after training began, and this strategy does not support that"
            raise WorkloadError(f"{reason}: set requires_grad before model() returns the module")


def replicate(module: nn.Module, ctx: RankView) -> Replica:
    """Gives all ranks the parameters and buffers of rank 0. All ranks call this function together.

    Buffers such as BatchNorm's statistics are equal only at first, because each rank's training then updates them
    separately. Raises a WorkloadError if a rank's model has another structure than rank 0's.
    """
    named = dict(module.named_parameters())
    state = {**named, **dict(module.named_buffers())}
    if ctx.backend != SIMULATED:  # where the other ranks are not there
        _check_same_structure(state, ctx)
        with torch.no_grad():
            _broadcast(state.values(), ctx)
    return Replica(
        trained=tuple(
            Trained(name, parameter, torch.empty_like(parameter, device="meta").stride())
            for name, parameter in named.items()
            if parameter.requires_grad
        ),
        frozen=tuple((name, parameter) for name, parameter in named.items() if not parameter.requires_grad),
    )


def at_different_addresses(tensor: Tensor) -> Tensor:
    """Returns a writable view of an expanded tensor, with size 1 in expanded dimensions; other tensors as they are."""
    if tensor.layout is not torch.strided or tensor.is_nested or not is_expanded(tensor):
        return tensor
    sizes = [size if stride else 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.as_strided(sizes, [stride or 1 for stride in tensor.stride()])


def is_expanded(tensor: Tensor) -> bool:
    """Returns whether the tensor is expanded: several elements share memory, so torch refuses to write to it."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def in_memory_order(gradient: Tensor) -> Tensor:
    """Returns a contiguous gradient unchanged, else its memory as a contiguous vector, which every backend accepts."""
    return gradient if gradient.is_contiguous() else gradient.as_strided((gradient.numel(),), (1,))


def gradients_of(module: nn.Module) -> dict[str, Tensor | None]:
    """Returns copies of the full gradients on the CPU, by name; None for a parameter without a gradient."""
    named = module.named_parameters()
    return {name: None if parameter.grad is None else whole(parameter.grad) for name, parameter in named}


def parameters_of(module: nn.Module) -> dict[str, Tensor]:
    """Returns copies of the full parameters on the CPU, by name."""
    return {name: whole(parameter) for name, parameter in module.named_parameters()}


def whole(tensor: Tensor) -> Tensor:
    """Returns a dense copy of a full tensor on the CPU; if the tensor is sharded, all ranks must call this."""
    found: Any = tensor.detach()
    if hasattr(found, "full_tensor"):  # a DTensor, whose import takes most of a second
        groups = found.device_mesh.get_all_groups() if found.is_cuda else ()
        if any(f"cuda:{dist.Backend.GLOO}" in dist.get_backend_config(group).split(",") for group in groups):
            found = found.cpu()  # gloo crashes where it gathers a DTensor on a GPU (pytorch/pytorch#152645)
        found = found.full_tensor()
    dense: Tensor = found.to_dense() if found.layout is not torch.strided else found
    return dense.to(torch.device("cpu"), copy=True)


def in_pieces(items: Iterable[T], nbytes: Callable[[T], int]) -> Iterator[list[T]]:
    """Splits items into lists of up to 32 MiB, to send few messages; ``nbytes`` returns the bytes of an item."""
    piece: list[T] = []
    size = 0
    for item in items:
        if piece and size + nbytes(item) > _PIECE:
            yield piece
            piece, size = [], 0
        piece.append(item)
        size += nbytes(item)
    if piece:
        yield piece


def _check_same_structure(state: dict[str, Tensor], ctx: RankView) -> None:
    ours = [
        f"{name}: shape {tuple(tensor.shape)}, {tensor.dtype}, {'trained' if tensor.requires_grad else 'not trained'}"
        for name, tensor in state.items()
    ]
    received: list[list[str]] = [ours]
    dist.broadcast_object_list(received, src=0, device=ctx.device)
    if received[0] != ours:
        pairs = itertools.zip_longest(received[0], ours, fillvalue="nothing more")
        there, here = next((theirs, own) for theirs, own in pairs if theirs != own)
        reason = f"rank {ctx.rank} built [{here}], but rank 0 built [{there}]"
        raise WorkloadError(f"{reason}: model() must build the same model on every rank")


def _broadcast(tensors: Iterable[Tensor], ctx: RankView) -> None:
    """Sends rank 0's values to all ranks, many tensors at a time, as bytes, because types and strides may differ."""
    # By falling element size, so that every tensor's bytes are aligned for its type.
    sent = (at_different_addresses(tensor.detach()) for tensor in tensors if tensor.numel())
    ordered = sorted(sent, key=lambda tensor: -tensor.element_size())
    groups = (list(group) for _, group in itertools.groupby(ordered, key=lambda tensor: tensor.device))
    for piece in itertools.chain.from_iterable(in_pieces(group, lambda tensor: tensor.nbytes) for group in groups):
        data = torch.cat([tensor.reshape(-1).contiguous().view(torch.uint8) for tensor in piece])
        dist.broadcast(data, src=0)
        if ctx.rank == 0:
            continue
        for tensor, received in zip(piece, torch.split(data, [tensor.nbytes for tensor in piece]), strict=True):
            tensor.copy_(received.view(tensor.dtype).view(tensor.shape))


def wrap(
    module: nn.Module, ctx: RankView, *, broadcast_buffers: bool | None = None, **options: Any
) -> DistributedDataParallel:
    """Wraps the module in DistributedDataParallel; options that are None keep torch's defaults."""
    _require_writable_buffers(module)
    if broadcast_buffers is not None:
        if not broadcast_buffers:
            replicate(module, ctx)  # before torch 2.13 false also left buffers unequal at the start
        # torch 2.13 has renamed the option, and warns of the old name.
        names = inspect.signature(DistributedDataParallel.__init__).parameters
        options["forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"] = broadcast_buffers
    device_ids = [ctx.device] if ctx.device.type == "cuda" else None
    given = {name: value for name, value in options.items() if value is not None}
    return DistributedDataParallel(module, device_ids=device_ids, **given)


def _require_writable_buffers(module: nn.Module) -> None:
    """Raises an error with the name of a buffer that is an expanded tensor; torch's error does not name the buffer."""
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    for name, buffer in module.named_buffers():
        if name not in ignored and is_expanded(buffer):
            raise WorkloadError(
                f"DistributedDataParallel cannot write rank 0's values into the model's buffer {name}, because it is "
                "an expanded tensor, whose elements share memory: give register_buffer a copy (.clone()), or expand "
                "the buffer in forward"
            )


def parallel_of(wrapped: DistributedDataParallel, **fields: Any) -> Parallel:
    """Returns a ``Parallel`` that describes the wrapped module; ``fields`` are further fields of this ``Parallel``."""
    module: nn.Module = wrapped.module
    return Parallel(
        wrapped,
        no_sync=_no_sync_but_first(wrapped) if wrapped.static_graph else wrapped.no_sync,
        gradients=partial(gradients_of, module),
        parameters=partial(parameters_of, module),
        **fields,
    )


def _no_sync_but_first(wrapped: DistributedDataParallel) -> Callable[[], AbstractContextManager[Any]]:
    """Returns a ``no_sync`` that has no effect on the first backward, from which torch learns the static graph.

    Works around https://github.com/pytorch/pytorch/issues/143580. The first backward then averages its gradients early.
    A second average does not change these gradients, because they are equal on all ranks.
    """
    learned = False

    def no_sync() -> AbstractContextManager[Any]:
        nonlocal learned
        if learned:
            return wrapped.no_sync()
        learned = True
        return nullcontext()

    return no_sync


def import_distributed_optimizers() -> Any:
    """Imports torch.distributed.optim, which takes a second, and hides a warning that this import raises."""
    with warnings.catch_warnings():
        # The package also compiles functional optimizers with torch.jit, which torch has deprecated.
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        return import_module("torch.distributed.optim")


def require_optimizer(given: object, strategy: str) -> torch.optim.Optimizer:
    """Returns ``given`` if it is a torch optimizer, which the strategy can wrap; raises a WorkloadError otherwise."""
    if not isinstance(given, torch.optim.Optimizer):
        raise WorkloadError(
            f"strategy {strategy} needs a torch.optim.Optimizer, but the Workload's optimizer(parameters) returned "
            f"a value of type {type(given).__name__}: return a torch optimizer"
        )
    return given
