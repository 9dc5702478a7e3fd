"""Removes a temporary checkout: this process waits until the process that started it ends, then removes the files.

This file is run as a script and needs only the standard library. Its standard input closes when the other process ends,
even if that process is killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

ENVIRONMENT = "environment"  # the folder next to the checkout for a separate virtual environment
_GIT_SECONDS = 30.0
_SIGN_SECONDS = 3600.0
_TERM_SECONDS, _POLL_SECONDS = 2.0, 0.05
_ATTEMPTS = 3  # to remove a folder: ranks that are being killed may still write into it
# Git sets these if pytest runs in one of its hooks.
_CONFUSING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")


def git_environ() -> dict[str, str]:
    """Returns the environment without variables that make git use another repository than the current folder's."""
    return {name: value for name, value in os.environ.items() if name not in _CONFUSING}


def remove(tree: Path, root: Path, late: Callable[[str], object] = str) -> None:
    """Removes a checkout's folder and its ``git worktree`` entry at ``root``; calls ``late`` if git takes long."""
    _end_others(tree)
    command = ["git", "-C", str(root), "worktree", "remove", "--force", "--force", str(tree)]
    with contextlib.suppress(OSError):
        try:
            subprocess.run(  # noqa: S603  fixed words
                command,
                env=git_environ(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
                timeout=_GIT_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            late(str(error))
    for _ in range(_ATTEMPTS):
        shutil.rmtree(tree.parent, ignore_errors=True)
        if not tree.parent.exists():
            return


def _end_others(tree: Path) -> None:
    """Ends processes that still use the checkout ``tree``: first by SIGTERM, so that git cleans up, then by SIGKILL."""
    polls = int(_TERM_SECONDS / _POLL_SECONDS)
    for kill in [False] * polls + [True] * polls:
        if not sum(_signalled(file.parent, tree, kill=kill) for file in Path("/proc").glob("[0-9]*/environ")):
            return
        time.sleep(_POLL_SECONDS)


def _signalled(process: Path, tree: Path, *, kill: bool) -> bool:
    """Sends SIGTERM (SIGKILL if ``kill``) to a process that uses the checkout ``tree``; returns False for any other."""
    with contextlib.suppress(OSError):
        words, variables = ((process / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
        adds = Path(os.fsdecode(words[0])).name == "git" and os.fsencode(tree) in words
        marks = (b"VIRTUAL_ENV=" + os.fsencode(tree.parent / ENVIRONMENT), b"GIT_WORK_TREE=" + os.fsencode(tree))
        if adds or any(mark in variables for mark in marks):
            os.kill(int(process.name), signal.SIGKILL if kill else signal.SIGTERM)
            return True
    return False


def await_end(tree: Path, pipe: TextIO) -> None:
    """Waits until ``pipe`` is closed; meanwhile updates the folder's mtime every hour, to show that it is in use."""
    while not select.select([pipe], [], [], _SIGN_SECONDS)[0]:
        with contextlib.suppress(OSError):
            os.utime(tree.parent)


if __name__ == "__main__":
    await_end(Path(sys.argv[1]), sys.stdin)
    remove(Path(sys.argv[1]), Path(sys.argv[2]))
