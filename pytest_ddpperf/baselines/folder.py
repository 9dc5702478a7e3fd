"""Folders that several processes save into: one at a time, and every file whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pytest_ddpperf.baselines.jsonfile import replace_file
from pytest_ddpperf.errors import BaselineError


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder, made if need be, against other processes that save; BaselineError where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _lock(folder)
    except OSError as error:
        raise unwritable(folder, error) from None
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path) -> int:
    """A descriptor whose closing, or the end of the process, gives the lock back; no lock file is left over."""
    for path in (folder, Path(tempfile.gettempdir())):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            # NFS cannot lock a folder: then the local one stands in for it, which holds off this machine's processes.
            os.close(descriptor)
            continue
        return descriptor
    raise OSError(0, "neither it nor the folder for temporary files can be locked")


def write(file: Path, text: str) -> None:
    """Writes a file, or leaves the old one and raises BaselineError."""
    try:
        replace_file(file, text)
    except OSError as error:
        raise unwritable(file, error) from None


def unwritable(path: Path, error: OSError) -> BaselineError:
    """The error for what cannot be saved there."""
    return BaselineError(
        f"baselines cannot be saved in {path}: {error.strerror or error}; "
        "make it writable, or name another folder with --ddpperf-baseline-dir"
    )
