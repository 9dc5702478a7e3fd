"""Faults by which a rank ends at once or never goes on, exceptions among them, and attacks on the fork server."""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from typing import Any, NoReturn

from benchmarks.campaign.kinds import ENDINGS, LOADED, NEVER, STEPS, Act, Place, declare, hang, kind, kinds, prctl

# It never goes on.

kinds(
    (
        (name, rf"in {name}\b", act)
        for name, act in {
            "sums": lambda _: sum(itertools.repeat(1)),
            "matches": lambda _: re.match(r"(a|aa)+$", "a" * 100 + "b"),
            "sleeps_with_the_interpreter_held": lambda _: ctypes.PyDLL(None).sleep(1000),
            "waits_for_an_event": lambda _: threading.Event().wait(),
            "reads_a_pipe": lambda _: os.read(os.pipe()[0], 1),
            "waits_for_a_child": lambda _: subprocess.run(["sleep", "1000"], check=False),
            "joins_a_thread": lambda _: started(time.sleep, 1000).join(),
        }.items()
    )
)


def started(target: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments)
    thread.start()
    return thread


@kind(r"in loops\b")
def loops(_: Place) -> None:
    while True:
        pass


@kind(r"in floods_output\b")
def floods_output(_: Place) -> None:
    while True:
        print("flood " * 2000)


@kind(r"in hang\b|gave no stack")
def hangs_without_signals(_: Place) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))
    hang()


@kind(r"in hang\b")
def hangs_in_the_deep(_: Place) -> None:
    def down(depth: int) -> None:
        hang() if depth == 0 else down(depth - 1)

    down(700)


@kind(r"in hang\b")
def swallows_every_exception(_: Place) -> None:
    while True:
        try:
            hang()
        except BaseException:
            continue


# It ends without a report.


def _signalled(number: int) -> Any:
    def act(_: Place) -> None:
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        time.sleep(0.1)

    return act


for _name in ("KILL", "TERM", "ABRT", "HUP", "BUS", "ILL", "FPE", "USR1", "USR2", "SYS"):
    declare(f"ends_by_sig{_name.lower()}", _signalled(getattr(signal, f"SIG{_name}")), rf"killed by SIG{_name}\b")
declare("ends_by_a_real_time_signal", _signalled(int(signal.SIGRTMIN) + 3), r"killed by (SIGRTMIN|signal 37)")
declare("stops_itself", _signalled(signal.SIGSTOP), r"gave no stack")


@kind(r"killed by SIGXCPU")
def uses_up_its_processor_time(_: Place) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1, resource.RLIM_INFINITY))
    while True:
        pass


kinds(
    [
        ("exits_with_0", r"exited with status 0\b", lambda _: os._exit(0)),
        ("exits_with_77", r"exited with status 77\b", lambda _: os._exit(77)),
        ("exits_by_c", r"exited with status 9\b", lambda _: ctypes.CDLL(None)._exit(9)),
        ("exits_from_a_thread", r"exited with status 6\b", lambda _: (started(os._exit, 6), time.sleep(1000))),
        ("executes_true", r"exited with status 0\b", lambda _: os.execv("/bin/true", ["true"])),
        ("executes_sleep", r"gave no stack|killed by|exited", lambda _: os.execv("/bin/sleep", ["sleep", "1000"])),
        ("reads_null", r"killed by SIGSEGV", lambda _: ctypes.string_at(0)),
        ("overflows_the_stack", r"killed by SIGSEGV", lambda _: faulthandler._stack_overflow()),  # type: ignore[attr-defined]
        ("crashes_in_a_thread", r"killed by SIGSEGV", lambda _: (started(ctypes.string_at, 0), time.sleep(1000))),
        ("kills_its_group", r"killed by SIGKILL", lambda _: os.killpg(0, signal.SIGKILL)),
    ]
)
kinds(
    [
        ("kills_another_rank", r"killed by SIGKILL", lambda p: (os.kill(p.other, signal.SIGKILL), time.sleep(0.1))),
        ("stops_another_rank", r"gave no stack", lambda p: os.kill(p.other, signal.SIGSTOP)),
    ],
    phases=STEPS,
    blame="other",
)


# It is traced: each signal stops it until its tracer lets it go on.

TRACE_ME, ATTACH, PTRACE = 0, 16, ctypes.CDLL(None).ptrace


def _attached() -> None:
    rank = os.getpid()
    if os.fork() == 0:
        PTRACE(ATTACH, rank, None, None)
        hang()
    time.sleep(1)


@kind(endings=ENDINGS)
def lets_its_parent_trace_it(_: Place) -> None:
    PTRACE(TRACE_ME, 0, None, None)
    os.kill(os.getpid(), signal.SIGCHLD)


kinds(
    [
        (
            "ends_while_traced",
            r"killed by SIGUSR2",
            lambda p: (PTRACE(TRACE_ME, 0, None, None), _signalled(signal.SIGUSR2)(p)),
        ),
        ("is_stopped_by_a_tracer", r"gave no stack|in (hang|_attached)\b", lambda _: (_attached(), hang())),
    ]
)


# Its main thread ends, and another one goes on.

HEADLESS = r"ended its main thread"
EXIT = {"x86_64": 60, "aarch64": 93}[platform.machine()]  # of a thread
kinds(
    [
        ("ends_its_main_thread", HEADLESS, lambda _: (started(time.sleep, 1000), ctypes.CDLL(None).syscall(EXIT, 0))),
        ("is_sandboxed_by_seccomp", HEADLESS, lambda _: (started(time.sleep, 1000), prctl(22, 1), os.getcwd())),
        ("kills_its_main_thread_by_seccomp", rf"{HEADLESS}|killed by", lambda _: (prctl(22, 1), os.getcwd())),
    ]
)


# It raises.


class Rude(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Leaver(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class Odd(Exception):
    __module__ = None  # type: ignore[assignment]


class Bound(Exception):
    def __init__(self, one: object, two: object) -> None:
        super().__init__(one)
        self.two = two

    def __reduce__(self) -> NoReturn:
        raise TypeError("not by pickle")


def throw(error: BaseException) -> NoReturn:
    raise error


def chain() -> BaseException:
    error: BaseException = ValueError("first")
    for number in range(3000):
        after = ValueError(f"link {number}")
        after.__cause__ = error
        error = after
    return error


def group() -> BaseException:
    made: Any = getattr(__import__("builtins"), "ExceptionGroup", None)
    return ValueError("two faults") if made is None else made("two faults", [ValueError("a"), KeyError("b")])


def recurse() -> None:
    recurse()


kinds(
    [
        ("raises", r"ValueError: boom 7", lambda _: throw(ValueError("boom 7"))),
        ("raises_base", r"Rude: boom 7", lambda _: throw(Rude("boom 7"))),
        ("exits_by_sys", r"sys\.exit\(3\)", lambda _: sys.exit(3)),
        ("exits_by_sys_with_success", r"sys\.exit\((0|)\)", lambda _: sys.exit(0)),
        ("exits_by_sys_with_words", r"sys\.exit\('enough'\)", lambda _: sys.exit("enough")),
        ("interrupts", r"KeyboardInterrupt", lambda _: throw(KeyboardInterrupt())),
        ("raises_without_words", r"Mute\b(?s:.*)in raises_without_words", lambda _: throw(Mute())),
        ("raises_leaving_words", r"Leaver\b(?s:.*)in raises_leaving_words", lambda _: throw(Leaver())),
        ("raises_a_chain", r"ValueError: link 2999(?s:.*)in raises_a_chain", lambda _: throw(chain())),
        ("raises_long_words", r"ValueError: long", lambda _: throw(ValueError("long " + "x" * 20_000_000))),
        ("raises_many_lines", r"ValueError: many", lambda _: throw(ValueError("many\n" * 1_000_000))),
        ("raises_a_group", r"(ExceptionGroup|ValueError): two faults", lambda _: throw(group())),
        ("raises_without_module", r"Odd: boom 7", lambda _: throw(Odd("boom 7"))),
        ("raises_unpicklable", r"Bound: boom 7", lambda _: throw(Bound("boom 7", lambda: None))),
        ("recurses", r"RecursionError", lambda _: recurse()),
        ("raises_memory_error", r"ran out of memory: MemoryError|MemoryError", lambda _: throw(MemoryError())),
        ("raises_stop_iteration", r"StopIteration", lambda _: next(iter(()))),
        ("raises_generator_exit", r"GeneratorExit", lambda _: throw(GeneratorExit())),
        ("raises_control_characters", r"ValueError: .*boom 7", lambda _: throw(ValueError("\x1b[2J\0 \ud800 boom 7"))),
        ("fails_by_pytest", r"(failed: |Failed: )?boom 7", lambda _: __import__("pytest").fail("boom 7")),
        (
            "raises_like_a_victim",
            r"OSError: .*[Tt]imed out|TimeoutError: .*Connection closed by peer",
            lambda _: throw(TimeoutError("Connection closed by peer")),
        ),
        ("imports_nothing", r"ModuleNotFoundError: .*no_such_module", lambda _: __import__("no_such_module")),
    ]
)


# The processes that ranks are forked from.

SERVER = r"the process that forks ranks (was|has ended|exited|no longer answers|died)"


def _to_server(name: str) -> Act:
    def act(_: Place) -> None:
        os.kill(os.getppid(), getattr(signal, f"SIG{name}"))
        time.sleep(1)

    return act


kinds(
    (
        (f"ends_the_server_by_sig{name.lower()}", SERVER, _to_server(name))
        for name in ("KILL", "ABRT", "HUP", "SEGV", "TERM")
    ),
    phases=LOADED,
    blame="nobody",
)
kinds([("interrupts_the_server", NEVER, _to_server("INT"))], phases=STEPS, blame="nobody", passes="may")


@kind(endings=ENDINGS, phases=STEPS)
def stops_the_server_for_a_while(_: Place) -> None:
    server = os.getppid()
    os.kill(server, signal.SIGSTOP)
    time.sleep(1)
    os.kill(server, signal.SIGCONT)


@kind(endings=ENDINGS, phases=STEPS)
def signals_the_server_often(_: Place) -> None:
    for _number in range(2000):
        os.kill(os.getppid(), signal.SIGCHLD)
