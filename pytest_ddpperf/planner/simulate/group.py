"""Makes a process one rank of a simulated group: collectives end at once, and tensors need no values."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.optim import optimizer
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_ddpperf.instruments.counting.collectives import tensors_in
from pytest_ddpperf.instruments.counting.loaders import loading_left_out
from pytest_ddpperf.instruments.torch_internals import replaced
from pytest_ddpperf.planner.simulate.timeline import TimelineRecorder
from pytest_ddpperf.records.measurement import SIMULATED

_BACKENDS = "c10d"  # the namespace of operators that backends implement; others call these
_FILLED = 2  # number of arguments with tensors: results and inputs


@contextmanager
def rank_of(
    rank: int, world_size: int, recorder: TimelineRecorder | None = None, devices: tuple[str, ...] = ()
) -> Iterator[None]:
    """Makes this process one rank of a simulated group, in which collectives end at once with this rank's own values.

    Environment variables are set as torchrun sets them on one node. ``recorder`` records each collective. On
    ``devices``, only the kernels of collectives are replaced, so that other operators keep their speed. If ``devices``
    is empty, every operator is intercepted, which takes time.
    """
    number, ranks = str(rank), str(world_size)
    os.environ.update(RANK=number, WORLD_SIZE=ranks, LOCAL_RANK=number, LOCAL_WORLD_SIZE=ranks)
    dist.init_process_group(SIMULATED, rank=rank, world_size=world_size)
    try:
        answered: Any = _kernels(devices, recorder) if devices else _Collectives(recorder)
        with answered:
            yield
    finally:
        dist.destroy_process_group()


class _Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """A dispatch mode that completes each collective at once, as if other ranks took part.

    torch's fake backend copies this rank's values, which FakeTensors do not have. DDP's C++ code reads results from a
    collective's Work, but the fake backend's Work has none. So this mode returns a Work with results.
    """

    below_counts = True

    def __init__(self, recorder: TimelineRecorder | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "namespace", "") != _BACKENDS:
            return func(*args, **kwargs)

        def fill() -> None:
            if not any(isinstance(tensor, FakeTensor) for tensor in tensors_in(args)):
                func(*args, **kwargs)

        return _answered(func, args, kwargs, self._recorder, fill)


def _answered(
    func: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    recorder: TimelineRecorder | None,
    fill: Callable[[], None],
) -> Any:
    """Calls ``fill`` to write a collective's output tensors; returns the operator's result, with a completed Work."""
    told: Any = nullcontext([]) if recorder is None else recorder.handing_over(func, args, kwargs)
    with told as numbers:
        fill()
        returned = len(func._schema.returns)  # noqa: SLF001  torch offers no other way to ask
        if not returned:
            return None
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(args[0])
        made: Any = getattr(_distributed_c10d, "_create_work_from_future")(future)  # noqa: B009  stubs lack it
        if recorder is not None:
            recorder.begun(made, numbers)
        work = made.boxed()
        return work if returned == 1 else (args[0], work)


@contextmanager
def _kernels(devices: tuple[str, ...], recorder: TimelineRecorder | None) -> Iterator[None]:
    """Replaces the kernels of collectives on ``devices`` in this context, also for code that torch.compile compiles."""
    library: Any = torch.library.Library(_BACKENDS, "IMPL")  # type: ignore[no-untyped-call]  # torch's
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that kernels are replaced
            for schema in torch._C._jit_get_all_schemas():  # noqa: SLF001  torch lists them nowhere else
                namespace, _, name = schema.name.partition("::")
                if namespace != _BACKENDS or not schema.returns:
                    continue
                func = getattr(getattr(torch.ops.c10d, name), schema.overload_name or "default")
                for device in devices:
                    library.impl(name, partial(_in_place_of_backend, func, recorder), device)
        yield
    finally:
        library._destroy()  # noqa: SLF001  there is no public way


def _in_place_of_backend(func: Any, recorder: TimelineRecorder | None, *args: Any, **kwargs: Any) -> Any:
    return _answered(func, args, kwargs, recorder, partial(_fill, args))


def _fill(args: tuple[Any, ...]) -> None:
    """Fills a collective's outputs with copies of this rank's values; computing on uninitialised memory may be slow."""
    results, given = (tensors_in((part,)) for part in (*args[:_FILLED], (), ())[:_FILLED])
    if not given or not results:
        return
    with torch.no_grad():
        for i, result in enumerate(results):
            flat, own = result.view(-1), given[i % len(given)].reshape(-1)[: result.numel()].to(result.dtype)
            times = flat.numel() // max(1, own.numel())
            flat[: times * own.numel()].view(times, -1).copy_(own.expand(times, -1))
            flat[times * own.numel() :].copy_(own[: flat.numel() - times * own.numel()])


@contextmanager
def without_values() -> Iterator[None]:
    """Makes new tensors FakeTensors in this context, except for DataLoader batches and the rank numbers of a mesh.

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
    """Makes optimizers and gradient clipping use foreach operators in this context, as torch does only on GPUs."""
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
    """Wraps ``Module._apply`` to do nothing if the function changes no tensor; torch replaces FakeTensors even then."""

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
    """Wraps ``DeviceMesh.__init__`` to replace rank numbers without values (FakeTensors) by 0, 1, 2 and so on."""

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
    """The chunks of a parameter in FSDP2, one for each rank. A chunk is made only when it is read."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._dim = tensor, dim
        self._size = -(-tensor.size(dim) // num_chunks)

    def __getitem__(self, number: int) -> torch.Tensor:
        """Returns the chunk of a rank; the chunk is empty if there are more ranks than rows."""
        begin, length = number * self._size, self._tensor.size(self._dim)
        if begin >= length:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, begin, min(self._size, length - begin))
