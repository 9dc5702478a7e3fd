"""A limit of memory; a rank that needs more raises MemoryError early. Importable without torch."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpperf.errors import DdpperfError
from pytest_ddpperf.instruments.host import kernel_table, kernel_text
from pytest_ddpperf.launch.faults.cures import WANT_OF_MEMORY

if TYPE_CHECKING:
    import torch

_STATUS = Path("/proc/self/status")
_SLACK = 512 * 2**20  # libraries reserve memory at first use, which differed by 100 MiB from launch to launch
_THREAD_STACK = 8 * 2**20
# What else libraries say when they are refused memory; oneDNN only says that it could not do its work.
_SIGNS = (
    *("std::bad_alloc", "Cannot allocate memory", "could not create a primitive", "could not create a memory object"),
    *("can't start new thread", "out of memory"),
)


@contextmanager
def limited(device: torch.device, limit: int | None) -> Iterator[None]:
    """Limits this process to ``limit`` more bytes; turns an error for lack of memory into a MemoryError.

    On CUDA the caching allocator enforces the limit exactly. On a CPU the kernel limits private writable memory
    (RLIMIT_DATA), which includes unused reserves. So the kernel's limit is higher, and the caller compares the measured
    peak with ``limit``. RLIMIT_AS would also count the 64 MiB and more that malloc reserves for each thread.
    """
    lift = None if limit is None else _impose(device, limit)
    try:
        yield
    except DdpperfError:
        raise
    except Exception as error:
        wanting = WANT_OF_MEMORY.search(str(error)[:10_000]) is not None or any(sign in str(error) for sign in _SIGNS)
        if isinstance(error, MemoryError) or not wanting:
            raise
        raise MemoryError(str(error).partition("\n")[0]) from error
    finally:
        if lift is not None:
            lift()


def _impose(device: torch.device, limit: int) -> Callable[[], object]:
    import torch

    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
        return lambda: torch.cuda.set_per_process_memory_fraction(1.0, device)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    facts = kernel_table(kernel_text(_STATUS).replace(":", ""))
    if "VmData" not in facts:  # what RLIMIT_DATA counts (proc(5)), in KiB
        raise OSError(f"memory_limit on the CPU needs VmData in {_STATUS}, which is missing: use device=cuda")
    used = facts["VmData"] * 1024
    allowed = used + limit + limit // 4 + _SLACK + torch.get_num_threads() * _THREAD_STACK
    ceilings = [ceiling for ceiling in (allowed, soft, hard) if ceiling != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(ceilings), hard))
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
