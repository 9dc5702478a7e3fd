"""Classifies operators: whether they count as work, their FLOPs, whether they wait for the GPU or copy data to it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

from pytest_ddpperf.instruments.counting.collectives import NAMESPACES, tensors_in
from pytest_ddpperf.instruments.counting.storages import dense_parts
from pytest_ddpperf.instruments.torch_internals import fp32_switches

aten = torch.ops.aten


def flops_of(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int:
    """Returns the FLOPs of an operator's call; 0 if there is no formula.

    A multiplication and an addition are 2 FLOPs. Attention counts in full, even if a causal kernel skips half.
    Recomputation in a fused backward does not count, so that attention has the same FLOPs whether it is written out or
    fused. A sparse matrix counts with the elements that it stores.
    """
    packet = getattr(func, "_overloadpacket", func)
    formula = flop_registry.get(packet) or _FORMULAS.get(packet)
    if packet in _QUERIES and not kwargs.keys() & {"query", "key", "value"}:
        args = _with_all_heads(args, _QUERIES[packet])
    try:
        flops = 0 if formula is None else int(formula(*args, **kwargs, out_val=out))
    except RuntimeError:  # a nested tensor with strides has no shape
        return 0
    for sparse in (arg for arg in args if isinstance(arg, Tensor) and flops and arg.layout != torch.strided):
        flops = flops * dense_parts(sparse)[-1].numel() // sparse.numel()
    return flops * 4 // 5 if flops and re.search("att.*backward", str(packet)) else flops


def full_precision(func: Any, dtype: torch.dtype) -> float:
    """Returns the factor by which FLOPs count as full-precision FLOPs: 2 for float64, 1 for float32, else 0.

    Products of float32 matrices have the factor 0 if torch may compute them in TF32 on a GPU.
    """
    matmul: Any = torch.backends.cuda.matmul
    if dtype is torch.float32 and not any(word in str(func) for word in ("conv", "rnn")):
        return float(not (matmul.fp32_precision == "tf32" if fp32_switches() else matmul.allow_tf32))
    wide = dtype.itemsize >= torch.float32.itemsize and (dtype.is_floating_point or dtype.is_complex)
    return dtype.itemsize / torch.float32.itemsize * wide


def _with_all_heads(args: tuple[Any, ...], query: int) -> tuple[Any, ...]:
    """Replaces keys and values by shapes with as many heads as the query, because torch 2.11 refuses fewer heads."""
    heads = args[query].shape[1]
    wide = (torch.Size((each.shape[0], heads, *each.shape[2:])) for each in args[query + 1 : query + 3])
    return (*args[: query + 1], *wide, *args[query + 3 :])


def _grouped(rows: Tensor, columns: Tensor, *_others: Any, **_: Any) -> int:
    groups = rows.shape[0] if rows.dim() > columns.dim() else 1  # each group has its own columns
    return 2 * rows.numel() * columns.shape[-1] // groups


def _products(rows: int, weights: Iterable[Tensor]) -> int:
    """Returns the FLOPs of multiplying this number of rows by each weight that is a matrix; biases do not count."""
    return 2 * rows * sum(weight.numel() for weight in weights if weight.dim() > 1)


def _recurrent(inputs: Tensor, weights: Tensor | list[Tensor], *others: Any, **_: Any) -> int:
    """Returns the FLOPs of a recurrent layer: of multiplying all rows by all weight matrices.

    oneDNN passes the two matrices of one layer, cuDNN a list of the weights of all layers.
    """
    return _products(inputs.numel() // inputs.shape[-1], weights if isinstance(weights, list) else (weights, others[0]))


def _self_attention(inputs: Tensor, width: int, projections: Iterable[Tensor]) -> int:
    """Returns the FLOPs of all rows' projections, plus 4 x length x length x width for each sequence's attention."""
    if inputs.is_nested:
        lengths: list[int] = [length for length, *_ in inputs._nested_tensor_size().tolist()]  # noqa: SLF001  no other way to ask
    else:
        lengths = [inputs.shape[1]] * inputs.shape[0]
    return _products(sum(lengths), projections) + sum(4 * length * length * width for length in lengths)


def _encoder_layer(inputs: Tensor, width: int, _heads: int, *others: Any, **_: Any) -> int:
    stacked, _bias, projection, *_norms = others
    return _self_attention(inputs, width, (stacked, projection, others[11], others[13]))


def _attention_layer(inputs: Tensor, _keys: Tensor, _values: Tensor, width: int, *others: Any, **_: Any) -> int:
    return _self_attention(inputs, width, (others[1], others[3]))


# The place of the query among the arguments of an attention; its keys and values follow.
_QUERIES = {
    getattr(aten, f"_scaled_dot_product_{kind}{backward}"): int(backward != "")
    for kind in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
    for backward in ("", "_backward")
    if hasattr(aten, f"_scaled_dot_product_{kind}{backward}")
}

_GROUPED = ("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2")  # of torch 2.8, the last of torch 2.10

# Operators that torch's table lacks. Attention on a CPU begins with the same arguments as elsewhere.
_FORMULAS: Mapping[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,  # noqa: SLF001  that is its name
    aten._scaled_dot_product_flash_attention_for_cpu_backward: sdpa_backward_flop,  # noqa: SLF001
    **dict.fromkeys((aten.mv, aten.dot, aten.vdot), lambda left, *_, **__: 2 * left.numel()),
    **dict.fromkeys((aten.addmv, aten.addmv_), lambda _, left, *__, **___: 2 * left.numel()),
    **dict.fromkeys((aten.addmm_, aten._sparse_addmm), flop_registry[aten.addmm]),  # noqa: SLF001  of torch.sparse.mm
    **dict.fromkeys((aten.addbmm, aten.addbmm_, aten.baddbmm_), flop_registry[aten.baddbmm]),
    **{getattr(aten, name): flop_registry[aten.mm] for name in ("_int_mm", "_scaled_mm_v2") if hasattr(aten, name)},
    # Its backward calls addmm_ for each place of the kernel.
    aten.conv_tbc: lambda _inputs, weight, *_, out_val, **__: 2 * out_val.numel() * math.prod(weight.shape[:2]),
    **{getattr(aten, name): _grouped for name in _GROUPED if hasattr(aten, name)},
    **dict.fromkeys((aten.mkldnn_rnn_layer, aten._cudnn_rnn), _recurrent),  # noqa: SLF001
    # Backward has two such products, for the gradients of inputs and of weights.
    **dict.fromkeys(
        (aten.mkldnn_rnn_layer_backward, aten._cudnn_rnn_backward),  # noqa: SLF001
        lambda *args, **_: 2 * _recurrent(*args),
    ),
    aten._transformer_encoder_layer_fwd: _encoder_layer,  # noqa: SLF001
    aten._native_multi_head_attention: _attention_layer,  # noqa: SLF001
}


# Marks in a profile, questions about tensors, and communication, which is counted as collectives.
_OTHER_NAMESPACES = frozenset({"profiler", "prim"}) | NAMESPACES

_CALLING_NONE = frozenset({"aten", "prims", "fsdp", "quantized", "mkldnn", "onednn"}) | _OTHER_NAMESPACES

# Like views, these compute nothing: they make an empty tensor, or another tensor of the same memory. What they make
# changes with torch's versions and says nothing; the memory is counted elsewhere.
_WITHOUT_WORK = frozenset(
    getattr(aten, name)
    for name in (
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh", "detach_", "t_"),
        *("transpose_", "squeeze_", "unsqueeze_", "as_strided_", "resize_", "set_", "_unsafe_view", "_reshape_alias"),
        *("is_same_size", "record_stream"),
    )
)

# Operators that need a value on the host, or whose result's size depends on values: on a GPU the host waits.
_WAITS = {
    aten._local_scalar_dense: "item",  # noqa: SLF001  .item(), float(tensor), bool(tensor), `if tensor:`
    aten.nonzero: "nonzero",
    aten.masked_select: "masked_select",
    aten.equal: "equal",
    aten.bincount: "bincount",
    **dict.fromkeys((aten._unique2, aten.unique_dim, aten.unique_consecutive), "unique"),  # noqa: SLF001
    aten.repeat_interleave: "repeat_interleave",  # unless it gets the length of its result
}
_INDEXED = frozenset({aten.index, aten.index_put, aten.index_put_})
_COPIES = frozenset({aten._to_copy, aten.copy_})  # noqa: SLF001


@cache
def is_composite(func: Any) -> bool:
    """Returns whether an operator only calls other operators, which autograd then records in its place."""
    with suppress(RuntimeError):  # torch has operators that only Python knows, such as sym_size
        return isinstance(func, OpOverload) and func._can_decompose()  # noqa: SLF001  torch offers no other way to ask
    return False


def kernel_of(func: Any, given: Iterable[Any]) -> DispatchKeySet | None:
    """Returns the key to redispatch a custom operator by, so that dispatch modes see its operators; None for others."""
    if not isinstance(func, OpOverload) or func.namespace in _CALLING_NONE or func._overloadpacket in flop_registry:  # noqa: SLF001  as above
        return None
    keys = [torch._C._dispatch_keys(tensor) for tensor in tensors_in(given)]  # noqa: SLF001  as above
    kinds = [kind for kind in (DispatchKey.CUDA, DispatchKey.CPU) for each in keys if each.has(kind)]
    return DispatchKeySet(kinds[0]) if kinds and len(kinds) == len(keys) else None  # None for a sparse tensor


@cache
def is_plain(func: Any) -> bool:
    """Returns whether an operator has no FLOPs, does not communicate, copies nothing to the device, and never waits."""
    packet = getattr(func, "_overloadpacket", func)
    sends = getattr(func, "namespace", "") in NAMESPACES
    return not (sends or packet in flop_registry or packet in _FORMULAS or packet in {*_WAITS, *_INDEXED, *_COPIES})


def changes_one_count(func: Any, out: Any) -> bool:
    """Returns whether a call can change only the number of operators, and no other count."""
    return isinstance(out, Tensor) and out.dim() > 0 and out.device.type != "meta" and is_plain(func)


@cache
def operator_name(func: Any) -> str | None:
    """Returns an operator's name without the overload, such as ``aten.mm``; None if the operator does no work."""
    packet = getattr(func, "_overloadpacket", None)
    if packet is None:
        return f"higher_order.{func}"
    if func.namespace in _OTHER_NAMESPACES or func.is_view or packet in _WITHOUT_WORK:
        return None
    return str(packet)


def moved_bytes(tensors: Iterable[Tensor]) -> int:
    """Returns the bytes that a call reads and writes: the bytes of its arguments and results, each tensor once.

    An expanded tensor counts with its bytes before the expansion. Bytes that a cache may serve count as well.
    """
    different = {id(tensor): tensor for tensor in tensors}.values()
    return sum(_elements(part) * part.element_size() for tensor in different for part in dense_parts(tensor))


def _elements(tensor: Tensor) -> int:
    """Returns how many elements of a tensor lie at different addresses; without strides, the number of elements."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_contiguous():
        return tensor.numel()
    return math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not size)


def synchronisation(
    func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: str, made: Container[Tensor] = ()
) -> str | None:
    """Returns ``item``, ``copy to host`` or the like if a call makes the host wait for the device; else None.

    On a CPU the same calls count as on a GPU, except copies. ``made`` has numbers that a GPU job has on the GPU.
    """
    packet = func._overloadpacket  # noqa: SLF001  torch offers no other way to ask
    if packet in _COPIES:
        source, target, blocking = _copy(packet, args, kwargs)
        return "copy to host" if device != "cpu" and source == device and target == "cpu" and blocking else None
    if packet in _INDEXED:
        waits = args[0].device.type == device and any(map(_is_mask, args[1])) and not _fills(packet, args, kwargs, made)
        return "index by mask" if waits else None
    if packet in _WAITS and kwargs.get("output_size") is None:
        return _WAITS[packet] if args[0].device.type == device else None
    return None


def host_to_device_bytes(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: str) -> int:
    """Returns the bytes that a call copies from the host's memory to the device's memory."""
    packet = func._overloadpacket  # noqa: SLF001  as above
    if device == "cpu" or packet not in _COPIES:
        return 0
    source, target, _ = _copy(packet, args, kwargs)
    data = args[1] if packet is aten.copy_ else args[0]
    return int(data.numel() * data.element_size()) if source == "cpu" and target == device else 0


def _is_mask(index: torch.Tensor | None) -> bool:
    return index is not None and index.dtype in {torch.bool, torch.uint8}


def _fills(packet: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], made: Container[Tensor]) -> bool:
    """Returns whether ATen runs ``tensor[mask] = 0.0`` or the like as ``masked_fill_`` (canDispatchToMaskedFill)."""
    accumulates = kwargs.get("accumulate", False) or (len(args) > 3 and args[3])  # noqa: PLR2004  index_put(self, indices, values, accumulate)
    if packet is aten.index or accumulates:
        return False
    value = kwargs["values"] if "values" in kwargs else args[2]
    number = value.numel() == 1 and value.device.type == "cpu" and value not in made
    return number and [_is_mask(index) for index in args[1] if index is not None] == [True]


def _copy(packet: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, str, bool]:
    """Returns a copy's source and target (types of devices), and whether the host waits for the copy."""
    blocking = not kwargs.get("non_blocking", False)
    if packet is aten.copy_:
        blocking = blocking and not (len(args) > 2 and args[2])  # noqa: PLR2004  copy_(self, src, non_blocking)
        return args[1].device.type, args[0].device.type, blocking
    target = kwargs.get("device")
    return args[0].device.type, args[0].device.type if target is None else torch.device(target).type, blocking


def has_a_say(kind: type) -> bool:
    """Returns whether a tensor class, such as DTensor, decides in its ``__torch_dispatch__`` which operators run."""
    overridden = kind.__torch_dispatch__ is not Tensor.__torch_dispatch__  # type: ignore[attr-defined]  # all have it
    return overridden and not issubclass(kind, FakeTensor)
