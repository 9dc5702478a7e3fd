"""Attacks on the plugin's own processes."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from pathlib import Path

from benchmarks.campaign.kinds import ENDINGS, STEPS, Ending, Place, kind, parent

OURS = ("start", "import", *STEPS, "result", "after")
ENDED = r"the process that ranks are forked from (was killed by {}|has ended|no longer answers)"
STOPPED = r"the process that ranks are forked from was stopped"


def _declare(name: str, number: signal.Signals, reason: str) -> None:
    def act(_: Place) -> None:
        os.kill(os.getppid(), number)
        time.sleep(1)

    act.__name__ = name
    passes = "may" if number == signal.SIGINT else "no"
    kind(reason, phases=OURS[1:-1], blame="nobody", passes=passes, ways=("launcher", "copy"))(act)  # type: ignore[arg-type]


_declare("kills_the_zygote", signal.SIGKILL, ENDED.format("SIGKILL"))
_declare("aborts_the_zygote", signal.SIGABRT, ENDED.format("SIGABRT"))
_declare("hangs_the_zygote_up", signal.SIGHUP, ENDED.format("SIGHUP"))
_declare("interrupts_the_zygote", signal.SIGINT, r"(?!)")
_declare("crashes_the_zygote", signal.SIGSEGV, ENDED.format("SIGSEGV"))
_declare("terminates_the_zygote", signal.SIGTERM, r"the process that ranks are forked from (has ended|exited|was)")


STOPPING: tuple[Ending, ...] = ("raise", "hang", "exit")


@kind(
    endings=STOPPING,
    phases=OURS[1:-1],
    blame="any",
    reasons=dict.fromkeys(STOPPING, STOPPED),
    ways=("launcher", "copy"),
)
def stops_the_zygote(place: Place) -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    place.end()


@kind(ENDED.format("SIGKILL"), phases=STEPS, blame="nobody", ways=("copy",))
def kills_the_original_zygote(_: Place) -> None:
    os.kill(parent(os.getppid()), signal.SIGKILL)
    time.sleep(2)


@kind(r"(?!)", phases=STEPS, blame="nobody", passes="must", ways=("copy",))
def stops_the_original_zygote(_: Place) -> None:
    os.kill(parent(os.getppid()), signal.SIGSTOP)


@kind(endings=ENDINGS, phases=STEPS, ways=("launcher", "copy"))
def stops_the_zygote_for_a_while(place: Place) -> None:
    zygote = os.getppid()
    os.kill(zygote, signal.SIGSTOP)
    time.sleep(1)
    os.kill(zygote, signal.SIGCONT)
    place.end()


@kind(endings=ENDINGS, phases=STEPS, ways=("launcher",))
def stops_the_session_for_a_while(place: Place) -> None:
    session = parent(os.getppid())
    os.kill(session, signal.SIGSTOP)
    time.sleep(2)
    os.kill(session, signal.SIGCONT)
    place.end()


@kind(endings=ENDINGS, phases=STEPS, ways=("launcher",))
def signals_the_zygote_often(place: Place) -> None:
    for _ in range(2000):
        os.kill(os.getppid(), signal.SIGCHLD)
    place.end()


def _turn_addresses() -> list[str]:
    lines = Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()
    return sorted({f"\0{line.split()[-1][1:]}" for line in lines if "@pytest-ddpperf-" in line})


TURNS = ("first turn", "later turn")


def _connected() -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect(_turn_addresses()[0])
    return one


@kind(endings=ENDINGS, phases=TURNS, ways=("turns",), reasons={"return": r"(?!)"})
def sends_the_turn_server_garbage(place: Place) -> None:
    for size in (1, 25, 400):
        with _connected() as one:
            one.send(b"x" * size)
    place.end()


@kind(endings=ENDINGS, phases=TURNS, ways=("turns",))
def asks_for_a_turn_without_the_token(place: Place) -> None:
    with _connected() as one:
        one.send(struct.pack("=16sBd", b"no token at all!", 1 - place.case.rank % 2, 0.0))
        time.sleep(0.2)
    place.end()


@kind(endings=ENDINGS, phases=TURNS, ways=("turns",))
def connects_often_to_the_turn_server(place: Place) -> None:
    kept = [_connected() for _ in range(150)]
    place.end()
    for one in kept:
        one.close()


@kind(r"exited with status 7\b", phases=TURNS, ways=("turns",))
def exits_in_its_turn(_: Place) -> None:
    os._exit(7)


@kind(r"ValueError: boom 7", phases=TURNS, ways=("turns",))
def raises_in_its_turn(_: Place) -> None:
    raise ValueError("boom 7")


@kind(r"killed by SIGKILL", phases=TURNS, ways=("turns",))
def is_killed_in_its_turn(_: Place) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@kind(r"gave no stack", phases=TURNS, ways=("turns",))
def is_stopped_in_its_turn(_: Place) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@kind(ENDED.format("SIGKILL"), phases=TURNS, blame="nobody", ways=("turns",))
def kills_the_zygote_in_its_turn(_: Place) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1)
