"""The controller's side of a fork server, from which ranks are forked: start, requests, events and end."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.deadlines import late
from pytest_ddpperf.launch import environment, processes, streams
from pytest_ddpperf.launch.messages import Answer, Ask, Broken, Preload, Preloaded, Ready, ZygoteEvent
from pytest_ddpperf.launch.processes import CopiedProcess
from pytest_ddpperf.launch.redirection import Redirection

# Not ``-m``: that would put the current folder, and with it any file named like a module of torch's, first on the path.
# Another interpreter, which may lack this package or have another version of it, finds this very one, too.
_BOOTSTRAP = """import importlib.util, json, sys
sys.path[:], package, options = json.loads(sys.argv[1])
spec = importlib.util.spec_from_file_location("pytest_ddpperf", package)
sys.modules["pytest_ddpperf"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from pytest_ddpperf.launch.zygote import main
main(**options)"""
_PACKAGE = Path(__file__).parents[1] / "__init__.py"
_MESSAGE_SIZE = 1 << 18
_READY_SECONDS = 180.0
_LOOK_SECONDS = 1.0  # between looks at a zygote that does not answer
_SWEEP_SECONDS = 3.0  # in which the answer comes after the sweep
_END_SECONDS, _SEND_SECONDS = 5.0, 20.0  # the latter: in which a zygote that lives takes requests
_COPY_SECONDS, _PRELOAD_SECONDS = 10.0, 60.0


class ZygoteEnded(LaunchError):
    """The error if the fork server is gone; ``unused`` is True if no rank of the launch had begun."""

    unused = False


class ZygoteProcess:
    """A running fork server, which imports ``preload`` and ends with ``close`` or with the controller.

    ``original`` is a fork server with the same arguments, which is copied if possible.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        preload: Sequence[str],
        redirection: Redirection | None = None,
        original: ZygoteProcess | None = None,
    ) -> None:
        self._environ, self._read = dict(environ), environment.read_at_import(environ)
        self._preload, self._redirection = tuple(preload), redirection
        self._python = (None if redirection is None else redirection.python) or sys.executable
        self.mark = uuid.uuid4().hex
        self.pinned = environment.pinned(environ, self.mark)
        self._ready, self._numbers = False, itertools.count()  # the numbers of questions
        self._folder = ""  # that has the files of its launches
        self.threads, self.touched = 1, ""  # of the process, once it is ready
        self._output: IO[bytes] = streams.open_output()
        self._process: subprocess.Popen[bytes] | CopiedProcess
        try:
            copied = None if original is None else self._copied(original)
            self.control, self._process = copied or self._started(environment.inherited(environ, self.pinned))
        except BaseException:
            self._output.close()
            raise
        self.control.settimeout(_SEND_SECONDS)

    def _copied(self, original: ZygoteProcess) -> tuple[socket.socket, CopiedProcess] | None:
        """Copies a fork server that imported torch with the same environment variables; returns None if that fails."""
        if {**original.pinned, environment.MARK: self.mark} != self.pinned or not original.imports_as(self._environ):
            return None
        original.wait_until_ready()
        of_controller, of_zygote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        files, copied = (of_zygote.fileno(), self._output.fileno()), None
        try:
            with of_zygote, contextlib.suppress(LaunchError, OSError):  # the zygote has ended, or its copy has
                answer = original.answer(original.ask("copy", self.mark, files=files), _COPY_SECONDS)
                copied = None if answer is None or answer.error else CopiedProcess(answer.value, of_controller)
        finally:
            if copied is None:
                of_controller.close()  # ends a copy that nobody here has heard of
        return None if copied is None else (of_controller, copied)

    def _started(self, environ: Mapping[str, str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        of_controller, of_zygote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with of_zygote, processes.laid_out_alike():
            try:
                process = subprocess.Popen(  # noqa: S603  our own interpreter
                    self._command(of_zygote.fileno()),
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                    pass_fds=[of_zygote.fileno()],
                    start_new_session=True,
                )
            except BaseException as error:
                of_controller.close()
                if isinstance(error, OSError):
                    raise LaunchError(f"the process that forks ranks cannot be started: {error.strerror}") from error
                raise
        return of_controller, process

    def _command(self, control: int) -> list[str]:
        path = environment.search_path()
        if self._redirection is not None and self._redirection.python is not None:
            path = self._redirection.search_path(path)
        # Those of -O, -W and -X, as multiprocessing does it: ranks run the code that was asked for.
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
        options = {
            "control": control,
            "controller": os.getpid(),
            "redirection": None if self._redirection is None else self._redirection.dumps(),
            "modules": self._preload,
        }
        return [self._python, *flags, "-c", _BOOTSTRAP, json.dumps((path, str(_PACKAGE), options))]

    def duplicate(self) -> ZygoteProcess:
        """Returns a copy of this fork server; if copying fails, a new fork server that makes the same imports."""
        return ZygoteProcess({**self._environ, **self.pinned}, self._preload, self._redirection, self)

    @property
    def usable(self) -> bool:
        """Returns whether the process runs, and no signal has stopped it."""
        return self._process.poll() is None and not processes.is_stopped(self.pid)

    def imports_as(self, environ: Mapping[str, str]) -> bool:
        """Returns whether an import of torch with ``environ`` would equal the import in this fork server."""
        return self._read == environment.read_at_import(environ)

    @property
    def pid(self) -> int:
        """Returns the process id."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Waits until torch is imported."""
        deadline = time.monotonic() + _READY_SECONDS
        while not self._ready:
            events = self._answers(deadline)
            for event in events:
                if isinstance(event, Ready):
                    self._ready, self.threads, self.touched = True, event.threads, event.touched
            if not events and time.monotonic() >= deadline:
                raise late(LaunchError(f"the import of torch took more than {_READY_SECONDS:.0f} s{self._stack()}"))

    def fork(self, rank: int, modules: Sequence[str], folder: str, files: Sequence[int]) -> None:
        """Asks the fork server to fork a rank with copies of ``files``. The server answers only if the fork fails."""
        self._folder = folder or self._folder
        self.ask("fork", rank, modules, folder, files=files)

    def ask(self, method: str, *arguments: object, files: Sequence[int] = ()) -> int:
        """Asks the fork server to call a method, and passes the descriptors ``files``; returns the request's number."""
        number = next(self._numbers)
        try:
            socket.send_fds(self.control, [pickle.dumps(Ask(number, method, arguments))], list(files))
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            raise self._ended() from None
        return number

    def answer(self, number: int, seconds: float) -> Answer | None:
        """Waits for the answer to the request ``number`` and returns it; None if ``seconds`` pass without an answer."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for event in self._answers(deadline):
                if isinstance(event, Answer) and event.number == number:
                    return event
        late(f"the process that forks ranks did not answer within {seconds:.0f} s")
        return None

    def events(self, seconds: float) -> list[ZygoteEvent]:
        """Returns the events that have arrived; waits at most ``seconds`` for the first event."""
        events: list[ZygoteEvent] = []
        while streams.readable([self.control], 0 if events else max(0.0, seconds)):
            try:
                data = self.control.recv(_MESSAGE_SIZE)
            except ConnectionResetError:
                data = b""
            if not data:
                if events:
                    break
                raise self._ended()
            event = pickle.loads(data)
            if isinstance(event, Broken):
                check = f"check torch with: {self._python} -c 'import torch, torch.distributed'"
                raise LaunchError(
                    f"the process that forks ranks failed, so the ranks were stopped: {event.reason}"
                    if self._ready
                    else f"ranks cannot import torch or a preloaded module: {event.reason}; {check}"
                )
            events.append(event)
        return events

    def _answers(self, deadline: float) -> list[ZygoteEvent]:
        """Waits until ``deadline`` for events, and returns them; raises LaunchError if a signal stops the server."""
        while True:
            remaining = deadline - time.monotonic()
            events = self.events(min(_LOOK_SECONDS, remaining))
            if events or remaining <= 0:
                return events
            self.require_running()

    def require_running(self) -> None:
        """If a signal has suspended the fork server, kills the fork server and raises LaunchError."""
        if processes.is_stopped(self.pid):
            self.kill()
            raise LaunchError("a signal stopped the process that forks ranks, so all ranks were ended; run again")

    def preload(self, request: Preload) -> Callable[[], Preloaded]:
        """Makes the fork server import a module; returns a function that waits for the result."""
        ended = Preloaded(reason="ends its process")
        try:
            self.wait_until_ready()
            asked = self.ask("preload", request)
        except LaunchError:
            return lambda: ended
        except OSError as error:  # such as 300 kB of variables, which Kubernetes sets for 500 services
            refused = Preloaded(reason=f"cannot be requested: {error.strerror}")
            return lambda: refused

        def preloaded() -> Preloaded:
            try:
                answer = self.answer(asked, _PRELOAD_SECONDS)
            except LaunchError:
                return ended
            if answer is None:
                self.kill()
                return Preloaded(reason=f"takes more than {_PRELOAD_SECONDS:.0f} s")
            found: Preloaded = Preloaded(reason=answer.error) if answer.error else answer.value
            return found

        return preloaded

    @property
    def remark(self) -> str:
        """Returns why ranks may fail to use CUDA; empty if no import has used a GPU."""
        cure = "do not use torch.cuda or NVML at import (TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps plugins out of torch)"
        at = f"the import of {self.touched} uses a GPU in the process that forks the ranks: CUDA may fail in ranks"
        return f"{at}; {cure}" if self.touched else ""

    def sweep(self, seconds: float) -> bool:
        """Kills and reaps all descendants of the fork server; returns False if that failed."""
        try:
            self.require_running()
            answer = self.answer(self.ask("sweep", seconds), seconds + _SWEEP_SECONDS)
        except LaunchError:
            return False
        return answer is not None and answer.value == ()

    def kill(self) -> None:
        """Kills the fork server and its ranks; threads that wait for them get an error. ``close`` must follow."""
        self._process.kill()

    def close(self) -> None:
        """Ends the fork server and all its descendants, if they still run."""
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)
        if processes.is_stopped(self.pid):
            self.kill()
        if not (self._ready and self._has_ended()):
            self._process.kill()
            self._has_ended()  # a call of a driver may keep it from ending
        # Ranks die with their zygote. A zygote that was killed has not swept: the children of its ranks die here.
        if self._process.returncode != 0:
            processes.kill_marked(environment.MARK, self.mark)
        shutil.rmtree(self._folder, ignore_errors=True)  # a zygote that has swept has removed it
        self.control.close()
        self._output.close()

    def forget(self) -> None:
        """Closes this object's files in a forked process, because the fork server belongs to the parent."""
        self.control.close()
        self._output.close()
        self._process.returncode = 0  # this process is not its parent and must never wait for it

    def _has_ended(self) -> bool:
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            late(f"the process that forks ranks had not ended after {_END_SECONDS:g} s")
            return False
        return True

    def _ended(self) -> ZygoteEnded:
        if not self._has_ended():
            return ZygoteEnded("the process that forks ranks no longer answers; the ranks were stopped")
        status = self._process.returncode
        if status is None:
            how = "has ended"
        else:
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        said = streams.read_output(self._output, "its output", 4096).strip()
        return ZygoteEnded(f"the process that forks ranks {how}; the ranks were stopped\n{said}".rstrip())

    def _stack(self) -> str:
        """Returns what the fork server has printed, with the line that it is importing."""
        os.kill(self.pid, signal.SIGUSR1)
        streams.readable([self.control], _LOOK_SECONDS)  # while faulthandler writes the stack
        lines = f"\n{streams.read_output(self._output, 'its output', 1 << 14).strip()}".splitlines()
        return "\n".join(line for line in lines if "<frozen importlib" not in line)
