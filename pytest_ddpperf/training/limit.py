"""A rank with less memory than the machine has, so that what does not fit fails early. Importable without torch."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpperf.errors import DdpperfError
from pytest_ddpperf.training.loop import LaunchJob, run_launch

if TYPE_CHECKING:
    import torch

    from pytest_ddpperf.records.measurement import RankLaunch
    from pytest_ddpperf.strategies.parallel import RankView

_STATUS = Path("/proc/self/status")
_SLACK = 512 * 2**20  # what libraries reserve at first use differed by 100 MiB from launch to launch
_THREAD_STACK = 8 * 2**20
# What libraries say when the kernel refuses them memory; oneDNN only says that it could not do its work.
_SIGNS = (
    "DefaultCPUAllocator: can't allocate memory",
    "std::bad_alloc",
    "Cannot allocate memory",
    "could not create a primitive",
    "could not create a memory object",
    "can't start new thread",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def probe_launch(ctx: RankView, job: LaunchJob, memory_limit: int | None) -> RankLaunch:
    """What ``run_launch`` reports, under a limit of this rank's memory in bytes; None for what the device has.

    No steps follow the timed ones: whether they fit is known by then. Their times are not to be trusted: they may
    compile, or overflow in fp16.

    Raises:
        MemoryError: the limit was reached.
        Exception: whatever else ``run_launch`` raises.
    """
    with limited(ctx.device, memory_limit):
        return run_launch(ctx, replace(job, growth=False, diagnosed=False, times_matter=False))


@contextmanager
def limited(device: torch.device, limit: int | None) -> Iterator[None]:
    """Within, this process may use ``limit`` bytes above what it uses now; want of memory becomes a MemoryError.

    On CUDA it is the caching allocator that is limited, which holds to it exactly. On CPU the kernel limits private
    writable memory (RLIMIT_DATA), reserved or in use, so what is allowed lies a quarter and half a GiB above the limit:
    that keeps the machine safe, and whether the limit was kept is for the measured peak to say. (RLIMIT_AS would count
    what malloc sets aside for each thread, 64 MiB and more, as well.)
    """
    lift = None if limit is None else _impose(device, limit)
    try:
        yield
    except DdpperfError:
        raise
    except Exception as error:
        if isinstance(error, MemoryError) or not any(sign in str(error) for sign in _SIGNS):
            raise
        raise MemoryError(str(error).partition("\n")[0]) from error
    finally:
        if lift is not None:
            lift()


def _impose(device: torch.device, limit: int) -> Callable[[], object]:
    """Begin to hold this process to the limit; gives what ends it."""
    import torch

    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
        return lambda: torch.cuda.set_per_process_memory_fraction(1.0, device)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = _data_bytes() + limit + limit // 4 + _SLACK + torch.get_num_threads() * _THREAD_STACK
    ceilings = [ceiling for ceiling in (allowed, soft, hard) if ceiling != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(ceilings), hard))
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int:
    """The private writable memory of this process, as RLIMIT_DATA counts it (VmData in proc(5))."""
    for line in _STATUS.read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(":")
        if name == "VmData":
            return int(rest.split()[0]) * 1024
    raise OSError(f"{_STATUS} does not tell VmData")
