"""A strategy and its options, and the arguments and result of its function; importable without torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.parsers import written

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from pytest_ddpperf.records.measurement import Mode

T = TypeVar("T")
Option: TypeAlias = "str | int | float | bool"

_TEXT = re.compile(r"\s*(?P<name>[^\[\]\s]+)\s*(?:\[(?P<options>[^\[\]]*)\])?\s*")
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
OptimizerFactory: TypeAlias = "Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]"

OF_DATA = ("dp", "data", "ddp", "fsdp", "hsdp", "replicate", "shard")
"""The prefixes of the names of mesh dimensions along which ranks have different samples."""


@dataclass(frozen=True, init=False)
class Strategy:
    """A strategy of parallel training with options: ``Strategy("ddp", bucket_cap_mb=5)`` or ``ddp[bucket_cap_mb=5]``.

    Attributes:
        name: the name in the table of strategies; ``mine()`` for a function ``mine``, ``mine(cap=1)`` for its partial.
        options: the given options by name, sorted; options that are not given have torch's defaults.
        function: ``parallelise(module, ctx) -> Parallel`` of a strategy that is not in the table; else None.
    """

    name: str
    options: Mapping[str, Option]
    function: Callable[..., Any] | None

    def __init__(self, name: str | Callable[..., Any], /, **options: Option) -> None:
        function = None if isinstance(name, str) else name
        called = name if isinstance(name, str) else _called(name)
        object.__setattr__(self, "name", called)
        object.__setattr__(self, "options", MappingProxyType(dict(sorted(options.items()))))
        object.__setattr__(self, "function", function)

    def __str__(self) -> str:
        said = ",".join(f"{name}={written(value)}" for name, value in self.options.items())
        return f"{self.name}[{said}]" if said else self.name

    def __hash__(self) -> int:
        return hash((str(self), self.function))

    def __reduce__(self) -> tuple[Any, ...]:
        return added, (self.name, self.function, dict(self.options))


def parse(text: str) -> Strategy:
    """Parses ``name[option=value,...]`` and returns the strategy; the values stay text."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise SettingError(f"strategy {text!r}: expected a name, or a name with options as in ddp[bucket_cap_mb=5]")
    options: dict[str, Option] = {}
    for part in filter(None, map(str.strip, (match["options"] or "").split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not value:
            raise SettingError(
                f"strategy {text!r}: cannot read option {part!r}; write option=value, as in ddp[bucket_cap_mb=5]"
            )
        if name in options:
            raise SettingError(f"strategy {text!r}: option {name} is given twice")
        options[name] = value
    return Strategy(match["name"], **options)


def _called(function: Callable[..., Any]) -> str:
    """Returns a name for a function that is a strategy: ``mine()``; ``mine(cap=1)`` for a partial."""
    said = ""
    if isinstance(function, partial):
        words = [*map(repr, function.args), *(f"{name}={value!r}" for name, value in function.keywords.items())]
        said, function = ",".join(words), function.func
    name = getattr(function, "__qualname__", type(function).__qualname__).rpartition("<locals>.")[2]
    if name == "<lambda>":
        raise SettingError("a function that is a strategy needs a name: define it with def")
    return f"{name}({said})"


def added(name: str, function: Callable[..., Any] | None, options: Mapping[str, Option]) -> Strategy:
    """Returns a strategy with this name and these options; ``function`` is None for a built-in strategy."""
    strategy = Strategy(name, **options)
    object.__setattr__(strategy, "function", function)
    return strategy


class RankView(Protocol):
    """A rank as strategies and steps see it; its process group is already initialised."""

    @property
    def rank(self) -> int:
        """Returns the number of this rank among all ranks, from 0."""

    @property
    def world_size(self) -> int:
        """Returns the number of ranks."""

    @property
    def local_world_size(self) -> int:
        """Returns the number of ranks on this machine."""

    @property
    def device(self) -> torch.device:
        """Returns the device that this rank computes on."""

    @property
    def backend(self) -> str:
        """Returns the backend, ``gloo`` or ``nccl``."""

    @property
    def mode(self) -> Mode | None:
        """Returns ``strong`` or ``weak`` in a benchmark of scaling to more ranks; None in any other benchmark."""


def nothing() -> None:
    """Does nothing."""


@dataclass(frozen=True)
class Parallel:
    """A module made ready to be trained by several ranks.

    Attributes:
        module: the module that runs the forward pass.
        synchronise: called before the optimizer's step, after the last backward (with the setting ``no_sync=False``
            after each backward). It makes every rank's gradients the mean over the ranks. On CUDA it may return
            before the averaging ends, if the averaging is on the current stream.
        no_sync: returns a context for a micro-batch whose gradients are only accumulated on the rank. None if backward
            sends nothing.
        unsynchronised: returns a context for a step that averages no gradients, but leaves gradients with which the
            optimizer can step. None to use ``no_sync`` for such steps.
        still_sent: the communication, in words, that remains in a step that averages no gradients; empty if none.
        make_optimizer: takes a Workload's ``optimizer`` function, and returns an optimizer that fits the module.
        clip_grad_norm: scales the synchronised gradients so that their global norm, over all shards, is at most the
            given norm; returns the norm before scaling.
        make_scaler: returns the gradient scaler for fp16; None for ``torch.amp.GradScaler``.
        gradients: returns the whole gradients on the CPU, by the parameters' names before wrapping, with None for
            parameters without a gradient. Called on all ranks, because a sharded module needs a collective.
        parameters: returns the whole parameters on the CPU, by their names before wrapping; called on all ranks.
        precision: the narrowest type in which the strategy itself computes or sends gradients.
        lossy: whether the strategy's gradients differ by design from a single process's. Verification then compares
            how far the loss falls.
        exact_steps: the number of first steps in which a lossy strategy averages gradients exactly. If several
            micro-batches of a step are synchronised, each micro-batch counts as a step.
        period: the number of steps after which the work repeats, if steps differ.
    """

    module: nn.Module
    synchronise: Callable[[], None] = nothing
    no_sync: Callable[[], AbstractContextManager[Any]] | None = None
    unsynchronised: Callable[[], AbstractContextManager[Any]] | None = None
    still_sent: str = ""
    make_optimizer: Callable[[OptimizerFactory], torch.optim.Optimizer] | None = None
    clip_grad_norm: Callable[[float], torch.Tensor] | None = None
    make_scaler: Callable[[], torch.amp.GradScaler] | None = None
    gradients: Callable[[], dict[str, torch.Tensor | None]] | None = None
    parameters: Callable[[], dict[str, torch.Tensor]] | None = None
    precision: Precision = "fp32"
    lossy: bool = False
    exact_steps: int = 0
    period: int = 1


def mesh_of(ctx: RankView, sizes: Mapping[str, int]) -> DeviceMesh | None:
    """Makes a mesh together with all other ranks; returns None in the process that the ranks are compared with."""
    if ctx.world_size != math.prod(sizes.values()):
        return None
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(ctx.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def shares_data(sizes: Mapping[str, int]) -> bool:
    """Returns whether a dimension of the mesh divides the data; if none does, all ranks work on the same samples."""
    return any(name.startswith(OF_DATA) for name in sizes)


def share_of_samples(sizes: Mapping[str, int]) -> float:
    """Returns 1 divided by the number of ranks in a mesh that train on the same samples."""
    own = math.prod(size for name, size in sizes.items() if name.startswith(OF_DATA))
    return own / math.prod(sizes.values())


def packed(gradients: Iterable[tuple[T, Hashable, float]], cap: float, first_cap: float) -> list[list[T]]:
    """Groups gradients (each with its kind and its bytes) by kind, in order; a group is full once it has ``cap`` bytes.

    The first group of each kind is full at ``first_cap`` bytes, so that it is sent earlier. Groups are returned in the
    order in which they become full, as in torch's DDP.
    """
    full: list[list[T]] = []
    filling: dict[Hashable, list[T]] = {}
    missing: dict[Hashable, float] = {}
    for gradient, kind, nbytes in gradients:
        # Inserted anew, so that groups that never fill are in the order of their last arrivals too.
        filling[kind] = [*filling.pop(kind, []), gradient]
        missing[kind] = missing.get(kind, min(first_cap, cap)) - nbytes
        if missing[kind] <= 0:
            full.append(filling.pop(kind))
            missing[kind] = cap
    return [*full, *filling.values()]
