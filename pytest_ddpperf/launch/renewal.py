"""What a call leaves on a rank that lives on: it is found, and put back for the next call. Importable without torch."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.instruments.host import kernel_table, kernel_text
from pytest_ddpperf.instruments.torch_internals import collectives_called, process_groups
from pytest_ddpperf.launch.flight_recorder import ANSWERING
from pytest_ddpperf.units import format_count, format_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_ddpperf.launch.context import RankContext

MEMORY_LIMIT = 512 * 2**20  # bytes by which a rank may grow before that is told
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankState:
    """What a call may change on its rank and should not leave changed."""

    variables: Mapping[str, str] = field(default_factory=dict)  # of the environment
    switches: Mapping[str, Any] = field(default_factory=dict)  # of torch and of the process, by name
    groups: int = 0  # process groups besides the default one and those of meshes, which nobody can close
    threads: Mapping[int, str] = field(default_factory=dict)  # names of Python's threads
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes, of the host and of the GPU
    called: int | None = None  # collectives of the default group; None where that is gone or is another one


@dataclass(frozen=True, kw_only=True, slots=True)
class Renewed:
    """What the last call has left on a rank, in words, and the collectives that the rank has called so far.

    ``called`` is None where the default group is gone: then the rank can serve no further call.
    """

    left: tuple[str, ...]
    called: int | None


class _Kept:
    """The state of this rank before its function was called."""

    before: RankState | None = None
    group: object = None  # the default one
    level: Mapping[str, int] | None = None  # the memory from which growth counts


def begin() -> None:
    """Note the state of this rank before a call."""
    import torch.distributed as dist

    _Kept.group = dist.group.WORLD
    _Kept.before = read()
    if _Kept.level is None:
        _Kept.level = _Kept.before.memory


def renew(_ctx: RankContext) -> Renewed:
    """Find what the last call has left on this rank, and put back what can be put back."""
    import torch

    before, after = _Kept.before or RankState(), read()
    left = drift(before, after, _Kept.level or {})
    if any(after.memory[name] > size + MEMORY_LIMIT for name, size in (_Kept.level or {}).items()):
        _Kept.level = after.memory
    if after.called is not None:
        _close_groups()
    for name, value in before.switches.items():
        if after.switches.get(name) != value:
            _switches()[name][1](value)
    if _uses_gpu():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return Renewed(left=left, called=after.called)


def drift(before: RankState, after: RankState, level: Mapping[str, int]) -> tuple[str, ...]:
    """What a call has left, in words; ``level``: the memory in bytes from which growth counts."""
    both = before.variables.keys() | after.variables.keys()
    changed = sorted(name for name in both if before.variables.get(name) != after.variables.get(name))
    found = [f"environment {', '.join(changed)}"] if changed else []
    found += [f"{name} {value}" for name, value in after.switches.items() if before.switches.get(name) != value]
    opened = after.groups - before.groups
    found += [f"{format_count(opened, 'process group')} left open"] if opened > 0 else []
    threads = [name for number, name in after.threads.items() if number not in before.threads]
    found += [f"running {'threads' if len(threads) > 1 else 'thread'} {', '.join(threads)}"] if threads else []
    grown = {name: after.memory[name] - size for name, size in level.items() if name in after.memory}
    found += [f"{format_value(size, 'B')} more of {name}" for name, size in grown.items() if size > MEMORY_LIMIT]
    return (*found, *(["no default process group"] if after.called is None and before.called is not None else []))


def read() -> RankState:
    """The state of this rank now."""
    import torch
    import torch.distributed as dist

    gc.collect()
    return RankState(
        variables=dict(os.environ),
        switches={name: get() for name, (get, _) in _switches().items()},
        groups=sum(not str(group.group_desc).startswith("mesh_") for group in _own_groups()),
        threads={
            thread.ident or 0: thread.name
            for thread in threading.enumerate()
            if thread.name != ANSWERING and not isinstance(thread, threading._DummyThread)  # noqa: SLF001  C++'s
        },
        memory={
            "host memory": kernel_table(kernel_text(_STATUS).replace(":", "")).get("RssAnon", 0) * 1024,
            **({"GPU memory": torch.cuda.memory_allocated()} if _uses_gpu() else {}),
        },
        called=collectives_called() if dist.group.WORLD is _Kept.group is not None else None,
    )


def _own_groups() -> list[Any]:
    import torch.distributed as dist

    return [group for group in process_groups() if group is not dist.group.WORLD]


def _close_groups() -> None:
    import torch.distributed as dist

    for group in reversed(_own_groups()):
        with contextlib.suppress(Exception):  # it is forgotten all the same
            dist.destroy_process_group(group)


def _switches() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    """How each switch is read and set."""
    import torch

    return {
        "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "default device": (torch.get_default_device, lambda _: torch.set_default_device(None)),
        "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
        "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        "precision of float32 products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        "number of threads": (torch.get_num_threads, torch.set_num_threads),
        "current folder": (_folder, os.chdir),
        **({"current GPU": (torch.cuda.current_device, torch.cuda.set_device)} if _uses_gpu() else {}),
    }


def _uses_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _folder() -> str:
    with contextlib.suppress(FileNotFoundError):
        return str(Path.cwd())
    return "that is gone"
