"""System calls on processes: find and kill descendants, adopt orphans, end with the parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.deadlines import late
from pytest_ddpperf.instruments.host import group_folders, kernel_table, kernel_text

HEARD = (signal.SIGCHLD, signal.SIGTERM, signal.SIGCONT)  # signals that a zygote handles, and its ranks do not
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PTRACE_DETACH = 17
_DYING = 5.0  # seconds that a killed process may take to end; one that waits for a disk or a mount may never end
_ROOT = Path("/")
_PERSONALITY_QUERY = 0xFFFFFFFF
_ADDR_NO_RANDOMIZE = 0x0040000


@contextlib.contextmanager
def laid_out_alike() -> Iterator[None]:
    """Starts processes in this context without address space randomisation, if the kernel allows it.

    The addresses of code and data make steps several percent faster or slower, for all ranks forked from a process.
    Without randomisation, all processes get the same addresses. Some containers forbid this change.
    """
    library = ctypes.CDLL(None)
    personality: Callable[[ctypes.c_ulong], int] = getattr(library, "personality", lambda _: -1)
    before = personality(ctypes.c_ulong(_PERSONALITY_QUERY))
    changed = before >= 0 and personality(ctypes.c_ulong(before | _ADDR_NO_RANDOMIZE)) >= 0
    try:
        yield
    finally:
        if changed:
            personality(ctypes.c_ulong(before))


class CopiedProcess:
    """A fork server that was forked from another fork server, with a few methods of ``subprocess.Popen``."""

    returncode: int | None = None  # the exit status stays unknown, because another process is the parent

    def __init__(self, pid: int, connected: socket.socket) -> None:
        self.pid, self._connected = pid, connected

    def poll(self) -> int | None:
        """Returns None while the process runs, then 0."""
        return 0 if self._ended(0) else None

    def wait(self, timeout: float) -> None:
        """Waits until the process has ended; raises TimeoutExpired after ``timeout`` seconds."""
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired("zygote", timeout)

    def kill(self) -> None:
        """Kills the process."""
        with contextlib.suppress(ProcessLookupError):
            if not self._ended(0):
                os.kill(self.pid, signal.SIGKILL)

    def _ended(self, seconds: float) -> bool:
        if self._connected.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self._connected, 0)  # reports only the connection's end, which is the process's end, too
        return bool(poll.poll(seconds * 1000))


def finished(
    command: Sequence[str], seconds: float, words: str | None = None, *, patience: float = 0.0, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a command and returns its result; ``words`` is its standard input, ``how`` has further arguments of Popen.

    The command runs in a separate session, so it cannot ask the terminal for a password. After ``seconds``, or if this
    process is interrupted, the command and its child processes are killed. With ``patience``, the command first gets
    SIGINT, and has ``patience`` seconds to end. A timeout also prints the stacks of this process to stderr.

    Raises:
        OSError: the command cannot be started.
        TimeoutExpired: the command took longer than ``seconds``.
    """
    given = subprocess.DEVNULL if words is None else subprocess.PIPE
    how |= {"encoding": "utf-8", "errors": "replace"}
    with subprocess.Popen(command, stdin=given, start_new_session=True, **how) as process:  # noqa: S603
        try:
            printed, complaints = process.communicate(words, timeout=seconds)
        except BaseException as error:
            if isinstance(error, subprocess.TimeoutExpired):
                error.timeout = seconds  # not what was left of it
                late(str(error))
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                if patience:
                    process.send_signal(signal.SIGINT)
                    process.wait(patience)
            with contextlib.suppress(ProcessLookupError, PermissionError):  # all are gone, or one is another user's now
                os.killpg(process.pid, signal.SIGKILL)
            if process.returncode is None:  # an interrupted wait of Popen may hold its lock for ever: this takes none
                process.returncode = -signal.SIGKILL
                with contextlib.suppress(ChildProcessError):
                    end = time.monotonic() + _DYING
                    while not (found := os.waitpid(process.pid, os.WNOHANG))[0] and time.monotonic() < end:
                        time.sleep(0.01)
                    if found[0]:
                        process.returncode = os.waitstatus_to_exitcode(found[1])
            raise
    return subprocess.CompletedProcess(command, process.returncode, printed, complaints)


def printed_by(command: Sequence[str], seconds: float, **how: Any) -> tuple[int, str]:
    """Runs a command like ``finished``; returns its exit status, and all text that it wrote to stdout and stderr."""
    # A server that the command has started would hold a pipe open.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        done = finished(command, seconds, stdout=output, stderr=subprocess.STDOUT, **how)
        output.seek(0)
        return done.returncode, output.read()


def require_linux(root: Path = _ROOT) -> None:
    """Raises LaunchError if this system cannot start ranks."""
    if not sys.platform.startswith("linux"):
        system = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
        reason = f"ranks need Linux, and this machine runs {system}"
        raise LaunchError(f"{reason}: run the tests on a Linux machine or in a Linux container")
    if not (root / "proc/self/fd").is_dir():
        raise LaunchError("ranks need the file system /proc, which is not mounted here; mount it")


def _set(option: int, value: int, meaning: str) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the kernel refused to {meaning}: {os.strerror(number)}")


def die_with_parent(number: int, parent: int) -> None:
    """Makes the kernel send this process the signal ``number`` when the thread that forked it ends."""
    _set(_PR_SET_PDEATHSIG, number, "end this process when its parent ends")
    if os.getppid() != parent:  # the parent has ended before the call
        os._exit(1)


def watch_signals() -> tuple[socket.socket, socket.socket]:
    """Makes this process receive the signals in ``HEARD`` through a socket, and ignore SIGINT.

    Returns the socket to read signal numbers from, and the socket that Python writes to. The caller keeps both open.
    """
    wakeup, written = socket.socketpair()
    written.setblocking(False)  # noqa: FBT003  the standard library has it so
    signal.set_wakeup_fd(written.fileno())
    for number in HEARD:
        signal.signal(number, lambda *_: None)  # its number travels through the wakeup descriptor
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return wakeup, written


def overwrite_variable(name: str, value: str) -> None:
    """Changes an environment variable to a value of equal length, in ``os.environ`` and in ``/proc/self/environ``."""
    encoded = value.encode()
    get = ctypes.CDLL(None).getenv
    get.argtypes, get.restype = [ctypes.c_char_p], ctypes.c_void_p
    place = get(name.encode())
    if place is None or len(ctypes.string_at(place)) != len(encoded):
        raise ValueError(f"the environment variable {name} must have as many bytes as its new value {value!r}")
    ctypes.memmove(place, encoded, len(encoded))
    os.environ[name] = value


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent ends, in any session."""
    _set(_PR_SET_CHILD_SUBREAPER, 1, "let this process adopt orphans")


def children() -> set[int]:
    """Returns the pids of this process's children, zombies included."""
    me = str(os.getpid())
    return {pid for pid in _pids() if _stat(pid)[1:2] == [me]}


def kill_marked(name: str, value: str) -> None:
    """Kills the other processes that were started with the environment variable ``name`` = ``value``."""
    for pid in _pids():
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if pid != os.getpid() and os.fsencode(f"{name}={value}") in variables:
                kill(pid, group=False)


def is_stopped(pid: int) -> bool:
    """Returns whether a signal such as SIGSTOP has stopped a process."""
    return _stat(pid)[:1] == ["T"]


def kill_headless(pids: Iterable[int]) -> set[int]:
    """Kills children whose main thread has ended while others run (no signal reports this); returns their pids."""
    headless = {pid for pid in pids if _stat(pid)[:1] == ["Z"]}
    for pid in headless:
        kill(pid, group=False)
    return headless


def end_tracing(pid: int, number: int) -> None:
    """Detaches from a traced child that stopped with a signal, and delivers the signal to it."""
    ctypes.CDLL(None).ptrace(_PTRACE_DETACH, pid, None, ctypes.c_void_p(number))


def manages_shared_memory(pid: int) -> bool:
    """Returns whether a process is torch's manager of shared memory, which deletes memory 2 s after its users end."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name == "torch_shm_manager"
    except OSError:
        return False


def tracks_resources(pid: int) -> bool:
    """Returns whether a process is Python's resource tracker, which unlinks resources after the end of their users."""
    return "multiprocessing.resource_tracker" in kernel_text(Path(f"/proc/{pid}/cmdline"))


def kill(pid: int, *, group: bool) -> None:
    """Kills a process; with ``group`` also its process group, if the process leads a group."""
    for send in (os.killpg, os.kill) if group else (os.kill,):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, signal.SIGKILL)


def nccl_files(pid: int, root: Path = _ROOT) -> set[str]:
    """Returns the paths of NCCL's shared memory files that a process has mapped."""
    maps = kernel_text(root / f"proc/{pid}/maps")
    return set(re.findall(r"/dev/shm/nccl-\w+$", maps, re.MULTILINE))  # noqa: S108  NCCL's own names


def remove(files: set[str]) -> None:
    """Removes files; ignores files that are missing or cannot be removed."""
    for file in files:
        with contextlib.suppress(OSError):
            Path(file).unlink()


def open_files(root: Path = _ROOT) -> dict[int, str]:
    """Returns the files that this process has open, by descriptor."""
    files = {}
    for path in (root / "proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of the listing is closed
            files[int(path.name)] = str(path.readlink())
    return files


def touches_gpu(root: Path = _ROOT) -> bool:
    """Returns whether this process has opened a GPU or its driver, after which CUDA may fail in forked processes."""
    has_open = any(file.startswith(("/dev/nvidia", "/dev/kfd")) for file in open_files(root).values())
    return has_open or bool(getattr(sys.modules.get("torch.cuda"), "is_initialized", bool)())


def out_of_memory_kills(root: Path = _ROOT) -> int:
    """Returns how many processes the kernel killed for lack of memory, in this control group or else this machine."""
    folders = list(group_folders("memory", root))[:1]
    files = [folder / name for folder in folders for name in ("memory.events", "memory.oom_control")]
    tables = (kernel_table(kernel_text(file)) for file in (*files, root / "proc/vmstat"))
    return next((table["oom_kill"] for table in tables if "oom_kill" in table), 0)


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _stat(pid: int) -> list[str]:
    """Returns state, parent and further fields, as in proc(5); empty if the process is gone."""
    stat = kernel_text(Path(f"/proc/{pid}/stat"))
    return stat.rpartition(")")[2].split()  # the name in parentheses may hold parentheses and spaces
