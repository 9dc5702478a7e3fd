"""Faults that end a process, this one or another rank's, without a report."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
import threading
import time

from benchmarks.campaign.kinds import JOINED, STEPS, SUDDEN, Place, kill_self, kind

NAMES = {
    "kills_itself": signal.SIGKILL,
    "terminates_itself": signal.SIGTERM,
    "aborts_itself": signal.SIGABRT,
    "hangs_itself_up": signal.SIGHUP,
    "sends_itself_a_bus_error": signal.SIGBUS,
    "sends_itself_an_illegal_instruction": signal.SIGILL,
    "sends_itself_a_floating_point_error": signal.SIGFPE,
    "sends_itself_sigusr2": signal.SIGUSR2,
    "sends_itself_sigsys": signal.SIGSYS,
}


def _declare(name: str, number: signal.Signals) -> None:
    def act(_: Place) -> None:
        kill_self(number)

    act.__name__ = name
    kind(rf"killed by {number.name}\b", phases=SUDDEN)(act)


for _name, _number in NAMES.items():
    _declare(_name, _number)


@kind(r"killed by (SIGRTMIN\+?3?|signal 37|SIGRTMIN)", phases=JOINED)
def sends_itself_a_real_time_signal(_: Place) -> None:
    kill_self(int(signal.SIGRTMIN) + 3)


@kind(r"exited with status 0\b", phases=SUDDEN)
def exits_with_0(_: Place) -> None:
    os._exit(0)


@kind(r"exited with status 1\b", phases=SUDDEN)
def exits_with_1(_: Place) -> None:
    os._exit(1)


@kind(r"exited with status 77\b", phases=SUDDEN)
def exits_with_77(_: Place) -> None:
    os._exit(77)


@kind(r"exited with status 9\b", phases=(*STEPS, "import"))
def exits_by_c(_: Place) -> None:
    ctypes.CDLL(None)._exit(9)


@kind(r"exited with status 6\b")
def exits_from_a_thread(_: Place) -> None:
    threading.Thread(target=os._exit, args=(6,)).start()
    time.sleep(1000)


@kind(r"exited with status 0\b")
def executes_true(_: Place) -> None:
    os.execv("/bin/true", ["true"])


@kind(r"gave no stack|killed by|exited")
def executes_sleep(_: Place) -> None:
    os.execv("/bin/sleep", ["sleep", "1000"])


@kind(r"killed by SIGSEGV")
def reads_null(_: Place) -> None:
    ctypes.string_at(0)


@kind(r"killed by SIGSEGV")
def overflows_the_stack(_: Place) -> None:
    faulthandler._stack_overflow()  # type: ignore[attr-defined]


@kind(r"killed by SIGALRM")
def alarms_itself(_: Place) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    time.sleep(1000)


@kind(r"killed by SIGXCPU")
def uses_up_its_processor_time(_: Place) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
    while True:
        pass


@kind(r"KeyboardInterrupt", phases=(*STEPS, "import"))
def interrupts_itself(_: Place) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)


@kind(r"killed by SIGKILL", phases=STEPS, blame="other")
def kills_another_rank(place: Place) -> None:
    os.kill(place.other, signal.SIGKILL)
    time.sleep(0.1)


@kind(r"killed by SIGTERM", phases=STEPS, blame="other")
def terminates_another_rank(place: Place) -> None:
    os.kill(place.other, signal.SIGTERM)
    time.sleep(0.1)


@kind(r"gave no stack", phases=STEPS, blame="other")
def stops_another_rank(place: Place) -> None:
    os.kill(place.other, signal.SIGSTOP)


@kind(r"gave no stack", phases=SUDDEN)
def stops_itself(_: Place) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@kind(r"killed by SIGKILL")
def kills_its_group(_: Place) -> None:
    os.killpg(0, signal.SIGKILL)


@kind(r"killed by SIGSEGV")
def segfaults_in_a_thread(_: Place) -> None:
    threading.Thread(target=ctypes.string_at, args=(0,)).start()
    time.sleep(1000)


@kind(r"killed by SIGUSR1")
def is_killed_by_sigusr1(_: Place) -> None:
    faulthandler.unregister(signal.SIGUSR1)
    kill_self(signal.SIGUSR1)
