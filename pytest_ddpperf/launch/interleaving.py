"""Launches that run at the same time and time their steps in turns: one is at work while the others wait.

What makes a machine slower for some seconds then makes it slower for all of them, and cancels out.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import uuid
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

T = TypeVar("T")

_GO = b"\0"
_LEFT, _CLOSED = b"L", b"C"
_WISH = struct.Struct("=Bd")  # a side, and which part of its turns it has had
_PATIENCE = 0.1  # seconds


@dataclass(frozen=True)
class Turns:
    """Where a launch asks for its turns: travels to its ranks.

    Attributes:
        address: of the referee: a socket in the abstract namespace.
        side: which of the launches asks.
        sides: how many there are, each of which waits for all others.
    """

    address: str
    side: int
    sides: int


class Referee:
    """On the controller: gives launches their turns: the next one to who has had the smallest part of its own.

    So launches of many and of few turns go hand in hand to the end. Of equals it is the next in the order of their
    sides. The first turn waits until every launch has asked, so that none is still being built; one that has ended is
    not waited for.

    Args:
        sides: how many launches there are.
    """

    def __init__(self, sides: int) -> None:
        self._sides = sides
        self._address = f"\0pytest-ddpperf-{uuid.uuid4().hex}"
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(self._address)
        self._listening.listen(sides)
        self._told, self._tell = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._thread = threading.Thread(target=self._serve, name="ddpperf-referee", daemon=True)
        self._game = _Game(sides)

    @property
    def held_up(self) -> frozenset[int]:
        """The sides that a launch which ended had kept waiting, or that ended while they waited."""
        return frozenset(self._game.held_up)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._tell.send(_CLOSED)
        self._thread.join()
        for end in (self._listening, self._told, self._tell):
            end.close()

    def turns(self, side: int) -> Turns:
        """What the ranks of one launch need."""
        return Turns(self._address, side, self._sides)

    def leave(self, side: int) -> None:
        """Wait for a launch no more: it has ended, however it did."""
        self._tell.send(_LEFT + bytes([side]))

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as connections:
            selector.register(self._listening, selectors.EVENT_READ)
            selector.register(self._told, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._told:
                        message = self._told.recv(2)
                        if message == _CLOSED:
                            return
                        self._game.leave(message[1])
                    elif key.fileobj is self._listening:
                        connection, _ = self._listening.accept()
                        selector.register(connections.enter_context(connection), selectors.EVENT_READ)
                    elif isinstance(key.fileobj, socket.socket) and not self._game.hear(key.fileobj):
                        selector.unregister(key.fileobj)
                self._game.go_on()


class _Game:
    """Whose turn it is."""

    def __init__(self, sides: int) -> None:
        self._sides = sides
        self._waiting: dict[int, tuple[float, socket.socket]] = {}
        self._names: dict[socket.socket, int] = {}
        self.held_up: set[int] = set()
        self._left: set[int] = set()
        self._playing: int | None = None
        self._last = -1

    def hear(self, connection: socket.socket) -> bool:
        """Take a side's wish for its turn, which ends the one it had; False where the connection has ended."""
        try:
            said = connection.recv(_WISH.size)
        except ConnectionResetError:
            said = b""
        side, progress = _WISH.unpack(said) if said else (self._names.get(connection), 0.0)
        if side is None:
            return False
        if self._playing == side:
            self._playing = None
        if said:
            self._names[connection] = side
            self._waiting[side] = progress, connection
            self.held_up.discard(side)
        else:
            self.leave(side)
        return bool(said)

    def leave(self, side: int) -> None:
        """Go on without a side: those that wait have lost time by it, until they ask again."""
        self.held_up.update(self._waiting)
        self._left.add(side)
        self._waiting.pop(side, None)
        if self._playing == side:
            self._playing = None

    def go_on(self) -> None:
        """Give the next turn, once nobody has one and everybody who is still there waits for one."""
        there = [side for side in range(self._sides) if side not in self._left]
        if self._playing is not None or not there or any(side not in self._waiting for side in there):
            return
        least = min(self._waiting[side][0] for side in there)
        behind = [side for side in there if self._waiting[side][0] == least]
        side = next((side for side in behind if side > self._last), behind[0])
        self._playing = self._last = side
        _, connection = self._waiting.pop(side)
        with contextlib.suppress(OSError):  # it has died: its end is heard next
            connection.sendall(_GO)


def in_turns(launches: Sequence[Callable[[Turns], T]], abort: Callable[[], None]) -> list[T]:
    """What launches give back that run at the same time and take turns: the first in this thread, the others beside it.

    Args:
        launches: each runs a launch whose ranks ask for their turns there. The first one has the first turn.
        abort: ends the others, from this thread, when this one is interrupted.

    Raises:
        Exception: what a launch raised; of several errors that of one that did not just wait for its turn, then the
            first one's. All launches have ended by then.
    """
    __tracebackhide__ = True

    errors: dict[int, Exception] = {}

    def run(side: int) -> T | None:
        __tracebackhide__ = True
        try:
            return launches[side](referee.turns(side))
        except Exception as error:  # noqa: BLE001 - raised below
            errors[side] = error
            return None
        finally:
            referee.leave(side)

    others: list[Future[T | None]] = []
    with Referee(len(launches)) as referee, ThreadPoolExecutor(len(launches), "ddpperf-launch") as pool:
        try:
            others += [pool.submit(run, side) for side in range(1, len(launches))]
            results = [run(0), *(other.result() for other in others)]
        except BaseException:  # Ctrl-C, or pytest is to end
            abort()
            while wait(others, _PATIENCE).not_done:  # one may have been about to begin
                abort()
            raise
    if errors:
        # A launch that has run out of time while it waited for its turn is not to blame.
        raise errors[min(errors, key=lambda side: (side in referee.held_up, side))]
    return cast("list[T]", results)


class Waiting:
    """On a rank: the launch's place in the queue. Rank 0 asks for the turns of all ranks.

    Args:
        turns: where to ask.
        asking: whether this rank does.
    """

    def __init__(self, turns: Turns, *, asking: bool) -> None:
        self._turns = turns
        self._asking = asking
        self._connection: socket.socket | None = None

    def wait(self, progress: float = 1.0) -> None:
        """Give back the turn that this launch has; where this rank asks, return when it has the next one.

        Args:
            progress: which part of its timed steps the launch has behind it, from 0 to 1.
        """
        if not self._asking:
            return
        if self._connection is None:
            self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._connection.connect(self._turns.address)
        # A referee that is gone takes the launch along: nothing is left to wait for meanwhile.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.sendall(_WISH.pack(self._turns.side, progress))
            self._connection.recv(len(_GO))

    def close(self) -> None:
        """Give back the turn, for good."""
        if self._connection is not None:
            self._connection.close()
