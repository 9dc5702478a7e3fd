"""Attacks on a pytest session: on its process, its files and its checkouts."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random

from benchmarks.campaign.kinds import ANY_MOMENT, OF_SESSION, Place, declare, fill, kinds, parent

WHOLE = r"(?s)(?=.*no damage).*"
FAILED, DONE = rf"{WHOLE}status (1|10)\b", rf"{WHOLE}status (0|1|10)\b"  # 10: something could not be measured
KILLED = rf"{WHOLE}status -9"
OF_SAVING = "kills_the_session_while_it_saves"  # done by the worker, not by a rank
FULL = "fills_the_disk_of_baselines"  # which are on a small file system of their own
PID = "DDPPERF_SESSION_PID"


def session() -> int:
    """Returns the process id of pytest, which is a parent of this rank; a copy of a fork server may lie between."""
    pid = os.getppid()
    while b"pytest\0" not in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"/", b"\0"):
        pid = parent(pid)
    return pid


def _signal(pid: int, number: int) -> None:
    os.kill(pid, number)
    time.sleep(1000)


def _processes(word: bytes) -> Iterable[int]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word in path.read_bytes():
                yield int(path.parent.name)


def _kill_the_guard() -> None:
    for pid in _processes(b"guard.py"):
        os.kill(pid, signal.SIGKILL)


def _remove_the_checkout() -> None:
    for path in Path(tempfile.gettempdir()).glob("ddpperf-against-*"):
        shutil.rmtree(path, ignore_errors=True)
    raise ValueError("boom 7")


def _project() -> Path:
    return Path(sys.modules["subject"].SCRATCH, "project")


def _file_for_baselines() -> None:
    shutil.rmtree(_project() / "baselines", ignore_errors=True)
    (_project() / "baselines").write_text("not a folder", encoding="ascii")


def _stop_for_a_while() -> None:
    pid = session()
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    os.kill(pid, signal.SIGCONT)


kinds(
    [
        ("kills_everything", KILLED, lambda _: os.kill(-1, signal.SIGKILL)),
        ("removes_the_json_folder", DONE, lambda _: shutil.rmtree(_project() / "made", ignore_errors=True)),
        ("puts_a_file_where_baselines_go", DONE, lambda _: _file_for_baselines()),
        ("fills_the_temporary_folder_of_a_session", DONE, lambda _: fill(Path(tempfile.gettempdir(), "full"))),
        (
            "removes_the_temporary_folder_of_a_session",
            DONE,
            lambda _: shutil.rmtree(tempfile.gettempdir(), ignore_errors=True),
        ),
        ("stops_the_session_process_for_a_while", DONE, lambda _: _stop_for_a_while()),
    ],
    phases=OF_SESSION,
    blame="nobody",
    session=True,
)
kinds(
    [
        ("kills_the_session_with_a_checkout", KILLED, lambda _: _signal(session(), signal.SIGKILL)),
        ("interrupts_the_session_with_a_checkout", rf"{WHOLE}status 2", lambda _: _signal(session(), signal.SIGINT)),
        ("kills_the_guard_of_a_checkout", DONE, lambda _: _kill_the_guard()),
        ("removes_the_checkout", FAILED, lambda _: _remove_the_checkout()),
    ],
    phases=OF_SESSION[1:],
    blame="nobody",
    session=True,
    against=True,
)
kinds([(OF_SAVING, rf"{WHOLE}status (-9|0)\b", lambda _: None)], phases=("saving",), blame="nobody", session=True)


def _at_any_moment(name: str, numbers: tuple[int, ...], statuses: str) -> None:
    """A session that gets signals while it starts, imports, measures, judges or ends, beside a stored baseline."""

    def act(place: Place) -> None:
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(os.environ[PID]), number)
            time.sleep(Random(f"{place.case.seed} {place.case.number} pause").random() * 0.4)

    for against in (False, True):
        more = {"phases": (ANY_MOMENT,), "blame": "nobody", "session": True, "against": against}
        declare(name + "_beside_a_checkout" * against, act, rf"{WHOLE}status ({statuses})\b", **more)


# One that comes before pytest is loaded ends Python, and one that comes after the last test changes nothing.
_at_any_moment("interrupts_pytest", (signal.SIGINT,), "2|-2|0")
_at_any_moment("interrupts_pytest_twice", (signal.SIGINT, signal.SIGINT), "2|-2|0|1")
_at_any_moment("terminates_pytest", (signal.SIGTERM,), "2|-15|0")
_at_any_moment("hangs_pytest_up", (signal.SIGHUP,), "-1|0")
_at_any_moment("kills_pytest", (signal.SIGKILL,), "-9|0")


def _to_a_server(number: int) -> None:
    """A fork server of the session that the worker started gets a signal."""
    for pid in _processes(b"--control="):
        with contextlib.suppress(OSError, ValueError):
            if parent(pid) == int(os.environ[PID]):
                os.kill(pid, number)
                return


TOLD = rf"{WHOLE}((forks ranks|cannot import).*status (1|10)\b|status 0\b)"
kinds(
    [
        ("kills_a_server_of_pytest", TOLD, lambda _: _to_a_server(signal.SIGKILL)),
        ("stops_a_server_of_pytest", TOLD, lambda _: _to_a_server(signal.SIGSTOP)),
        (
            FULL,
            rf"{WHOLE}No space left.*status (1|10)\b",
            lambda p: fill(Path(p.scratch, "project", "baselines", "full")),
        ),
    ],
    phases=(ANY_MOMENT,),
    blame="nobody",
    session=True,
)
