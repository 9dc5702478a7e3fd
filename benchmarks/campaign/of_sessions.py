"""Attacks on a pytest session: on its process, its files and its checkouts."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from benchmarks.campaign.kinds import ANY_MOMENT, Place, kind, parent
from benchmarks.campaign.kinds import SESSION_PHASES as PHASES

WHOLE = r"(?s)(?=.*no damage).*"
FAILED, ENDED = r"status (1|10)\b", r"status (0|1|10)\b"  # 10: nothing is worse, and something could not be measured


def session() -> int:
    """The process id of pytest, which is a parent of this rank; a zygote's copy lies between them on one side."""
    pid = os.getppid()
    while b"pytest\0" not in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"/", b"\0"):
        pid = parent(pid)
    return pid


def _declare(name: str, number: signal.Signals, reason: str) -> None:
    def act(_: Place) -> None:
        os.kill(session(), number)
        time.sleep(1000)

    act.__name__ = name
    kind(WHOLE + reason, phases=PHASES, blame="nobody", ways=("pytest",))(act)


_declare("terminates_the_session", signal.SIGTERM, r"KeyboardInterrupt.*status 2")
_declare("interrupts_the_session", signal.SIGINT, r"KeyboardInterrupt.*status 2")
_declare("kills_the_session", signal.SIGKILL, r"status -9")
_declare("hangs_the_session_up", signal.SIGHUP, r"status -1\b")


@kind(WHOLE + r"status -9", phases=PHASES, blame="nobody", ways=("pytest",))
def kills_everything(_: Place) -> None:
    os.kill(-1, signal.SIGKILL)


@kind(WHOLE + r"status -9", phases=PHASES, blame="nobody", ways=("pytest",))
def kills_the_session_beside_a_child(_: Place) -> None:
    subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True)
    os.kill(session(), signal.SIGKILL)
    time.sleep(1000)


@kind(WHOLE + r"status -9", phases=PHASES, blame="nobody", ways=("pytest",), against=True)
def kills_the_session_with_a_checkout(_: Place) -> None:
    os.kill(session(), signal.SIGKILL)
    time.sleep(1000)


@kind(WHOLE + r"status 2", phases=PHASES, blame="nobody", ways=("pytest",), against=True)
def interrupts_the_session_with_a_checkout(_: Place) -> None:
    os.kill(session(), signal.SIGINT)
    time.sleep(1000)


@kind(WHOLE + ENDED, phases=PHASES[1:], blame="nobody", ways=("pytest",), against=True)
def kills_the_guard_of_a_checkout(_: Place) -> None:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        if b"guard.py" in path.read_bytes():
            os.kill(int(path.parent.name), signal.SIGKILL)


@kind(WHOLE + FAILED, phases=PHASES[1:], blame="nobody", ways=("pytest",), against=True)
def removes_the_checkout(_: Place) -> None:
    for path in Path(tempfile.gettempdir()).glob("ddpperf-against-*"):
        shutil.rmtree(path, ignore_errors=True)
    raise ValueError("boom 7")


@kind(WHOLE + r"status (-9|0)\b", phases=("saving",), blame="nobody", ways=("pytest",))
def kills_the_session_while_it_saves(_: Place) -> None:
    raise AssertionError("the worker does this")


@kind(WHOLE + ENDED, phases=PHASES[1:], blame="nobody", ways=("pytest",))
def removes_the_json_folder(_: Place) -> None:
    shutil.rmtree(Path(sys.modules["subject"].SCRATCH, "project", "made"), ignore_errors=True)


@kind(WHOLE + ENDED, phases=PHASES[1:], blame="nobody", ways=("pytest",))
def makes_the_json_file_a_folder(_: Place) -> None:
    folder = Path(sys.modules["subject"].SCRATCH, "project", "made", "results.json")
    if not folder.is_file():
        folder.mkdir(parents=True, exist_ok=True)


@kind(WHOLE + ENDED, phases=PHASES[1:], blame="nobody", ways=("pytest",))
def puts_a_file_where_baselines_go(_: Place) -> None:
    path = Path(sys.modules["subject"].SCRATCH, "project", "baselines")
    shutil.rmtree(path, ignore_errors=True)
    path.write_text("not a folder", encoding="ascii")


@kind(WHOLE + ENDED, phases=PHASES[1:], blame="nobody", ways=("pytest",))
def fills_the_temporary_folder_of_a_session(_: Place) -> None:
    try:
        with Path(tempfile.gettempdir(), "full").open("wb") as file:
            while True:
                file.write(bytes(1 << 20))
    except OSError:
        return


@kind(WHOLE + ENDED, phases=PHASES[1:], blame="nobody", ways=("pytest",))
def removes_the_temporary_folder_of_a_session(_: Place) -> None:
    shutil.rmtree(tempfile.gettempdir(), ignore_errors=True)


@kind(WHOLE + ENDED, phases=PHASES[1:], blame="nobody", ways=("pytest",))
def stops_the_session_process_for_a_while(_: Place) -> None:
    pid = session()
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    os.kill(pid, signal.SIGCONT)


def _at_any_moment(name: str, numbers: tuple[signal.Signals, ...], reason: str, *, against: bool = False) -> None:
    """A session that gets signals while it starts, imports, measures, judges or ends, beside a stored baseline."""

    def act(place: Place) -> None:
        pid = int(os.environ["DDPPERF_SESSION_PID"])
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            time.sleep(Random(f"{place.case.seed} {place.case.number} pause").random() * 0.4)

    act.__name__ = name
    kind(WHOLE + reason, phases=(ANY_MOMENT,), blame="nobody", ways=("pytest",), against=against)(act)


# One that comes before pytest is loaded ends Python, and one that comes after the last test changes nothing.
_at_any_moment("interrupts_pytest", (signal.SIGINT,), r"status (2|-2|0)\b")
_at_any_moment("interrupts_pytest_twice", (signal.SIGINT, signal.SIGINT), r"status (2|-2|0|1)\b")
_at_any_moment("terminates_pytest", (signal.SIGTERM,), r"status (2|-15|0)\b")
_at_any_moment("hangs_pytest_up", (signal.SIGHUP,), r"status (-1|0)\b")
_at_any_moment("kills_pytest", (signal.SIGKILL,), r"status (-9|0)\b")
BESIDE = "_beside_a_checkout"
_at_any_moment(f"interrupts_pytest_twice{BESIDE}", (signal.SIGINT, signal.SIGINT), r"status (2|-2|0|1)\b", against=True)
_at_any_moment(f"terminates_pytest{BESIDE}", (signal.SIGTERM,), r"status (2|-15|0)\b", against=True)
_at_any_moment(f"kills_pytest{BESIDE}", (signal.SIGKILL,), r"status (-9|0)\b", against=True)


def _zygotes() -> list[int]:
    """The zygotes of the session that the worker started."""
    pid, found = int(os.environ["DDPPERF_SESSION_PID"]), []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError, ValueError):
            if b"--control=" in path.read_bytes() and parent(int(path.parent.name)) == pid:
                found.append(int(path.parent.name))
    return found


TOLD = WHOLE + rf"((forked from|cannot import).*{FAILED}|status 0\b)"


@kind(TOLD, phases=(ANY_MOMENT,), blame="nobody", ways=("pytest",))
def kills_a_zygote_of_pytest(_: Place) -> None:
    for pid in _zygotes()[:1]:
        os.kill(pid, signal.SIGKILL)


@kind(TOLD, phases=(ANY_MOMENT,), blame="nobody", ways=("pytest",))
def stops_a_zygote_of_pytest(_: Place) -> None:
    for pid in _zygotes()[:1]:
        os.kill(pid, signal.SIGSTOP)


@kind(WHOLE + r"No space left.*" + FAILED, phases=(ANY_MOMENT,), blame="nobody", ways=("pytest",))
def fills_the_disk_of_baselines(place: Place) -> None:
    with contextlib.suppress(OSError), Path(place.scratch, "project", "baselines", "full").open("wb") as file:
        while True:
            file.write(bytes(1 << 12))
