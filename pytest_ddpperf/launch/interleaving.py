"""Interleaving: launches run at the same time and take turns to time steps, one at work while the others wait.

A slow stretch of the machine then slows all launches alike, and cancels out.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import struct
import threading
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast

from pytest_ddpperf.errors import LaunchError, RanksTimedOut

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from typing_extensions import Self

T = TypeVar("T")

_GO = b"\0"
_LEFT, _CLOSED = b"L", b"C"
_REQUEST = struct.Struct("=16sBd")  # the token, a launch's slot, and the part of its timed steps that is done
_TOKEN_BYTES = 16
_CREDENTIALS = struct.Struct("=3i")  # pid, uid and gid of a peer
_ABORT_SECONDS = 0.1
_END_SECONDS = 5.0
_REST_SECONDS, _REST_SHARE = 0.001, 0.2  # how long, and for what part of that at most, threads may compute at rest
_MOST_RESTS = 30


@dataclass(frozen=True)
class TurnSlot:
    """The address at which the ranks of one launch ask for their turns."""

    address: str  # of the turn server: a socket in the abstract namespace
    slot: int  # of this launch among the interleaved ones
    slots: int
    token: bytes = field(repr=False)  # other users can see the address, and not this


class TurnServer:
    """The controller's side: gives the next turn to the launch that has done the smallest part of its timed steps.

    Launches of many and of few turns thus end together. Launches that are equally far follow in the order of their
    slots; of more than one pair, slots 0 and 1, 2 and 3 and so on, both launches begin equally often. The first turn
    waits until every launch has asked for it, so none is still being built. A launch that has ended is not waited
    for. A connection without the token, or of another user, is dropped.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._address = f"\0pytest-ddpperf-{uuid.uuid4().hex}"
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(self._address)
        self._listening.listen(slots)
        self._inbox, self._outbox = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._thread = threading.Thread(target=self._serve, name="ddpperf-turns", daemon=True)
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._queue = _Queue(slots, self._token)
        self.error: Exception | None = None  # what has ended the turns

    @property
    def held_up(self) -> frozenset[int]:
        """The slots of the launches that another one's end has kept waiting, and that have not asked again since."""
        return frozenset(self._queue.held_up)

    def waited_for(self, slot: int) -> frozenset[int]:
        """The slots of the launches whose end a launch has waited for, which took of its time."""
        return frozenset(self._queue.waited_for[slot])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._outbox.send(_CLOSED)
        self._thread.join(_END_SECONDS)
        for end in (self._listening, self._inbox, self._outbox):
            end.close()

    def turns(self, slot: int) -> TurnSlot:
        """Give the ranks of one launch their address."""
        return TurnSlot(self._address, slot, self._slots, self._token)

    def leave(self, slot: int) -> None:
        """Stop waiting for a launch that has ended."""
        self._outbox.send(_LEFT + bytes([slot]))

    def _serve(self) -> None:
        try:
            self._give_turns()
        except Exception as error:  # noqa: BLE001 - raised by ``run_interleaved``
            self.error = error
            self._listening.close()  # else who comes now would wait until the deadline

    def _give_turns(self) -> None:
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as connections:
            selector.register(self._listening, selectors.EVENT_READ)
            selector.register(self._inbox, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._inbox:
                        message = self._inbox.recv(2)
                        if message == _CLOSED:
                            return
                        self._queue.leave(message[1])
                    elif key.fileobj is self._listening:
                        connection = connections.enter_context(self._listening.accept()[0])
                        if _user_of(connection) == os.geteuid():
                            selector.register(connection, selectors.EVENT_READ)
                        else:
                            connection.close()
                    elif isinstance(key.fileobj, socket.socket) and not self._queue.hear(key.fileobj):
                        selector.unregister(key.fileobj)
                        key.fileobj.close()
                self._queue.go_on()


class _Queue:
    """The launches that wait for their turns, and the one that has its turn."""

    def __init__(self, slots: int, token: bytes) -> None:
        self._slots = slots
        self._token = token
        self._waiting: dict[int, tuple[float, socket.socket]] = {}
        self._slot_of: dict[socket.socket, int] = {}
        self.held_up: set[int] = set()
        self.waited_for: list[set[int]] = [set() for _ in range(slots)]
        self._left: set[int] = set()
        self._active: int | None = None
        self._last = -1  # the launch that had the last turn
        self._begins = False  # whether its partner, of slots 0 and 1, 2 and 3 and so on, has not had its turn since
        self._began = [0] * slots  # turns of each that followed one of another pair

    def hear(self, connection: socket.socket) -> bool:
        """Take a launch's request, which ends the turn that it had; False if the connection has ended or is none."""
        try:
            message = connection.recv(_REQUEST.size + 1)
        except ConnectionResetError:
            message = b""
        request = self._request(message)
        if request is None:
            slot = self._slot_of.pop(connection, None)
            if slot is not None:
                self.leave(slot)
            return False
        slot, progress = request
        if self._active == slot:
            self._active = None
        self._slot_of[connection] = slot
        self._waiting[slot] = progress, connection
        self.held_up.discard(slot)
        return True

    def _request(self, message: bytes) -> tuple[int, float] | None:
        if len(message) != _REQUEST.size:
            return None
        token, slot, progress = _REQUEST.unpack(message)
        return (slot, progress) if secrets.compare_digest(token, self._token) and slot < self._slots else None

    def leave(self, slot: int) -> None:
        """Go on without a launch; those that wait now have lost time by it."""
        self.held_up.update(self._waiting)
        for waiting in self._waiting:
            self.waited_for[waiting].add(slot)
        self._left.add(slot)
        self._waiting.pop(slot, None)
        if self._active == slot:
            self._active = None

    def _next(self, behind: Collection[int]) -> int:
        """The launch of these that follows the last one: its partner, or the next pair's that less often began.

        The first of a pair follows another benchmark, and the second one the first: caches, cores and threads that
        still spin are not the same for both, and sides of a step of two threads differed by a sixth for it.
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

    def go_on(self) -> None:
        """Give the next turn when no launch has one and every launch that has not left waits for one."""
        present = [slot for slot in range(self._slots) if slot not in self._left]
        if self._active is not None or not present or any(slot not in self._waiting for slot in present):
            return
        least = min(self._waiting[slot][0] for slot in present)
        behind = [slot for slot in present if self._waiting[slot][0] == least]
        slot = self._active = self._next(behind)
        _, connection = self._waiting.pop(slot)
        with contextlib.suppress(OSError):  # the launch has died; the end of its connection is heard next
            connection.sendall(_GO)


def run_interleaved(launches: Sequence[Callable[[TurnSlot], T]], abort: Callable[[], None]) -> list[T]:
    """Run launches at the same time, the first in this thread, and return their results.

    When one launch raises, the others run to their end first. The error of a launch that did not just wait for its
    turn is raised before that of one that did, or that ran out of time after it had waited for one that failed.
    ``abort`` ends the other launches when this thread is interrupted.
    """
    __tracebackhide__ = True

    errors: dict[int, Exception] = {}

    def innocent(slot: int) -> bool:
        late = isinstance(errors[slot], RanksTimedOut) and bool(server.waited_for(slot) & errors.keys())
        return late or slot in server.held_up

    def run(slot: int) -> T | None:
        __tracebackhide__ = True
        try:
            return launches[slot](server.turns(slot))
        except Exception as error:  # noqa: BLE001 - raised below
            errors[slot] = error
            return None
        finally:
            server.leave(slot)

    others: list[Future[T | None]] = []
    with TurnServer(len(launches)) as server, ThreadPoolExecutor(len(launches), "ddpperf-launch") as pool:
        try:
            others += [pool.submit(run, slot) for slot in range(1, len(launches))]
            results = [run(0), *(other.result() for other in others)]
        except BaseException:  # Ctrl-C, or pytest is to end
            abort()
            while wait(others, _ABORT_SECONDS).not_done:  # one may have begun just after the abort
                abort()
            raise
    if server.error is not None:
        raise LaunchError(f"interleaved launches got no more turns: {server.error!r}") from server.error
    if errors:
        raise errors[min(errors, key=lambda slot: (innocent(slot), slot))]
    return cast("list[T]", results)


def _user_of(connection: socket.socket) -> int:
    """The user id of the process at the other end."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(peer)[1]
    return uid


class TurnClient:
    """A rank's side: with ``asking``, which rank 0 has, it asks for the turns of all ranks of its launch.

    With ``threads``, the rank computes in several threads, which have to come to rest before a turn ends.
    """

    def __init__(self, turns: TurnSlot, *, asking: bool, threads: bool = False) -> None:
        self._turns = turns
        self._asking = asking
        self._threads = threads
        self._connection: socket.socket | None = None

    def rest(self) -> None:
        """Wait until no thread of this process computes: those of OpenMP spin for milliseconds after their work.

        The launch whose turn is next would share its cores with them. Threads that do not come to rest, such as those
        that load data, are not waited for again.
        """
        for _ in range(_MOST_RESTS if self._threads else 0):  # a count: a process that was stopped is not restless
            before = time.process_time()
            time.sleep(_REST_SECONDS)
            if time.process_time() - before < _REST_SHARE * _REST_SECONDS:
                return
        self._threads = False

    def wait(self, progress: float = 1.0) -> None:
        """Give back this launch's turn and wait for the next; ``progress`` is the done part of its timed steps."""
        if not self._asking:
            return
        if self._connection is None:
            self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._connection.connect(self._turns.address)
        go = b""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.sendall(_REQUEST.pack(self._turns.token, self._turns.slot, progress))
            go = self._connection.recv(len(_GO))
        if go != _GO:  # to go on without a turn would be to time steps beside another launch
            raise LaunchError("this launch waited for its turn, and the controller has stopped giving turns")

    def close(self) -> None:
        """Give back the turn, for good."""
        if self._connection is not None:
            self._connection.close()
