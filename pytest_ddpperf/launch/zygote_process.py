"""The controller's side of the zygote: start it, ask it, end it."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch import environment, outputs, processes
from pytest_ddpperf.launch.messages import Copied, Copy, Event, Ready, Sweep, Swept, Unready

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_ddpperf.launch.messages import Request
    from pytest_ddpperf.launch.redirection import Redirection

# Not ``-m``: that would put the current folder, and with it any file named like a module of torch's, first on the path.
_BOOTSTRAP = "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
_BOOTSTRAP += "from pytest_ddpperf.launch.zygote import main; main(sys.argv[2:])"
_MESSAGE_SIZE = 1 << 16
_READY_SECONDS = 180.0
_SWEEP_SECONDS = 8.0
_END_SECONDS = 5.0
_COPY_SECONDS = 10.0


class ZygoteProcess:
    """A running zygote. It ends with ``close``, with the controller, or by itself where the kernel takes it.

    Args:
        environ: what it is started with.
        preload: the modules that it imports.
        redirection: the other checkout that it imports the project from; None for this one.
        original: one started with the same, which is copied where that can be done at once; else it is started.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        preload: Sequence[str],
        redirection: Redirection | None = None,
        original: ZygoteProcess | None = None,
    ) -> None:
        self._redirection = redirection
        self.mark = uuid.uuid4().hex
        self.pinned = environment.pinned(environ, self.mark)
        self._ready = False
        self._output: IO[bytes] = outputs.open_file()
        self._process: subprocess.Popen[bytes] | CopiedProcess
        try:
            copied = None if original is None else self._copied(original)
            self.control, self._process = copied or self._started(environment.inherited(environ, self.pinned), preload)
        except BaseException:
            self._output.close()
            raise

    def _copied(self, original: ZygoteProcess) -> tuple[socket.socket, CopiedProcess] | None:
        """A copy of another zygote that imported torch under the same variables; None where there can be none."""
        if not _PIDFD or {**original.pinned, environment.MARK: self.mark} != self.pinned:
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        copied = None
        try:
            with theirs:
                copied = original.copy(self.mark, theirs, self._output)
        finally:
            if copied is None:
                ours.close()  # a copy that was made all the same ends by that
        return None if copied is None else (ours, copied)

    def _started(
        self, environ: Mapping[str, str], preload: Sequence[str]
    ) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                return ours, self._start(theirs.fileno(), environ, preload)
        except BaseException:
            ours.close()
            raise

    def _start(self, control: int, environ: Mapping[str, str], preload: Sequence[str]) -> subprocess.Popen[bytes]:
        path = environment.search_path()
        if self._redirection is not None and self._redirection.python is not None:
            # Another environment's hooks do not know where this package is; the project is sought elsewhere later.
            path = (*path, str(Path(__file__).parents[2]))
        command = [self._python, "-c", _BOOTSTRAP, json.dumps(path), f"--control={control}"]
        if self._redirection is not None:
            command.append(f"--redirection={self._redirection.dumps()}")
        if threading.current_thread() is threading.main_thread():
            # The kernel means the thread: another one than the main one may well end before the controller does.
            command.append(f"--controller={os.getpid()}")
        return subprocess.Popen(  # noqa: S603  our own interpreter
            [*command, *preload],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            pass_fds=[control],
            start_new_session=True,
        )

    def copy(self, mark: str, control: socket.socket, output: IO[bytes]) -> CopiedProcess | None:
        """A copy of it, served through ``control``, that prints into ``output``; None where there can be none.

        Raises:
            LaunchError: it cannot import torch.
        """
        self.wait_until_ready()
        with contextlib.suppress(LaunchError, OSError):  # it has ended, or the copy has
            self.request(Copy(mark), [control.fileno(), output.fileno()])
            deadline = time.monotonic() + _COPY_SECONDS
            while time.monotonic() < deadline:
                for event in self.events(deadline - time.monotonic()):
                    if isinstance(event, Copied) and event.mark == mark:
                        return None if event.pid is None else CopiedProcess(event.pid)
        return None

    @property
    def _python(self) -> str:
        own = None if self._redirection is None else self._redirection.python
        return own or sys.executable

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Wait for torch to be imported.

        Raises:
            LaunchError: it cannot be imported, or not within three minutes.
        """
        deadline = time.monotonic() + _READY_SECONDS
        while not self._ready:
            events = self.events(deadline - time.monotonic())
            self._ready = any(isinstance(event, Ready) for event in events)
            for event in events:
                if isinstance(event, Unready):
                    raise LaunchError(
                        f"the ranks cannot import what they need: {event.reason}; "
                        f"check torch with: {self._python} -c 'import torch, torch.distributed'"
                    )
            if not events and time.monotonic() >= deadline:
                raise LaunchError(f"importing torch took more than {_READY_SECONDS:.0f} s{self._said()}")

    def request(self, request: Request, descriptors: Sequence[int] = ()) -> None:
        """Ask for something; descriptors reach the zygote as copies of its own.

        Raises:
            LaunchError: the zygote has ended.
        """
        try:
            socket.send_fds(self.control, [pickle.dumps(request)], list(descriptors))
        except (BrokenPipeError, ConnectionResetError):
            raise self._ended() from None

    def events(self, seconds: float) -> list[Event]:
        """What the zygote has told, waiting at most ``seconds`` for the first of it.

        Raises:
            LaunchError: the zygote has ended.
        """
        events: list[Event] = []
        while select.select([self.control], [], [], 0 if events else max(0.0, seconds))[0]:
            try:
                data = self.control.recv(_MESSAGE_SIZE)
            except ConnectionResetError:
                data = b""
            if not data:
                if events:
                    break
                raise self._ended()
            events.append(pickle.loads(data))
        return events

    def sweep(self) -> bool:
        """Kill and reap everything below the zygote. False where that did not work: it is of no more use then."""
        try:
            self.request(Sweep())
            deadline = time.monotonic() + _SWEEP_SECONDS
            while time.monotonic() < deadline:
                for event in self.events(deadline - time.monotonic()):
                    if isinstance(event, Swept):
                        return not event.remaining
        except LaunchError:
            return False
        return False

    def kill(self) -> None:
        """End it at once, and its ranks with it; whoever waits for its events gets an error. To be closed as well."""
        self._process.kill()

    def close(self) -> None:
        """End it and everything below it. It may have ended already."""
        self.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS if self._ready else 0)
        if self.alive:
            self._process.kill()
        # Ranks die with their zygote; what they have left behind dies here, where it was not swept by the zygote.
        if self._process.wait() != 0:
            for pid in processes.marked(environment.MARK, self.mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if isinstance(self._process, CopiedProcess):
            self._process.close()
        self._output.close()

    def forget(self) -> None:
        """Let go of a zygote that belongs to the process this one was forked from."""
        self.control.close()
        self._output.close()
        if isinstance(self._process, CopiedProcess):
            self._process.close()
        else:
            self._process.returncode = 0  # not this process's child: never to be waited for here

    def _ended(self) -> LaunchError:
        try:
            status = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return LaunchError("the process that ranks are forked from no longer answers; the ranks were stopped")
        if status is None:
            how = "has ended"
        else:
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        return LaunchError(f"the process that ranks are forked from {how}; the ranks were stopped{self._said()}")

    def _said(self) -> str:
        text = outputs.read(self._output, "its output", 4096).strip()
        return f"\n{text}" if text else ""


class CopiedProcess:
    """A zygote that another one has forked, in the manner of ``subprocess.Popen``; its exit status is unknown.

    Raises:
        OSError: it has ended already.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """None while it runs."""
        return 0 if self._ended(0) else None

    def wait(self, timeout: float | None = None) -> None:
        """Return when it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired("zygote", timeout or 0.0)

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Let go of it, whether it has ended or not; afterwards it counts as ended."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _ended(self, timeout: float | None) -> bool:
        return self._descriptor < 0 or bool(select.select([self._descriptor], [], [], timeout)[0])


def _follows_processes() -> bool:
    """Whether this kernel has descriptors of processes, as Linux has since 5.3, and this Python knows of them."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


_PIDFD = _follows_processes()
