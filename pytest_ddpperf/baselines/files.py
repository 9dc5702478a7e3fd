"""Writes files that users name: atomically, by one process at a time, and never in place of pipes or devices."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.deadlines import late
from pytest_ddpperf.instruments.host import private_folder

STANDARD_OUTPUT = Path("-")
_OPENED = ("/dev/stdin", "/dev/fd/")
LOCK_SECONDS = 30.0  # a process that saves holds the lock for milliseconds
_UNREPLACEABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY})  # EBUSY: it is a mount point


def located(root: Path, path: Path) -> Path:
    """Returns ``path``, with ``root`` in front if it is relative; ``-``, standard output, stays unchanged."""
    return path if path == STANDARD_OUTPUT else root / path


def require_regular(file: Path, most: float = math.inf) -> None:
    """Raises OSError for a pipe, a device (except /dev/stdin and /dev/fd/N), or a file of more than ``most`` bytes."""
    if file.exists() and not (file.is_file() or file.is_dir() or str(file).startswith(_OPENED)):
        raise OSError(errno.EINVAL, "this is a pipe or a device: name a file", str(file))
    if file.exists() and file.stat().st_size > most:
        raise OSError(errno.EFBIG, f"this file has more than {most:.3g} bytes", str(file))


def require_writable(path: Path) -> None:
    """Raises OSError if this file cannot be written; leaves nothing behind."""
    if path == STANDARD_OUTPUT:
        return
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        require_writable_folder(path.resolve().parent)
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(0, "this is a folder")
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "the file is read-only")


def require_writable_folder(folder: Path) -> None:
    """Raises OSError if a file cannot be made in a folder, or in the nearest existing folder above it."""
    # Permission bits say little to root and on read-only file systems: only trying shows it.
    with tempfile.TemporaryFile(dir=next(path for path in (folder, *folder.absolute().parents) if path.exists())):
        pass


def write_file(path: Path, text: str) -> None:
    """Writes a file so that readers, even after a crash, see either the complete old or the complete new content.

    A link stays a link: its target is written. A device, a pipe or an open descriptor such as ``/dev/stdout`` is
    written to and not replaced; ``-`` is standard output.
    """
    if path == STANDARD_OUTPUT:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file as ``write_file`` does; here ``-`` is an ordinary file."""
    descriptor = _open_stream(path)
    if descriptor is None:
        _replace(path.resolve(), content)
        return
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)


def remove_drafts(file: Path) -> None:
    """Removes temporary files of processes that were killed while they wrote ``file``; its folder has to be locked."""
    for draft in file.parent.glob(f".{file.name[:100]}.*.tmp"):
        draft.unlink(missing_ok=True)


def _open_stream(path: Path) -> int | None:
    """Returns a descriptor of a pipe, a device or an open stream such as ``/dev/stdout``; None for other files."""
    with contextlib.suppress(FileNotFoundError):
        path.stat()  # links in a circle raise OSError here
    link = path
    while link.is_symlink():
        if str(link.parent.resolve()) == f"/proc/{os.getpid()}/fd":  # shares its position with other writers
            return os.dup(int(link.name))
        link = link.parent / link.readlink()
    if not path.exists() or path.is_file():
        return None
    # A pipe without a reader refuses; waiting for a reader could last for ever.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY)
    os.set_blocking(descriptor, True)
    return descriptor


def _replace(file: Path, content: bytes) -> None:
    # Next to the target, because renaming is atomic only within one file system; hidden, so that readers ignore it.
    # Not by tempfile, because only the owner may read its files: here the user's umask decides.
    draft = file.with_name(f".{file.name[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        if file.exists():
            require_writable(file)
        _write(draft, "xb", content, like=file)
        draft.replace(file)
    except BaseException as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        if not (isinstance(error, OSError) and error.errno in _UNREPLACEABLE and os.access(file, os.W_OK)):
            raise
        _write(file, "wb", content)  # its folder refuses a second file, or the file is a mount point
        return
    with contextlib.suppress(OSError):  # not every file system can sync a folder
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _write(file: Path, mode: Literal["xb", "wb"], content: bytes, like: Path | None = None) -> None:
    with file.open(mode) as written:
        if like is not None and like.exists():
            os.fchmod(written.fileno(), stat.S_IMODE(like.stat().st_mode))
        written.write(content)
        written.flush()
        os.fsync(written.fileno())


@contextlib.contextmanager
def saving(path: Path) -> Iterator[None]:
    """Converts an OSError in the ``with`` block, which has to save baselines in ``path``, to a BaselineError."""
    try:
        yield
    except OSError as error:
        reason = f"baselines cannot be saved in {path}: {error.strerror or error}"
        cure = "make this folder writable, or name another one with --ddpperf-baseline-dir"
        raise BaselineError(f"{reason}; {cure}") from None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder in this context, so that no other process saves there; raises BaselineError on failure."""
    with saving(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _lock(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path) -> int:
    """Returns a descriptor that holds a lock until it is closed or the process ends; no lock file is left over."""
    deadline = time.monotonic() + LOCK_SECONDS
    for find in (folder.absolute, private_folder):
        descriptor = os.open(find(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                os.close(descriptor)
                reason = f"another process has locked it for {LOCK_SECONDS:g} s; end that process, and run again"
                raise late(BaselineError(f"baselines cannot be saved in {folder}: {reason}")) from None
            except OSError:
                # NFS cannot lock a folder: lock one of this machine and user instead, which no other user can lock.
                os.close(descriptor)
                break
            return descriptor
    raise OSError(0, "neither this folder nor the folder for temporary files allows a lock")
