"""The zygote (fork server): the process that has imported torch, and from which ranks are forked.

A fork is safe, because the zygote runs no tensor operation and never uses CUDA. It has a single thread if its libraries
end their threads before a fork, as OpenBLAS does. Descendants end with their launch, the zygote with its controller.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import importlib.util
import os
import pickle
import shutil
import signal
import socket
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from pytest_ddpperf.errors import in_a_line
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.launch import environment, processes
from pytest_ddpperf.launch.messages import Answer, Ask, Broken, Ended, Ready, ZygoteEvent
from pytest_ddpperf.launch.preloading import imports
from pytest_ddpperf.launch.redirection import Redirection, redirect
from pytest_ddpperf.launch.streams import readable

MESSAGE_SIZE, _DESCRIPTORS = 1 << 18, 8
_LOOK_SECONDS = 1.0  # between looks at ranks
_TRACKER_SECONDS = 0.5  # a resource tracker ends as soon as its users have
_MANAGER_SECONDS = 3.0  # torch's manager of shared memory ends 2 s after them


class Birth(NamedTuple):
    """The arguments of ``rank.live`` for a rank that was just forked."""

    rank: int
    descriptors: tuple[int, ...]
    zygote: int


@dataclass
class Zygote:
    """The fork server of one controller: requests come over ``control``, the numbers of signals over ``signals``.

    The fork server ends when the process ``parent`` ends. The kernel then sends SIGCONT, which wakes a stopped server.
    """

    control: socket.socket
    signals: tuple[socket.socket, socket.socket]
    parent: int  # the controller, or the zygote that this one is a copy of
    ranks: dict[int, int] = field(default_factory=dict)  # pid -> rank
    copies: set[int] = field(default_factory=set)  # pids of other zygotes, each of another launcher
    headless: set[int] = field(default_factory=set)  # pids of ranks that were killed without a main thread
    touched: str = ""  # the module whose import has used a GPU
    folder: str = ""  # with the files of its launches
    terminated: bool = False
    descriptors: tuple[int, ...] = ()  # that have come with a request

    def serve(self) -> Birth | None:
        """Serves requests until the controller is gone. Returns a Birth only in a newly forked rank."""
        while not self.terminated:  # also by a signal that a sweep has heard
            ready = readable([self.control, self.signals[0]], _LOOK_SECONDS if self.ranks else None)
            if self.signals[0].fileno() in ready:
                self._hear_signals()
            if self._reap() and not ready:
                self.headless |= processes.kill_headless(self.ranks)
            if self.control.fileno() in ready and not self.terminated:
                data, descriptors, flags, _ = socket.recv_fds(self.control, MESSAGE_SIZE, _DESCRIPTORS)
                if not data:
                    return None
                self.descriptors = tuple(descriptors)
                birth = self._answer(pickle.loads(data), cut=bool(flags & socket.MSG_CTRUNC))
                if birth is not None:
                    return birth
        return None

    def _answer(self, ask: Ask, *, cut: bool) -> Birth | None:
        """Answers a request; returns a new rank's arguments in its process, else None. ``cut``: lost descriptors."""
        process, answer = os.getpid(), Answer(ask.number, None)
        try:
            if cut:
                raise OSError("the process that forks ranks has too many open files")  # noqa: TRY301
            answer = Answer(ask.number, getattr(self, ask.method)(*ask.arguments))
        except OSError as error:
            failed = f"rank {ask.arguments[0]} could not be forked: " if ask.method == "fork" else ""
            answer = Answer(ask.number, None, f"{failed}{error}")
        if isinstance(answer.value, Birth):
            return answer.value
        if os.getpid() == process:
            for descriptor in self.descriptors:
                os.close(descriptor)
            if answer.error or answer.value is not None:
                self.tell(answer)
        return None

    def fork(self, rank: int, modules: Sequence[str], folder: str) -> Birth | None:
        """Imports ``modules`` and forks a rank; returns its arguments in the rank's process, None in this process."""
        preload(modules)
        self.folder, zygote = folder or self.folder, os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)  # the socket behind it closes with this zygote's object
            return Birth(rank, self.descriptors, zygote)
        self.ranks[pid] = rank
        return None

    preload = staticmethod(imports.preload)

    def signal(self, ranks: Collection[int], number: int) -> None:
        """Sends a signal to each of these ranks that still runs."""
        for pid, rank in self.ranks.items():
            if rank in ranks:
                os.kill(pid, number)

    def copy(self, mark: str) -> int | None:
        """Forks a copy of this fork server for another launcher, and returns the copy's pid.

        The copy's variable ``environment.MARK`` is ``mark``. Its socket and output file are ``self.descriptors``.
        """
        original, pid = os.getpid(), os.fork()
        if pid != 0:
            self.copies.add(pid)
            return pid
        try:
            control, output = self.descriptors
            self._become_copy(mark, control, output, original)
        except BaseException:  # noqa: BLE001  no launcher listens to the copy yet
            os._exit(1)
        return None

    def _become_copy(self, mark: str, control: int, output: int, original: int) -> None:
        """Makes this forked process a separate fork server without ranks, which ends after the process ``original``."""
        processes.overwrite_variable(environment.MARK, mark)
        os.setsid()
        for number in (1, 2):
            os.dup2(output, number)
        os.close(output)
        self.control.close()
        signal.set_wakeup_fd(-1)  # asyncio of Python 3.12 and newer has done so in the fork
        for end in self.signals:
            end.close()
        self.control, self.signals = socket.socket(fileno=control), processes.watch_signals()
        self.ranks, self.copies = {}, set()
        self.parent, self.folder = original, ""
        processes.adopt_orphans()
        processes.die_with_parent(signal.SIGCONT, original)
        self.tell(Ready(touched=self.touched))

    def _reap(self) -> bool:
        """Reaps the children that have ended; returns whether any child still runs."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if os.WIFSTOPPED(status):  # it lets its parent trace it, and has got a signal
                processes.end_tracing(pid, os.WSTOPSIG(status))
                continue
            self.copies.discard(pid)
            rank = self.ranks.pop(pid, None)
            if rank is not None:  # None for an adopted orphan
                code = os.waitstatus_to_exitcode(status)
                self.tell(Ended(rank, code, time.time_ns(), pid in self.headless and code == -signal.SIGKILL))
                self.headless.discard(pid)

    def sweep(self, seconds: float = 5.0, *, last: bool = False) -> tuple[int, ...]:
        """Kills and reaps child processes, except copies of this fork server; returns the pids left after ``seconds``.

        A process that loses its parent becomes a child of this process, so the whole tree ends. Python's resource
        trackers unlink shared memory and then end by themselves, so this method waits for them. It waits for torch's
        managers of shared memory, which need 2 s, only with ``last``.
        """
        started, shared = time.monotonic(), set[str]()
        while self._reap():
            waited = time.monotonic() - started
            found = processes.children() - self.copies
            managers = {pid for pid in found if processes.manages_shared_memory(pid)}
            others = found - managers
            if not others and not (last and managers):
                break
            if waited > seconds:
                return tuple(sorted(others))
            shared.update(*map(processes.nccl_files, others))
            patient = waited < _TRACKER_SECONDS
            for pid in others:
                if not (patient and processes.tracks_resources(pid)):
                    processes.kill(pid, group=not patient)  # trackers are in the groups of their users
            for pid in managers if last and waited > _MANAGER_SECONDS else ():
                processes.kill(pid, group=False)
            if readable([self.signals[0]], 0.05):
                self._hear_signals()
        processes.remove(shared)
        return ()

    def _hear_signals(self) -> None:
        # Any thread of a controller may have started this process, and the kernel also signals the end of that thread.
        self.terminated |= signal.SIGTERM in self.signals[0].recv(MESSAGE_SIZE) or os.getppid() != self.parent

    def tell(self, event: ZygoteEvent) -> None:
        """Sends an event to the controller; does nothing if the controller is gone."""
        try:
            self.control.send(pickle.dumps(event))
        except (BrokenPipeError, ConnectionResetError):
            return


def preload(names: Sequence[str]) -> None:
    """Imports modules; ignores failures, because the ranks' code then raises the error."""
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if missing:
        gc.freeze()


def _become_zygote(control: socket.socket, controller: int, touched: str) -> Birth | None:
    processes.adopt_orphans()
    zygote = Zygote(control, processes.watch_signals(), controller, touched=touched)
    processes.die_with_parent(signal.SIGCONT, controller)  # it may have ended before its signal was heard
    gc.collect()
    gc.freeze()
    zygote.tell(Ready(imports.threads(), touched))
    try:
        birth = zygote.serve()
    except Exception as error:  # noqa: BLE001  the controller reports it
        zygote.tell(Broken(in_a_line(error)))
        zygote.terminated, birth = True, None
    if birth is None:
        # A controller that lives on must learn of this end before the ranks end, which it would blame otherwise.
        # One that has closed its end waits until this process has swept: the connection of a copy ends with the copy.
        with contextlib.suppress(OSError):
            if zygote.terminated:
                zygote.control.shutdown(socket.SHUT_WR)
        zygote.sweep(last=True)
        shutil.rmtree(zygote.folder, ignore_errors=True)
    return birth


def main(control: int, controller: int, *, redirection: str | None, modules: list[str]) -> NoReturn:
    """Runs the fork server until the controller is gone, and each forked rank until its end. Never returns.

    ``control``: descriptor of the controller's socket. ``controller``: the controller's pid. First imports ``modules``.
    """
    faulthandler.register(signal.SIGUSR1, file=2)  # the controller asks for the stack if the imports take too long
    flags = fcntl.fcntl(control, fcntl.F_GETFL)
    fcntl.fcntl(control, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(control, fcntl.F_SETFL, flags | os.O_ASYNC)  # SIGIO ends the imports with the controller
    processes.die_with_parent(signal.SIGCONT, controller)
    connected = socket.socket(fileno=control)
    try:
        if redirection is not None:
            other = Redirection.loads(redirection)
            redirect(other)
            imports.keep_with_ranks(other)
        touched = ""
        lacks_pytest = importlib.util.find_spec("_pytest") is None  # the ranks' interpreter may lack it
        for name in modules:
            if lacks_pytest and name.startswith("_pytest."):
                continue
            importlib.import_module(name)
            touched = touched or name * processes.touches_gpu()
        preload(["torch._dynamo"])  # the first optimizer of a process imports it, which takes a second
        fcntl.fcntl(control, fcntl.F_SETFL, flags)
        birth = _become_zygote(connected, controller, touched)
    except Exception as error:  # noqa: BLE001  an import may raise anything; the controller reports it
        connected.send(pickle.dumps(Broken(in_a_line(error))))
        sys.exit(1)
    if birth is not None:
        from pytest_ddpperf.launch.rank import live

        live(*birth)
    os._exit(0)  # there is nothing to tidy up, and torch takes its time over that
