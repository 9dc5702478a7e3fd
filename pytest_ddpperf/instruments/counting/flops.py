"""Floating point operations of matrix products, convolutions, attention and recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

aten = torch.ops.aten


def flops_of(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int:
    """FLOPs of a call, a multiplication and an addition being two; 0 for an operator that only moves memory.

    By the formulas of torch.utils.flop_counter, which has some of higher-order operators too, and by those below.
    Attention counts whole, even if a causal kernel leaves out half.
    """
    packet = getattr(func, "_overloadpacket", func)
    formula = flop_registry.get(packet) or _FORMULAS.get(packet)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=out))


def _products_with(position: int) -> Callable[..., int]:
    """One multiplication and one addition for each element of the argument at a position."""
    return lambda *args, **_: 2 * int(args[position].numel())


def _grouped(rows: Tensor, columns: Tensor, *_others: Any, **_: Any) -> int:
    """Products of groups of rows, of a mixture of experts, as if all rows had a group: only the device knows."""
    groups = rows.shape[0] if rows.dim() > columns.dim() else 1  # each group has its own columns
    return 2 * rows.numel() * columns.shape[-1] // groups


def _rows(inputs: Tensor) -> int:
    """The number of vectors, of all steps of all sequences together."""
    return inputs.numel() // inputs.shape[-1]


def _products(rows: int, weights: Iterable[Tensor]) -> int:
    """Products of vectors with each of the weights that is a matrix; the others are biases."""
    return 2 * rows * sum(weight.numel() for weight in weights if weight.dim() > 1)


def _onednn_layer(inputs: Tensor, *others: Any, **_: Any) -> int:
    """2 x rows x gates x hidden x (inputs + hidden), by the equations of torch.nn.LSTM (4 gates).

    Each row is multiplied by the matrices of all gates, which are stacked: the first two of the four weights.
    """
    return _products(_rows(inputs), others[:2])


def _cudnn_layers(inputs: Tensor, weights: list[Tensor], *_others: Any, **_: Any) -> int:
    """The same with the weights of all layers and directions; a projection has another matrix."""
    return _products(_rows(inputs), weights)


def _twice(forward: Callable[..., int]) -> Callable[..., int]:
    """Backward of matrix products: one of the same size for the gradient of the inputs, one for that of the weights."""
    return lambda *args, **kwargs: 2 * forward(*args, **kwargs)


def _self_attention(inputs: Tensor, width: int, projections: Iterable[Tensor]) -> int:
    """The matrices that each row goes through, and 2 x 2 x length x length x width of scores and mixing a sequence."""
    if inputs.is_nested:
        lengths: list[int] = [length for length, *_ in inputs._nested_tensor_size().tolist()]  # noqa: SLF001  no other way to ask
    else:
        lengths = [inputs.shape[1]] * inputs.shape[0]
    return _products(sum(lengths), projections) + sum(4 * length * length * width for length in lengths)


def _encoder_layer(inputs: Tensor, width: int, _heads: int, *others: Any, **_: Any) -> int:
    """torch.nn.TransformerEncoderLayer in inference; of four pairs of weights each second one is a bias."""
    stacked, _bias, projection, *_norms = others
    return _self_attention(inputs, width, (stacked, projection, others[11], others[13]))


def _attention_layer(inputs: Tensor, _keys: Tensor, _values: Tensor, width: int, *others: Any, **_: Any) -> int:
    """torch.nn.MultiheadAttention in inference, of a sequence with itself."""
    return _self_attention(inputs, width, (others[1], others[3]))


# Operators that torch's table lacks. Attention on a CPU begins with the same arguments as elsewhere.
_FORMULAS: Mapping[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,  # noqa: SLF001  that is its name
    aten._scaled_dot_product_flash_attention_for_cpu_backward: sdpa_backward_flop,  # noqa: SLF001
    aten.mv: _products_with(0),
    aten.addmv: _products_with(1),
    aten.addmv_: _products_with(1),
    aten.dot: _products_with(0),
    aten.vdot: _products_with(0),
    aten._grouped_mm: _grouped,  # noqa: SLF001
    aten._scaled_grouped_mm: _grouped,  # noqa: SLF001
    aten.mkldnn_rnn_layer: _onednn_layer,
    aten.mkldnn_rnn_layer_backward: _twice(_onednn_layer),
    aten._cudnn_rnn: _cudnn_layers,  # noqa: SLF001
    aten._cudnn_rnn_backward: _twice(_cudnn_layers),  # noqa: SLF001
    aten._transformer_encoder_layer_fwd: _encoder_layer,  # noqa: SLF001
    aten._native_multi_head_attention: _attention_layer,  # noqa: SLF001
}
