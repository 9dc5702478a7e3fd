"""What is left of a case: processes, shared memory, temporary files and sockets that were not there before."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

SHARED = Path("/dev/shm")
MANAGER_SECONDS = 4.0  # torch's manager of shared memory ends 2 s after its last user
END_SECONDS = 1.0  # for a process that was killed to be reaped
# What a fault has filled the disk with, torch's cache of the user, torchrun's folders, and empty locks, which stay.
_NOT_LEFT = ("full", "torchinductor_", "torchelastic_", "pytest-ddpperf-cpu.lock")


@dataclass(frozen=True, kw_only=True, slots=True)
class Present:
    """What must be as before; semaphores are files of shared memory."""

    shared: frozenset[str]
    temporary: frozenset[str]
    sockets: frozenset[str]
    ports: frozenset[str]


def present(temporary: Path) -> Present:
    return Present(shared=_names(SHARED), temporary=_names(temporary), sockets=unix_sockets(), ports=listening())


def left(temporary: Path, before: Present, allowed: Collection[int], seconds: float = END_SECONDS) -> list[str]:
    """What a case has left and what does not go within some seconds; torch's managers of shared memory have more."""
    started = time.monotonic()
    while True:
        waited = time.monotonic() - started
        reap(keep=allowed)
        found = {pid: name for pid, name in processes().items() if pid not in allowed}
        now = present(temporary)
        words = [f"process {name}" for name in found.values()]
        words += [f"/dev/shm/{name}" for name in now.shared - before.shared]
        words += [f"$TMPDIR/{name}" for name in now.temporary - before.temporary if not name.startswith(_NOT_LEFT)]
        words += [f"socket {name}" for name in now.sockets - before.sockets]
        words += [f"port {name}" for name in now.ports - before.ports]  # threads of a zombie may still hold one
        managed = any("torch_shm_manag" in name for name in found.values())
        if not words or waited > (max(seconds, MANAGER_SECONDS) if managed else seconds):
            return words
        time.sleep(0.02)


def _names(path: Path) -> frozenset[str]:
    return frozenset(os.listdir(path)) if path.exists() else frozenset()


def unix_sockets() -> frozenset[str]:
    """The named Unix sockets of this namespace."""
    lines = Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()[1:]
    return frozenset(words[7] for words in map(str.split, lines) if len(words) > 7)


def listening() -> frozenset[str]:
    """The TCP sockets of this namespace that listen, as the kernel writes their addresses."""
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            lines = Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]
            found |= {words[1] for words in map(str.split, lines) if words[3] == "0A"}
    return frozenset(found)


def processes() -> dict[int, str]:
    """All processes of this namespace but this one, zombies of nobody excluded, with what they run."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
                command = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                state, parent = stat.rpartition(")")[2].split()[:2]
                if state != "Z" or parent not in {"1", str(os.getpid())}:
                    found[int(name)] = f"{name} {state} {command[:80] or stat[:40]}"
    return found


def reap(keep: Collection[int] = ()) -> None:
    """Reap the orphans that have come to the first process of a namespace; other processes leave it to that."""
    if os.getpid() != 1:
        return
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in keep:
            with contextlib.suppress(OSError):
                os.waitpid(int(name), os.WNOHANG)
