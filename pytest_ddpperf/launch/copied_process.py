"""A zygote that another zygote has forked: no child of this process, so a process descriptor stands for it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess


class CopiedProcess:
    """A process with the methods of ``subprocess.Popen`` that a zygote needs; its exit status stays unknown."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """None while the process runs, then 0."""
        return 0 if self._ended(0) else None

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the process has ended."""
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired("zygote", timeout or 0.0)

    def kill(self) -> None:
        """Kill the process."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptor; from then on the process counts as ended."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _ended(self, timeout: float | None) -> bool:
        return self._descriptor < 0 or bool(select.select([self._descriptor], [], [], timeout)[0])


def _kernel_has_pidfd() -> bool:
    """Whether kernel and Python have process descriptors; Linux has them since 5.3."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


HAS_PIDFD = _kernel_has_pidfd()
