"""Interleaving: launches run at the same time, and time steps one after the other; while one works, the others wait.

So a slow period of the machine slows all launches equally, and hardly changes their ratio.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar, cast

from pytest_ddpperf.errors import LaunchError, RanksTimedOut
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.deadlines import watched

T = TypeVar("T")

_GO = b"\0"
_REQUEST = struct.Struct("=d")  # the fraction of a launch's timed steps that is done
_ABORT_SECONDS, _ABORTED_SECONDS = 0.1, 60.0
_REST_SECONDS, _REST_SHARE = 0.001, 0.2  # a process rests if it computes for at most this share of this time
_MOST_RESTS = 30


class TurnQueue:
    """The queue of interleaved launches: only the launch that has the turn runs steps.

    The next turn goes to the launch that has done the smallest fraction of its timed steps, so that all end together.
    The first turn starts when all launches have requested a turn, because all steps are then built. Launches that have
    ended get no turns. Each launch has a slot: its number, from 0. The queue is in the controller, where one thread for
    each launch receives the requests of its rank 0.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[float, socket.socket]] = {}
        self.held_up: set[int] = set()  # slots that waited when another launch ended, and requested none since
        self.waited_for: list[set[int]] = [set() for _ in range(slots)]  # by slot: launches whose end it waited for
        self._left: set[int] = set()
        self._active: int | None = None
        self._last = -1  # the launch that had the last turn
        self._begins = False  # whether the other launch of its pair has not had a turn since
        self._began = [0] * slots  # by slot: turns that followed a turn of another pair

    def hear(self, slot: int, connection: socket.socket) -> bool:
        """Receives a launch's request for a turn, and ends its current turn; returns False if the launch is gone."""
        message = b""
        with contextlib.suppress(ConnectionResetError):
            message = connection.recv(_REQUEST.size)
        if len(message) != _REQUEST.size:
            self.leave(slot)
            return False
        with self._lock:
            if self._active == slot:
                self._active = None
            self._waiting[slot] = _REQUEST.unpack(message)[0], connection
            self._left.discard(slot)  # its fork server had ended before it forked ranks, and the launch began anew
            self.held_up.discard(slot)
            self._go_on()
        return True

    def leave(self, slot: int) -> None:
        """Removes an ended launch from the queue, and records which launches waited for this launch."""
        with self._lock:
            self.held_up.update(self._waiting)
            for waiting in self._waiting:
                self.waited_for[waiting].add(slot)
            self._left.add(slot)
            self._waiting.pop(slot, None)
            if self._active == slot:
                self._active = None
            self._go_on()

    def _next(self, behind: Collection[int]) -> int:
        """Returns the slot that gets the next turn, out of ``behind``, the slots with the least progress.

        Slots 0 and 1, 2 and 3, and so on are pairs. After one slot of a pair, the other slot follows if it is in
        ``behind``. Otherwise another pair follows, and begins with the slot that has begun the pair less often. In a
        fixed order, one of two equal launches was slower by a sixth, because it found other caches and cores.
        """
        partner = self._last ^ 1
        if self._begins and partner in behind:
            self._begins, self._last = False, partner
            return partner
        later = [slot for slot in behind if slot // 2 > self._last // 2]
        pair = min(later or behind) // 2
        another = pair != self._last // 2
        both = [slot for slot in behind if slot // 2 == pair]
        slot = min(both, key=lambda slot: (self._began[slot] if another else slot == self._last, slot))
        self._began[slot] += another
        self._begins, self._last = True, slot
        return slot

    def _go_on(self) -> None:
        """Lets the next launch run steps if no launch is running steps and every remaining launch waits."""
        present = [slot for slot in range(self.slots) if slot not in self._left]
        if self._active is not None or not present or any(slot not in self._waiting for slot in present):
            return
        least = min(self._waiting[slot][0] for slot in present)
        behind = [slot for slot in present if self._waiting[slot][0] == least]
        slot = self._active = self._next(behind)
        _, connection = self._waiting.pop(slot)
        with contextlib.suppress(OSError):  # the launch has died; the end of its connection is heard next
            connection.sendall(_GO)


@dataclass(frozen=True)
class TurnSlot:
    """The place of one launch in a ``TurnQueue``."""

    queue: TurnQueue
    slot: int


def run_interleaved(launches: Sequence[Callable[[TurnSlot], T]], abort: Callable[[], None]) -> list[T]:
    """Runs launches at the same time, the first one in this thread, and returns their results.

    If a launch raises an error, the other launches still run to their end. The error of a launch that waited for a
    failed launch is raised only if there is no other error. If this thread is interrupted, ``abort`` ends the others.
    """
    __tracebackhide__ = True

    errors: dict[int, Exception] = {}
    queue = TurnQueue(len(launches))

    def innocent(slot: int) -> bool:
        late = isinstance(errors[slot], RanksTimedOut) and bool(queue.waited_for[slot] & errors.keys())
        return late or slot in queue.held_up

    def run(slot: int) -> T | None:
        __tracebackhide__ = True
        try:
            return launches[slot](TurnSlot(queue, slot))
        except Exception as error:  # noqa: BLE001 - raised below
            errors[slot] = error
            return None
        finally:
            queue.leave(slot)

    others: list[Future[T | None]] = []
    with ThreadPoolExecutor(len(launches), "ddpperf-launch") as pool:
        try:
            others += [pool.submit(run, slot) for slot in range(1, len(launches))]
            results = [run(0), *(other.result() for other in others)]
        except BaseException:  # Ctrl-C, or pytest is to end
            abort()
            with watched(f"interrupted launches had not ended after {_ABORTED_SECONDS:g} s", _ABORTED_SECONDS):
                while wait(others, _ABORT_SECONDS).not_done:  # one may have begun just after the abort
                    abort()
            raise
    if errors:
        raise errors[min(errors, key=lambda slot: (innocent(slot), slot))]
    return cast("list[T]", results)


asking: socket.socket | None = None
"""The socket on which rank 0 of an interleaved launch asks its controller to run steps; None in other processes."""


class TurnClient:
    """Requests turns for a launch. During a turn, only this launch runs steps, and other launches wait.

    Only rank 0 has a ``connection``, and requests turns for all ranks. ``threads``: whether this rank has many threads.
    """

    def __init__(self, connection: socket.socket | None, *, threads: bool = False) -> None:
        self._connection = connection
        self._threads = threads

    def rest(self) -> None:
        """Waits until the threads of this process are idle: OpenMP's threads spin for milliseconds after their work.

        Otherwise the launch with the next turn would share its cores with these threads. If the threads do not become
        idle, for example because they load data, later calls return at once.
        """
        for _ in range(_MOST_RESTS if self._threads else 0):  # no deadline: a stopped process would miss it
            before = time.process_time()
            time.sleep(_REST_SECONDS)
            if time.process_time() - before < _REST_SHARE * _REST_SECONDS:
                return
        self._threads = False

    def wait(self, progress: float = 1.0) -> None:
        """Ends this launch's turn and waits for the next turn; ``progress`` is the share of timed steps already run."""
        if self._connection is None:
            return
        go = b""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.sendall(_REQUEST.pack(progress))
            go = self._connection.recv(len(_GO))
        if go != _GO:  # without a turn it would time steps while another launch runs
            raise LaunchError("the other interleaved launches ended while this one waited")

    def close(self) -> None:
        """Takes this launch out of the queue, so that other launches no longer wait for it."""
        if self._connection is not None:
            self._connection.close()
