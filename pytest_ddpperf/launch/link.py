"""A connection between two processes that share a key; each end can call methods of an object at the other end.

The MAC of a message is checked before the message is unpickled: nobody without the key can make a process load a
pickle. The first message of the connecting end is JSON. Messages are not encrypted.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import json
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from pytest_ddpperf.errors import DdpperfError, LaunchError, in_a_line
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.deadlines import late
from pytest_ddpperf.launch.messages import Answer, Ask
from pytest_ddpperf.launch.streams import Channel, Frames, GarbledMessage, readable

P = ParamSpec("P")
T = TypeVar("T")

KEY_BYTES = 32
_GREETING = b"pytest-ddpperf link 2\n"
_NONCE_BYTES = 32
_MAX_FIRST = 1 << 20  # bytes of the first message, and of data read with it
_CHUNK = 1 << 20
_HANDSHAKE_SECONDS, _RETRY_SECONDS = 5.0, 0.05
_SILENT_SECONDS = 4  # after which the kernel gives a peer up that answers nothing: its machine or the network is gone
_SEND_SECONDS = 20.0  # in which a peer that lives takes some of what it is sent


class LinkEnded(LaunchError):
    """The error if the process at the other end of a link is gone."""


class NoAnswer(LinkEnded):
    """The error if the process at the other end of a link has not answered in time."""


class ForeignPeer(Exception):
    """The error if the process at the other end of a new connection does not know the secret key."""


@dataclass(frozen=True)
class Close:
    """The message that ends a launch, or makes a task of torchrun, srun or mpirun exit with ``status``."""

    status: int = 0


class Link(Channel):
    """One end of a connection to a process that knows the key. Any thread may send, but only one thread may receive.

    Every method raises LinkEnded if the peer is gone, or reads nothing for 20 s.
    """

    def __init__(self, connected: socket.socket, frames: Frames, name: str = "the other process") -> None:
        super().__init__(connected, frames)
        self.name = name  # the peer's, in errors
        self._arrived: list[object] = []
        self._numbers = itertools.count()

    @property
    def peer(self) -> str:
        """Returns the address of the peer's machine."""
        return str(self._socket.getpeername()[0])

    @property
    def address(self) -> str:
        """Returns the address of this machine as the peer sees it."""
        return str(self._socket.getsockname()[0])

    def ask(self, method: Callable[Concatenate[Any, P], T], *arguments: P.args, **named: P.kwargs) -> Question[T]:
        """Asks the peer to call a method of the object at its end of the link; returns the pending question."""
        number = next(self._numbers)
        self.send(Ask(number, method.__name__, arguments, named))
        return Question(self, number)

    def reply(self, message: object, served: object) -> None:
        """Calls the method of ``served`` that the peer requests, and sends the result, or the reason of a failure."""
        if not isinstance(message, Ask):
            return
        try:
            answer = Answer(message.number, getattr(served, message.method)(*message.arguments, **message.named))
        except LinkEnded:
            raise
        except Exception as error:  # noqa: BLE001  the peer reports it
            answer = Answer(message.number, None, str(error) if isinstance(error, DdpperfError) else in_a_line(error))
        self.send(answer)

    def send_bytes(self, body: bytes) -> None:
        """Sends a message that is not a pickle."""
        try:
            super().send_bytes(body)
        except OSError as error:
            if isinstance(error, TimeoutError) and error.errno is None:  # the kernel's has a number, and comes earlier
                late(f"{self.name} read nothing for {_SEND_SECONDS:g} s, while a message waited")
            raise self._ended(error) from None

    def receive(self, seconds: float | None = None) -> object:
        """Returns the next message; None if none comes in ``seconds``."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not (arrived := self.received()):
            if not self._readable(None if deadline is None else max(0.0, deadline - time.monotonic())):
                return None
        first, *self._arrived = arrived
        return first

    def received(self) -> list[object]:
        """Returns the messages that have arrived completely; raises LinkEnded if none is left and the peer is gone."""
        messages, self._arrived = self._arrived, []
        try:
            messages += super().received()
        except GarbledMessage:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # what arrives later is read no more
            if not messages:
                raise self._ended(ValueError("the received data is not a message of this run")) from None
        if self.closed and not messages:
            raise self._ended(self.error)
        return messages

    def hand_over(self) -> tuple[socket.socket, bytes]:
        """Returns the socket and the bytes received so far, to use as a raw stream; the link is then unusable."""
        return self._socket, bytes(self._frames.received)

    def close(self) -> None:
        """Closes the connection."""
        self.closed = True
        end(self._socket)

    def _readable(self, seconds: float | None) -> bool:
        try:
            return bool(readable([self._socket], seconds))
        except ValueError:  # this end was closed
            raise self._ended() from None

    def _ended(self, error: Exception | None = None) -> LinkEnded:
        self.closed = True
        why = f" ({error})" if error is not None and str(error) else ""
        return LinkEnded(f"{self.name} is gone: its connection has ended{why}")


@dataclass(frozen=True)
class Question(Generic[T]):
    """A request that was sent over a link; its answer may not have come yet."""

    link: Link
    number: int
    asked: float = field(default_factory=time.monotonic)

    def answer(self, seconds: float, hear: Callable[[object], None] = lambda _: None) -> T:
        """Waits for the answer and returns it; passes other messages, such as late answers, on to ``hear``.

        Raises:
            LaunchError: the peer failed; the message says why.
            NoAnswer: no answer came in time.
            LinkEnded: the peer is gone.
        """
        deadline = time.monotonic() + seconds
        while True:
            message = self.link.receive(max(0.0, deadline - time.monotonic()))
            if message is None:
                raise late(NoAnswer(f"{self.link.name} did not answer within {time.monotonic() - self.asked:.0f} s"))
            if not isinstance(message, Answer) or message.number != self.number:
                hear(message)
                continue
            if message.error:
                raise LaunchError(f"{self.link.name}: {message.error}")
            found: T = message.value
            return found


def connect(address: tuple[str, int], key: bytes, hello: Mapping[str, object]) -> Link:
    """Connects to the process that listens at this address, and returns the link; ``hello`` describes this process.

    Raises:
        ForeignPeer: the process that answers does not know the key, or does not accept ``hello``.
        OSError: nobody answers.
    """
    connected = socket.create_connection(address, _HANDSHAKE_SECONDS)
    with _proving(connected) as deadline:
        frames = _greeted(connected, key, deadline, serving=False)
        link = Link(connected, frames, "the controller")
        link.send_bytes(json.dumps(hello).encode())
        _first(connected, frames, deadline)
        return link


def accept(connected: socket.socket, key: bytes) -> tuple[Link, Any]:
    """Returns a link to a connecting process, and the ``hello`` that the connecting process has sent.

    The caller calls ``welcome`` to accept the link or closes the link. Raises ForeignPeer if the process lacks the key.
    """
    with _proving(connected) as deadline:
        frames = _greeted(connected, key, deadline, serving=True)
        return Link(connected, frames), json.loads(_first(connected, frames, deadline))


@contextlib.contextmanager
def _proving(connected: socket.socket) -> Iterator[float]:
    """Yields the deadline for the handshake in this context, and closes the connection if the handshake fails."""
    try:
        yield time.monotonic() + _HANDSHAKE_SECONDS
    except BaseException as error:
        connected.close()
        if isinstance(error, (OSError, GarbledMessage, LinkEnded, ValueError)):
            raise ForeignPeer(f"the peer did not prove that it has this run's key: {error}") from None
        raise


def welcome(link: Link) -> None:
    """Accepts the link of a connecting process by a message, which also proves that this process knows the key."""
    link.send_bytes(b"{}")


def _greeted(connected: socket.socket, key: bytes, deadline: float, *, serving: bool) -> Frames:
    """Exchanges random numbers with the peer; makes the key of later messages from both numbers and ``key``.

    A valid first message then proves that its sender knows ``key``. The connecting process sends first, so a port
    scanner receives nothing that is derived from the key.
    """
    ours = secrets.token_bytes(_NONCE_BYTES)
    connected.settimeout(_HANDSHAKE_SECONDS)
    connected.sendall(_GREETING + ours)
    greeting, size = b"", len(_GREETING) + _NONCE_BYTES
    while len(greeting) < size:
        greeting += _part(connected, size - len(greeting), deadline)
    theirs = greeting[len(_GREETING) :]
    if not greeting.startswith(_GREETING):
        raise ValueError("the program at the other end of a connection is not pytest-ddpperf")
    _give_up_a_silent_peer(connected)
    nonces = ours + theirs if serving else theirs + ours  # the server's first
    ways = (b"s", b"c") if serving else (b"c", b"s")
    return Frames(hmac.digest(key, b"link" + nonces, "sha256"), *ways)


def _first(connected: socket.socket, frames: Frames, deadline: float) -> bytes:
    """Returns the first message of the other process, which proves that the other process knows the key."""
    while (body := frames.take()) is None:
        if len(frames.received) > _MAX_FIRST:
            raise ValueError("the peer's first message is too long")
        frames.received += _part(connected, _CHUNK, deadline)
    return body


def _part(connected: socket.socket, size: int, deadline: float) -> bytes:
    if not readable([connected], max(0.0, deadline - time.monotonic())):  # for all of it: it may come byte by byte
        raise TimeoutError("the peer did not answer in time")
    part = connected.recv(size)
    if not part:
        raise ConnectionResetError("the peer closed the connection")
    return part


def _give_up_a_silent_peer(connected: socket.socket) -> None:
    """Makes the kernel probe an idle peer each second, and end the connection if the peer's machine does not answer."""
    connected.settimeout(_SEND_SECONDS)
    if connected.family in {socket.AF_INET, socket.AF_INET6}:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, 1),
            (socket.TCP_KEEPINTVL, 1),
            (socket.TCP_KEEPCNT, _SILENT_SECONDS),
            (socket.TCP_USER_TIMEOUT, int(_SEND_SECONDS * 1000)),  # also if the peer lives and takes nothing
        ):
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


def accepted(listening: socket.socket) -> Iterator[tuple[socket.socket, str]]:
    """Yields each new connection with its peer's address, until another thread calls ``end(listening)``."""
    while listening.fileno() >= 0:
        with contextlib.suppress(OSError):  # too many files are open, or the socket has ended
            connected, (address, *_) = listening.accept()
            yield connected, address
            continue
        time.sleep(_RETRY_SECONDS)


def end(connected: socket.socket) -> None:
    """Ends a connection, so that threads that wait for its data stop waiting."""
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
    connected.close()
