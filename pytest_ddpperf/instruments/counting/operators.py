"""Which dispatched operators are work, which of them wait for the device, and what they copy to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from pytest_ddpperf.instruments.counting.collectives import NAMESPACES

if TYPE_CHECKING:
    from torch._ops import OpOverload

aten = torch.ops.aten

# Marks in a profile, questions about tensors, and communication, which is counted as collectives.
_OTHER_NAMESPACES = frozenset({"profiler", "prim"}) | NAMESPACES

# Like views, these compute nothing: they make an empty tensor, or another tensor of the same memory. What they make
# changes with torch's versions and says nothing; the memory is counted elsewhere.
_WITHOUT_WORK = frozenset(
    {
        aten.empty,
        aten.empty_like,
        aten.empty_strided,
        aten.new_empty,
        aten.new_empty_strided,
        aten.lift_fresh,
        aten.detach_,
        aten.t_,
        aten.transpose_,
        aten.squeeze_,
        aten.unsqueeze_,
        aten.as_strided_,
        aten.resize_,
        aten.set_,
        aten._unsafe_view,  # noqa: SLF001  that is its name
        aten._reshape_alias,  # noqa: SLF001
        aten.is_same_size,
        aten.record_stream,
    }
)

# Operators that need a value on the host, or whose result's size depends on values: on a GPU the host waits.
_WAITS = {
    aten._local_scalar_dense: "item",  # noqa: SLF001  .item(), float(tensor), bool(tensor), `if tensor:`
    aten.nonzero: "nonzero",
    aten.masked_select: "masked_select",
    aten.equal: "equal",
    aten.bincount: "bincount",
    aten._unique2: "unique",  # noqa: SLF001
    aten.unique_dim: "unique",
    aten.unique_consecutive: "unique",
}
_INDEXED = frozenset({aten.index, aten.index_put, aten.index_put_})
_COPIES = frozenset({aten._to_copy, aten.copy_})  # noqa: SLF001


def operator_name(func: Any) -> str | None:
    """The name that an operator counts under, ``aten.mm`` for any overload; None for one that does no work.

    Views and other operators that compute nothing, marks for the profiler, and communication are left out.
    """
    packet = getattr(func, "_overloadpacket", None)
    if packet is None:
        return f"higher_order.{func}"
    if func.namespace in _OTHER_NAMESPACES or func.is_view or packet in _WITHOUT_WORK:
        return None
    return str(packet)


def synchronisation(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: str) -> str | None:
    """How a call makes the host wait for the device: ``item``, ``nonzero``, ``copy to host`` ...; None if it does not.

    On a CPU the same calls count as on a GPU, except copies, which have no other side there.
    """
    packet = func._overloadpacket  # noqa: SLF001  torch offers no other way to ask
    if packet in _COPIES:
        source, target, blocking = _copy(packet, args, kwargs)
        return "copy to host" if device != "cpu" and source == device and target == "cpu" and blocking else None
    if packet in _INDEXED:
        waits = args[0].device.type == device and any(map(_is_mask, args[1])) and not _fills(packet, args, kwargs)
        return "index by mask" if waits else None
    if packet in _WAITS:
        return _WAITS[packet] if args[0].device.type == device else None
    return None


def host_to_device_bytes(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: str) -> int:
    """Bytes that a call copies from the host's memory to the device's."""
    packet = func._overloadpacket  # noqa: SLF001  as above
    if device == "cpu" or packet not in _COPIES:
        return 0
    source, target, _ = _copy(packet, args, kwargs)
    data = args[1] if packet is aten.copy_ else args[0]
    return int(data.numel() * data.element_size()) if source == "cpu" and target == device else 0


def _is_mask(index: torch.Tensor | None) -> bool:
    return index is not None and index.dtype in {torch.bool, torch.uint8}


def _fills(packet: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an assignment such as ``tensor[mask] = 0.0`` becomes a ``masked_fill_``, which waits for nothing.

    ATen decides so (canDispatchToMaskedFill) for one index, which is a mask, and a number on the host.
    """
    accumulates = kwargs.get("accumulate", False) or (len(args) > 3 and args[3])  # noqa: PLR2004  index_put(self, indices, values, accumulate)
    if packet is aten.index or accumulates:
        return False
    value = kwargs["values"] if "values" in kwargs else args[2]
    number = value.numel() == 1 and value.device.type == "cpu"
    return number and [_is_mask(index) for index in args[1] if index is not None] == [True]


def _copy(packet: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, str, bool]:
    """The type of device that a copy comes from, the type that it goes to, and whether it waits."""
    blocking = not kwargs.get("non_blocking", False)
    if packet is aten.copy_:
        blocking = blocking and not (len(args) > 2 and args[2])  # noqa: PLR2004  copy_(self, src, non_blocking)
        return args[1].device.type, args[0].device.type, blocking
    target = kwargs.get("device")
    return args[0].device.type, args[0].device.type if target is None else torch.device(target).type, blocking
