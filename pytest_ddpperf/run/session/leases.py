"""Reserves GPUs for a run, and finds other runs on the machine, with locks that the kernel frees."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.deadlines import late
from pytest_ddpperf.instruments.host import kernel_text, open_shared
from pytest_ddpperf.launch.context import Gpus
from pytest_ddpperf.records.finding import Finding

CPU = "cpu"  # the lock's name for runs that use no GPU
_POLL_SECONDS = 0.2
_LONGEST = 200  # characters of a folder that are shown
_MASKS = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True)
class Holder:
    """The id and working folder of the process that holds a lock; 0 and "" if the kernel does not report them."""

    pid: int = 0
    folder: str = ""

    def __str__(self) -> str:
        where = f" in {self.folder}" if self.folder else ""
        return f"process {self.pid}{where}" if self.pid else "another process"


class Locks:
    """The locks of this process by name, each on a file in the folder of temporary files.

    Other users may write in this folder, so the files stay empty and are opened only for reading. A path that is no
    regular file, such as a link, counts as free and is never locked.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}  # descriptors
        _OPEN.add(self)

    def take(self, names: Sequence[str], *, shared: bool = False) -> Holder | None:
        """Takes all these locks and returns None, or takes none and returns a process that holds one of them."""
        new: list[str] = []
        for name in names:
            if name in self._held:
                continue
            descriptor = self._opened(name)
            if descriptor is None:
                continue
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                found = holder(os.fstat(descriptor))
                os.close(descriptor)
                self.release(new)
                return found
            except OSError:  # a file system without such locks: nobody can be kept out
                os.close(descriptor)
                continue
            self._held[name] = descriptor
            new.append(name)
        return None

    def free(self, names: Sequence[str]) -> list[str]:
        """Returns the names of the locks that no other process holds."""
        found = []
        for name in names:
            held = name in self._held
            if self.take([name]) is None:
                found.append(name)
                self.release([] if held else [name])
        return found

    def holds(self, name: str) -> bool:
        """Returns whether this process holds a lock."""
        return name in self._held

    def release(self, names: Sequence[str]) -> None:
        """Releases the locks."""
        for name in names:
            descriptor = self._held.pop(name, None)
            if descriptor is not None:
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile would keep the lock
                os.close(descriptor)

    def forget(self) -> None:
        """Closes the files without releasing the locks, in a forked child, because the locks belong to its parent."""
        while self._held:
            os.close(self._held.popitem()[1])

    def close(self) -> None:
        """Releases all locks."""
        self.release([*self._held])

    def _opened(self, name: str) -> int | None:
        folder = Path(tempfile.gettempdir()) if self._folder is None else self._folder
        path = folder / f"pytest-ddpperf-{re.sub(r'[^A-Za-z0-9.-]', '_', name)}.lock"
        try:
            try:
                descriptor = open_shared(path, os.O_CREAT | os.O_EXCL)
                os.fchmod(descriptor, 0o444)  # whatever the umask: other users lock it too
            except FileExistsError:
                descriptor = open_shared(path)
        except OSError as error:
            if error.errno not in {errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOENT, errno.ENXIO, errno.EROFS}:
                raise
            return None
        return descriptor


_OPEN: weakref.WeakSet[Locks] = weakref.WeakSet()


def _forget_in_child() -> None:
    for locks in _OPEN:
        locks.forget()


os.register_at_fork(after_in_child=_forget_in_child)


def holder(file: os.stat_result, root: Path = Path("/")) -> Holder:
    """Returns the process that locks a file, according to the kernel's list of locks."""
    lines = map(str.split, kernel_text(root / "proc/locks").splitlines())
    # 1: FLOCK ADVISORY WRITE 1234 08:01:131 0 EOF; those that wait have -> second
    held = [words for words in lines if words[1:2] == ["FLOCK"] and words[5].endswith(f":{file.st_ino}")]
    # If the list lacks the file, a file with the same inode number on another device counts.
    device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:"
    for words in sorted(held, key=lambda words: not words[5].startswith(device)):
        if int(words[4]) > 0:
            folder = ""
            with contextlib.suppress(OSError):  # another user's process
                folder = str((root / f"proc/{words[4]}/cwd").readlink())
            shown = "".join(letter if letter.isprintable() else "?" for letter in folder)
            return Holder(int(words[4]), shown if len(shown) <= _LONGEST else f"...{shown[-_LONGEST:]}")
    return Holder()


class Leases:
    """The GPUs or the CPU that a session reserves while it measures; ``tell`` prints a line."""

    def __init__(self, seconds: float | None, tell: Callable[[str], None], locks: Locks | None = None) -> None:
        self._seconds = seconds  # how long the session waits for GPUs; if it is None, nothing is reserved
        self._tell, self._locks = tell, locks or Locks()
        self._beside: Holder | None = None  # the process that measured on this CPU before this session
        self.remarks: list[str] = []

    @property
    def finding(self) -> tuple[Finding, ...]:
        """A finding that another run measures on this machine, or an empty tuple if there is no such run."""
        found = self._beside
        return () if found is None else (Finding("measured_beside", {"pid": found.pid, "folder": found.folder}),)

    def on_cpu(self) -> None:
        """Reserves the CPU; if another run measures on it, reports this once and goes on."""
        if self._seconds is None or self._locks.holds(CPU) or self._beside is not None:
            return
        found = self._locks.take([CPU])
        if found is not None and found.pid != os.getpid():  # another session inside this process does not count
            self._beside = found
            self.remarks.append(
                f"{self._beside} measures on this machine too: both runs' times are longer; "
                "run one after the other, or compare counts alone (--ddpperf-counts=only)"
            )

    def on_gpus(self, gpus: Gpus, ranks: int, environ: MutableMapping[str, str], *, fixed: bool = False) -> bool:
        """Reserves a GPU for each rank, or raises LaunchError; returns True if CUDA now lists GPUs in another order."""
        names = names_of(gpus)
        needed = names[:ranks]
        if self._seconds is None or all(map(self._locks.holds, needed)):
            return False
        # If the first GPUs are in use, others of the same model are reserved. With ``fixed``, the first are waited for.
        shown = None if fixed or any(environ.get(mask) for mask in _MASKS) else _visible(environ, len(names))
        models = dict(zip(names, gpus.names, strict=True)) if shown else {}
        chosen = self._waited(lambda: self._chosen(names, len(needed), models), needed)
        if chosen == needed or shown is None:
            return False
        # All stay visible, in another order: their number is a fact by which baselines are compared.
        order = [names.index(name) for name in (*chosen, *(name for name in names if name not in chosen))]
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(shown[number] for number in order)
        self.remarks.append(
            f"GPUs {', '.join(chosen)} were taken in place of {', '.join(needed)}, which another run uses"
        )
        return True

    @contextlib.contextmanager
    def sharing(self, gpus: Gpus, ranks: int) -> Iterator[None]:
        """Reserves GPUs for ranks that do not measure. Ranks of other runs may use them, too, without measuring."""
        names = [name for name in names_of(gpus)[:ranks] if not self._locks.holds(name)]
        if self._seconds is None or not names:
            yield
            return
        self._waited(lambda: self._locks.take(names, shared=True) or names, names)
        try:
            yield
        finally:
            self._locks.release(names)

    def _chosen(self, names: list[str], count: int, models: Mapping[str, str]) -> list[str] | Holder:
        """Reserves the first ``count`` GPUs, or others of their model; returns them, or a process that holds a GPU."""
        self._locks.release(names)  # two runs that each hold what the other one lacks would wait for ever
        taken = self._locks.take(names[:count])
        if taken is None:
            return names[:count]
        wanted = {models.get(name) for name in names[:count]}
        free = [name for name in self._locks.free(names) if {models.get(name)} == wanted][:count]
        if not models or len(free) < count:
            return taken
        return self._locks.take(free) or free

    def _waited(self, attempt: Callable[[], list[str] | Holder], names: Sequence[str]) -> list[str]:
        begun, waited_for = time.monotonic(), ""
        while True:
            found = attempt()
            if not isinstance(found, Holder):
                if waited_for:
                    self.remarks.append(f"waited {time.monotonic() - begun:.0f} s for GPUs that {waited_for} used")
                return found
            seconds = self._seconds or 0.0
            if time.monotonic() - begun >= seconds:
                reason = f"GPUs are in use by {found}: {', '.join(names)} were not free within {seconds:g} s"
                cure = "wait longer with --ddpperf-gpu-lock-timeout=SECONDS, name other GPUs by CUDA_VISIBLE_DEVICES"
                raise late(LaunchError(f"{reason}; {cure}, or share them with --ddpperf-gpu-lock-timeout=off"))
            if not waited_for:
                waited_for = str(found)
                self._tell(f"waiting for GPUs that {found} uses, up to {seconds:g} s")
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Releases all locks."""
        self._locks.close()


def names_of(gpus: Gpus) -> list[str]:
    """Returns unique names of a machine's GPUs: MIG instances, else PCI ids; empty if torch does not know them."""
    known = [*gpus.instances] or [one for one in gpus.pci if one is not None]
    return known if len(known) == len(gpus.names) else []


def _visible(environ: MutableMapping[str, str], count: int) -> list[str] | None:
    """Returns the GPUs in CUDA_VISIBLE_DEVICES (default: 0, 1, ...), or None if their number is not ``count``."""
    given = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return [str(number) for number in range(count)] if not given else given if len(given) == count else None
