"""One rank of a group whose other ranks are not there: torch's fake backend, with collectives that complete."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_ddpperf.instruments.counting.collectives import tensors_in
from pytest_ddpperf.records.measurement import SIMULATED

_BACKENDS = "c10d"  # the namespace of operators that backends implement; others call these


@contextmanager
def rank_of(rank: int, world_size: int) -> Iterator[None]:
    """Within, this process is a rank of a group of so many, and each collective ends at once, with what it was given.

    Variables of the environment tell the same, as of ranks of torchrun on one node.
    """
    number, ranks = str(rank), str(world_size)
    os.environ.update(RANK=number, WORLD_SIZE=ranks, LOCAL_RANK=number, LOCAL_WORLD_SIZE=ranks)
    dist.init_process_group(SIMULATED, rank=rank, world_size=world_size)
    try:
        with _Collectives():  # type: ignore[no-untyped-call]  # torch's
            yield
    finally:
        dist.destroy_process_group()


class _Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Answers for the other ranks.

    The fake backend gives real tensors copies of this rank's own. Its handles have no tensors, which the C++ of
    DistributedDataParallel asks them for, so they get others. Tensors without memory never reach the backend.
    """

    def __torch_dispatch__(
        self, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "namespace", "") != _BACKENDS:
            return func(*args, **kwargs)
        if not any(isinstance(tensor, FakeTensor) for tensor in tensors_in(args)):
            func(*args, **kwargs)
        returned = len(func._schema.returns)  # noqa: SLF001  torch offers no other way to ask
        if not returned:
            return None
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(args[0])
        made: Any = getattr(_distributed_c10d, "_create_work_from_future")(future)  # noqa: B009  stubs lack it
        work = made.boxed()
        return work if returned == 1 else (args[0], work)
