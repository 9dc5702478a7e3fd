"""FakeTensors, which have shapes but no values: a simulated model takes no memory, however large it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.optim import optimizer
from torch.utils import _foreach_utils

from pytest_ddpperf.instruments.counting.loaders import loading_left_out
from pytest_ddpperf.instruments.torch_internals import replaced


@contextmanager
def without_values() -> Iterator[None]:
    """Makes new tensors torch's FakeTensors in this context; DataLoader batches and ranks of a mesh keep values.

    Code that reads a value (``loss.item()``) raises an error of torch.
    """
    with ExitStack() as stack:
        stack.enter_context(loading_left_out(unset_fake_temporarily))  # samplers draw numbers
        stack.enter_context(replaced(nn.Module, "_apply", _where_it_changes(nn.Module._apply)))  # noqa: SLF001
        stack.enter_context(replaced(DeviceMesh, "__init__", _of_ranks(DeviceMesh.__init__)))
        stack.enter_context(replaced(_fsdp_param, "_chunk_with_empty", Chunks))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


@contextmanager
def grouped_as_on_gpus() -> Iterator[None]:
    """Makes optimizers and clipping handle many tensors per operator in this context, as torch does only on GPUs."""
    supported = _foreach_utils._get_foreach_kernels_supported_devices  # noqa: SLF001
    with ExitStack() as stack:
        for module in (optimizer, _foreach_utils):
            kinds: list[type] = module._foreach_supported_types  # noqa: SLF001
            stack.enter_context(replaced(module, "_foreach_supported_types", [*kinds, FakeTensor]))
            stack.enter_context(
                replaced(module, "_get_foreach_kernels_supported_devices", lambda: [*supported(), "cpu"])
            )
        yield


def _where_it_changes(apply: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Wraps ``Module._apply``, which ``to(device)`` calls, to skip unchanged tensors, because torch swaps fake ones."""

    @wraps(apply)
    def applied(module: nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:  # noqa: FBT001, FBT002  torch's
        for child in module.children() if recurse else ():
            child._apply(function)  # type: ignore[no-untyped-call]  # noqa: SLF001  it is what is wrapped
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if all(function(tensor) is tensor for tensor in own):
            return module
        return apply(module, function, recurse=False)

    return applied


def _of_ranks(init: Callable[..., None]) -> Callable[..., None]:
    """Wraps ``DeviceMesh.__init__``, so that it gets the numbers of ranks, assumed to be in order, as values."""

    def known(value: Any) -> Any:
        if not isinstance(value, FakeTensor):
            return value
        return torch.arange(value.numel(), dtype=torch.int).reshape(value.shape)

    @wraps(init)
    def with_values(*args: Any, **kwargs: Any) -> None:
        with unset_fake_temporarily():
            init(*map(known, args), **{name: known(value) for name, value in kwargs.items()})

    return with_values


class Chunks:
    """The chunks of a parameter in FSDP2, one for each rank; a chunk is made when it is used, because few are used."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._dim = tensor, dim
        self._size = -(-tensor.size(dim) // num_chunks)

    def __getitem__(self, number: int) -> torch.Tensor:
        """Returns the chunk of a rank; it has no elements if there are more ranks than rows."""
        begin, length = number * self._size, self._tensor.size(self._dim)
        if begin >= length:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, begin, min(self._size, length - begin))
