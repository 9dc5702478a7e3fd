"""Recognises the operators of torch that communicate, counts their bytes, and runs them on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch._C import DispatchKey, DispatchKeySet
from torch._C._distributed_c10d import _resolve_process_group
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.counting.storages import dense_parts
from pytest_ddpperf.instruments.counting.tensors import TensorTracker
from pytest_ddpperf.records.phases import KINDS, collective_kind

_GROUP = frozenset({"process_group", "group_name"})
_ASYNC = frozenset({"async_op", "asyncOp"})
NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem"})


@dataclass(frozen=True)
class CollectiveCall:
    """A call of a collective on this rank.

    ``nbytes`` are the bytes of the collective's whole buffer: the tensor of an all-reduce or a broadcast, the output of
    an all-gather, the input of a reduce-scatter or an all-to-all, and all ranks' data for a gather or a scatter.
    """

    name: str  # ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``, ``send`` ...
    nbytes: int
    ranks: int  # that take part; 1 without a group
    blocking: bool = False  # whether torch waits for it before the call returns; torch before 2.11 mostly does not say

    @property
    def sent_bytes(self) -> float:
        """Returns the bytes that a rank sends by a ring algorithm; for collectives with a root, the mean of the ranks.

        With S = ``nbytes`` and n = ``ranks``, these are 2 (n-1)/n S for an all-reduce, S for a send, 0 for a receive or
        a barrier, and (n-1)/n S for all others (Thakur, Rabenseifner and Gropp 2005). nccl-tests has S for a broadcast.
        """
        if self.name in {"recv", "barrier"}:
            return 0.0
        if self.name == "send":
            return float(self.nbytes)
        return self.nbytes * (self.ranks - 1) * (2 if self.name == "all_reduce" else 1) / self.ranks


_NO_COMMUNICATION = frozenset(
    {
        *("wait_tensor", "_wrap_tensor_autograd", "check_for_nan"),
        # Of symmetric memory: allocation, writes into one's own memory, waits for a signal, products of received data.
        *("_async_input_mm", "_rendezvous", "memset32", "stream_write_value32"),
        *("nccl_wait_signal", "nccl_wait_for_signal", "nvshmem_wait_for_signal"),
    }
)

# Collectives of c10d whose whole buffer is the second argument, and collectives whose argument is one rank's part.
# torch's own table (torch.distributed._tools.fake_collectives) counts a view's whole storage and lacks coalesced ones.
_SECOND = frozenset({"reduce_scatter", "gather", "all_to_all"})
_PARTS = frozenset({"gather", "scatter"})
_FUNCTIONAL_PARTS = frozenset({"all_gather"})


def collectives_of(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[CollectiveCall]:
    """Returns the collectives that a call of an operator starts: mostly one, several for a batch of sends, or none.

    Unknown operators of ``NAMESPACES`` or of symmetric memory count under their names, with all their arguments' bytes.
    """
    name = str(func._schema.name).partition("::")[2].rstrip("_")  # noqa: SLF001  torch offers no other way to ask
    if func.namespace not in NAMESPACES or name in _NO_COMMUNICATION:
        return []
    group = group_of(func, args, kwargs)
    ranks = 1 if group is None else int(group.size())
    if name == "batch_p2p_ops":
        pairs = zip(args[0], args[3], strict=True)
        return [CollectiveCall(kind.lstrip("i"), tensor.nbytes, ranks) for kind, tensor in pairs]
    kind = collective_kind(name.removeprefix("shard_dim_").removeprefix("monitored_").removeprefix("i"))
    if kind not in KINDS or func.namespace == "symm_mem":
        return [CollectiveCall(name, _nbytes((*args, *kwargs.values())), ranks)]
    of_backend, blocking = func.namespace == _BACKENDS, _given(func, _ASYNC, args, kwargs)
    nbytes = 0 if kind == "barrier" else _nbytes(args[int(of_backend and kind in _SECOND)])
    parts = kind in (_PARTS if of_backend else _FUNCTIONAL_PARTS)
    return [CollectiveCall(kind, nbytes * (ranks if parts else 1), ranks, blocking is False)]


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """Returns the tensors among an operator's arguments or results, also those inside lists."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found


def _nbytes(value: Any) -> int:
    parts = (part for tensor in tensors_in((value,)) for part in dense_parts(tensor))
    return sum(part.numel() * part.element_size() for part in parts)


def group_of(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dist.ProcessGroup | None:
    """Returns the process group that communicates in this call of an operator; None if the call has no group."""
    group = _given(func, _GROUP, args, kwargs)
    if group is None:
        return None
    if isinstance(group, str):
        return _resolve_process_group(group)  # type: ignore[arg-type]  # torch marks group names
    found: dist.ProcessGroup = dist.ProcessGroup.unbox(group) if isinstance(group, torch.ScriptObject) else group
    return found


def _given(func: OpOverload, names: frozenset[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Returns the value of the first argument whose name is in ``names``; None if the call does not pass it."""
    place, name = _argument(func, names)
    return args[place] if place < len(args) else kwargs.get(name)


@cache
def _argument(func: OpOverload, names: frozenset[str]) -> tuple[int, str]:
    """Returns (index, name) of the argument whose name is in ``names``; (number of arguments, "") if there is none."""
    arguments: Sequence[Any] = func._schema.arguments  # noqa: SLF001  as above
    found = ((place, argument.name) for place, argument in enumerate(arguments) if argument.name in names)
    return next(found, (len(arguments), ""))


_BACKENDS = "c10d"  # implemented by backends; the operators of other namespaces call these
_ON_CPU = DispatchKeySet(DispatchKey.CPU)
_MAX_WAIT = 2.0  # seconds; then the code goes on, because a batch of sends may need calls that come later


def is_on_cpu(func: Any, args: tuple[Any, ...]) -> bool:
    """Returns whether an operator communicates between ranks, with all its tensors on a CPU."""
    sends = isinstance(func, OpOverload) and func.namespace in NAMESPACES
    return sends and {tensor.device.type for tensor in tensors_in(args)} == {"cpu"}


def communicate(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], tracker: TensorTracker) -> Any:
    """Runs a collective on a CPU, and waits for its result; ``tracker`` learns which tensors gloo holds."""
    if func.namespace == _BACKENDS:
        out = func(*tree_map_only(torch.Tensor, tracker.lend, args), **kwargs)
        _await(func, out)
        return out
    with _Inside(tracker):  # below the mode that led here, so that the call does not come here again
        return func.redispatch(_ON_CPU, *args, **kwargs)


class _Inside(TorchDispatchMode):
    """A dispatch mode in which ``communicate`` runs the c10d operators that a functional collective calls."""

    def __init__(self, tracker: TensorTracker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self._tracker = tracker

    def __torch_dispatch__(
        self, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.namespace != _BACKENDS:
            return func(*args, **kwargs or {})
        for tensor in tensors_in(args):  # including new results that the tracker does not know yet
            self._tracker.see(tensor, "activations" if torch.is_grad_enabled() else "temporaries")
        return communicate(func, args, kwargs or {}, self._tracker)


def _await(func: OpOverload, out: Any) -> None:
    """Waits up to two seconds for a collective to end; skips sends and receives, whose peer may begin later."""
    handle = out[-1] if isinstance(out, tuple) else out
    meets = not any(word in func._schema.name for word in ("send", "recv"))  # noqa: SLF001  torch offers no other way to ask
    if not meets or not isinstance(handle, torch.ScriptObject):
        return
    unbox: Callable[[Any], dist.Work] = dist.Work.unbox
    with suppress(RuntimeError):  # gloo has no future of some, such as reduce-scatter
        future, deadline = unbox(handle).get_future(), time.monotonic() + _MAX_WAIT
        while not future.done() and time.monotonic() < deadline:
            time.sleep(2e-5)
