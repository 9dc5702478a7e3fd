"""Faults of what a rank returns."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from benchmarks.campaign.kinds import Place, hang, kind

RESULT = ("result",)
SENT_BACK = r"rank \d.*cannot be sent back|cannot be sent back"
READ = r"cannot be read by the test session"


class Sent:
    """An object that does something while it is pickled."""

    def __init__(self, act: Any) -> None:
        self.act = act

    def __reduce__(self) -> tuple[Any, ...]:
        self.act()
        return int, ()


class Read:
    """An object that does something while it is loaded."""

    def __init__(self, act: Any, *arguments: Any) -> None:
        self.act, self.arguments = act, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.act, self.arguments


def raise_value_error() -> None:
    raise ValueError("boom 7")


def raise_interrupt() -> None:
    raise KeyboardInterrupt


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raise_mute() -> None:
    raise Mute


@kind(SENT_BACK, phases=RESULT, ways=("launcher",))
def returns_a_lock(_: Place) -> object:
    return threading.Lock()


@kind(SENT_BACK, phases=RESULT, ways=("launcher",))
def returns_a_generator(_: Place) -> object:
    return (number for number in range(3))


@kind(rf"({SENT_BACK})(?s:.*)boom 7", phases=RESULT, ways=("launcher",))
def raises_while_sent(_: Place) -> object:
    return Sent(raise_value_error)


@kind(rf"({SENT_BACK})(?s:.*)KeyboardInterrupt", phases=RESULT, ways=("launcher",))
def interrupts_while_sent(_: Place) -> object:
    return Sent(raise_interrupt)


@kind(rf"({SENT_BACK})(?s:.*)sys\.exit\(5\)", phases=RESULT, ways=("launcher",))
def exits_while_sent(_: Place) -> object:
    return Sent(lambda: sys.exit(5))


@kind(rf"({SENT_BACK})(?s:.*)Mute", phases=RESULT, ways=("launcher",))
def raises_without_words_while_sent(_: Place) -> object:
    return Sent(raise_mute)


@kind(r"exited with status 5", phases=RESULT, ways=("launcher",))
def ends_while_sent(_: Place) -> object:
    return Sent(lambda: os._exit(5))


@kind(r"in hang\b", phases=RESULT, ways=("launcher",))
def blocks_while_sent(_: Place) -> object:
    return Sent(hang)


@kind(rf"{READ}.*boom 7", phases=RESULT, ways=("launcher",))
def raises_while_read(_: Place) -> object:
    return Read(raise_value_error)


@kind(rf"{READ}.*KeyboardInterrupt", phases=RESULT, ways=("launcher",))
def interrupts_while_read(_: Place) -> object:
    return Read(raise_interrupt)


@kind(rf"{READ}.*SystemExit", phases=RESULT, ways=("launcher",))
def exits_while_read(_: Place) -> object:
    return Read(sys.exit, 5)


@kind(rf"{READ}.*Mute", phases=RESULT, ways=("launcher",))
def raises_without_words_while_read(_: Place) -> object:
    return Read(raise_mute)


@kind(r"was not read by the test session before the deadline", phases=RESULT, ways=("launcher",))
def blocks_while_read(_: Place) -> object:
    return Read(time.sleep, 60)


@kind(rf"{READ}.*(ModuleNotFoundError|no_such_module)", phases=RESULT, ways=("launcher",))
def imports_nothing_while_read(_: Place) -> object:
    return Read(__import__, "no_such_module")


@kind(passes="must", phases=RESULT, ways=("launcher",))
def returns_much(_: Place) -> object:
    return bytes(80 << 20)


@kind(rf"({SENT_BACK})(?s:.*)(RecursionError|deep|nested)", phases=RESULT, ways=("launcher",))
def returns_the_deep(_: Place) -> object:
    nested: list[Any] = []
    for _number in range(200_000):
        nested = [nested]
    return nested


@kind(r"was killed by SIGSEGV|exited|cannot be sent back", phases=RESULT, passes="may", ways=("launcher",))
def returns_a_circle(_: Place) -> object:
    circle: list[Any] = []
    circle.append(circle)
    return circle
