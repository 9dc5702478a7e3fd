"""Processes as Linux shows them: parents that end, orphans, descendants."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(number: int, parent: int) -> None:
    """Let the kernel send this process the signal ``number`` when the thread that forked it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # the parent has ended before the call
        os._exit(1)


def overwrite_variable(name: str, value: str) -> None:
    """Change an environment variable in ``/proc/PID/environ`` too, to a value of the same length."""
    encoded = value.encode()
    get = ctypes.CDLL(None).getenv
    get.argtypes, get.restype = [ctypes.c_char_p], ctypes.c_void_p
    place = get(name.encode())
    if place is None or len(ctypes.string_at(place)) != len(encoded):
        raise ValueError(f"{name} cannot become {value!r}")
    ctypes.memmove(place, encoded, len(encoded))
    os.environ[name] = value


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends, in any session."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """The pids of this process's children, zombies included."""
    me = str(os.getpid())
    return {pid for pid in _pids() if _stat(pid)[1:2] == [me]}


def marked(name: str, value: str) -> set[int]:
    """The pids of other processes that were started with the environment variable ``name`` = ``value``."""
    wanted = f"{name}={value}".encode()
    found = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found - {os.getpid()}


def is_stopped(pid: int) -> bool:
    """Whether a signal such as SIGSTOP has stopped a process."""
    return _stat(pid)[:1] == ["T"]


def manages_shared_memory(pid: int) -> bool:
    """Whether a process is torch's manager of shared memory, which unlinks it 2 s after its last user has ended."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name == "torch_shm_manager"
    except OSError:
        return False


def tracks_resources(pid: int) -> bool:
    """Whether a process is Python's resource tracker, which unlinks what its users have left when they have ended."""
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def kill(pid: int, *, group: bool) -> None:
    """Kill a process, and with ``group`` the process group that it may lead."""
    for send in (os.killpg, os.kill) if group else (os.kill,):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, signal.SIGKILL)


def out_of_memory_kills() -> int:
    """The number of processes that the kernel has killed for want of memory since boot; 0 where it is unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _stat(pid: int) -> list[str]:
    """State, parent and so on, as in proc(5); empty where the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return stat.rpartition(")")[2].split()  # the name in parentheses may hold parentheses and spaces
