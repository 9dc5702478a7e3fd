"""Processes as the Linux kernel shows them: parents that die, children that stay, trees that have to go."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(number: int, parent: int) -> None:
    """Have the kernel send this process ``number`` when the thread that made it ends.

    Where ``parent`` died before that could be arranged, this process ends at once.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def overwrite_variable(name: str, value: str) -> None:
    """Change an environment variable that this process was started with where others see it, in ``/proc/PID/environ``.

    Raises:
        ValueError: there is none of that name whose value is as long.
    """
    encoded = value.encode()
    get = ctypes.CDLL(None).getenv
    get.argtypes, get.restype = [ctypes.c_char_p], ctypes.c_void_p
    place = get(name.encode())
    if place is None or len(ctypes.string_at(place)) != len(encoded):
        raise ValueError(f"{name} cannot become {value!r}")
    ctypes.memmove(place, encoded, len(encoded))
    os.environ[name] = value


def adopt_orphans() -> None:
    """Have every descendant whose parent ends become a child of this process, whatever session it has moved to."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """The pids of this process's children, ended ones that nobody has reaped included."""
    me = os.getpid()
    return {pid for pid in _pids() if _parent(pid) == me}


def marked(name: str, value: str) -> set[int]:
    """The pids of processes that were started with the environment variable ``name`` = ``value``."""
    wanted = f"{name}={value}".encode()
    found = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found - {os.getpid()}


def kill(pid: int) -> None:
    """Kill a process, and the process group that it may lead."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)


def out_of_memory_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started; 0 where it does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _parent(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold anything, parentheses and spaces included; the state and the parent follow it.
    return int(stat.rpartition(")")[2].split()[1])
