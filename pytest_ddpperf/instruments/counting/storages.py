"""The memory behind tensors: storages, which several tensors may share, and their bytes."""

from __future__ import annotations

from collections.abc import Iterable

import torch

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def storages_of(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """Returns the storages of a tensor: usually one; several for sparse tensors and wrappers; none without memory."""
    if type(tensor) not in _PLAIN and hasattr(tensor, "__tensor_flatten__"):
        inner = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        return [storage for part in inner if isinstance(part, torch.Tensor) for storage in storages_of(part)]
    if tensor.layout is torch.strided:
        try:
            return [tensor.untyped_storage()]
        except (NotImplementedError, RuntimeError):  # a tensor for tracing has no memory
            return []
    return [storage for part in dense_parts(tensor) if part is not tensor for storage in storages_of(part)]


def bytes_of(tensors: Iterable[torch.Tensor], known: set[int]) -> int:
    """Returns the bytes of the tensors' storages whose ids are not in ``known``, and adds their ids to ``known``."""
    total = 0
    for tensor in tensors:
        for storage in storages_of(tensor):
            if storage._cdata not in known:  # noqa: SLF001  torch has no other identity for it
                known.add(storage._cdata)  # noqa: SLF001
                total += storage.nbytes()
    return total


def dense_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns the tensors that a sparse tensor consists of, with the values last; a dense tensor is returned itself."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()  # noqa: SLF001  the public ones refuse what is not coalesced
    if tensor.layout in {torch.sparse_csr, torch.sparse_bsr}:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in {torch.sparse_csc, torch.sparse_bsc}:
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)
