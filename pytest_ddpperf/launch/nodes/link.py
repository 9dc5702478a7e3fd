"""A connection between two processes that share a key: each proves that it knows the key, and each message bears a MAC.

The messages are pickles, so none is loaded before its MAC is checked: nobody without the key can make a process load
one. Of a peer that nothing but the key is known of, only messages of given classes are. Messages are not encrypted.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import pickle
import secrets
import socket
import struct
import threading
import time

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch.streams import readable

KEY_BYTES = 32
_GREETING = b"pytest-ddpperf link 1\n"
_NONCE_BYTES = _MAC_BYTES = 32
_HEADER = struct.Struct("!Q32s")  # length of what follows, and its MAC
_MAX_LENGTH = 1 << 36
_CHUNK = 1 << 20
_HANDSHAKE_SECONDS = 5.0
_SILENT_SECONDS = 4  # after which the kernel gives a peer up that answers nothing: its machine or the network is gone
_SEND_SECONDS = 20.0  # in which a peer that lives takes some of what it is sent


class LinkEnded(LaunchError):
    """The other end of a link is gone."""


class ForeignPeer(Exception):
    """Who has connected does not know the key."""


class Link:
    """One end of a connection whose peer has proved to know the key; any thread may send, one receives."""

    def __init__(self, connected: socket.socket, key: bytes, *, serving: bool, name: str = "the other process") -> None:
        self.name = name  # of the peer, in errors
        self._socket, self._key = connected, key
        self._sent = self._taken = 0
        self._ours, self._theirs = (b"s", b"c") if serving else (b"c", b"s")
        self._received = bytearray()
        self._sending = threading.Lock()

    @property
    def peer(self) -> str:
        """The address of the peer's machine."""
        return str(self._socket.getpeername()[0])

    @property
    def address(self) -> str:
        """The address of this machine as the peer knows it."""
        return str(self._socket.getsockname()[0])

    def fileno(self) -> int:
        """Give selectors the socket's descriptor."""
        return self._socket.fileno()

    def send(self, message: object) -> None:
        """Send a message; LinkEnded where the peer is gone, or takes nothing for a long time."""
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            with self._sending:
                mac = self._mac(self._ours, self._sent, body)
                self._sent += 1
                self._send_all(_HEADER.pack(len(body), mac))
                self._send_all(body)
        except OSError as error:
            raise self._ended(error) from None

    def _send_all(self, data: bytes) -> None:
        """Send all of it; unlike in ``sendall``, the socket's limit is for some of it, however large it is."""
        view = memoryview(data)
        while view:
            view = view[self._socket.send(view[:_CHUNK]) :]

    def receive(self, seconds: float | None = None, of: tuple[type, ...] = ()) -> object:
        """Wait for the next message; None if none has come in time, LinkEnded where the peer is gone.

        With ``of`` it is of these classes, and an instance of another one is not made: that ends the link.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            for message in self._messages(1, of):
                return message
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not readable([self._socket], left):
                return None
            ended = self._take()
            if ended is not None:
                raise ended

    def received(self) -> list[object]:
        """Take the messages that have arrived whole; LinkEnded where there is none and the peer is gone."""
        ended: LinkEnded | None = None
        while ended is None and readable([self._socket], 0):
            ended = self._take()
        messages = self._messages()
        if ended is not None and not messages:
            raise ended
        return messages

    def hand_over(self) -> tuple[socket.socket, bytes]:
        """The socket, for bytes that are no messages, and those that have arrived; the link is of no more use."""
        return self._socket, bytes(self._received)

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _take(self) -> LinkEnded | None:
        """Take what has arrived; gives the end of the link, where that is it."""
        try:
            data = self._socket.recv(_CHUNK)
        except OSError as error:
            return self._ended(error)
        self._received += data
        return None if data else self._ended()

    def _messages(self, most: int | None = None, of: tuple[type, ...] = ()) -> list[object]:
        found: list[object] = []
        while len(self._received) >= _HEADER.size and len(found) != most:
            length, mac = _HEADER.unpack_from(self._received)
            end = _HEADER.size + length
            if length > _MAX_LENGTH:
                raise self._ended(ValueError("what came over the network is no message of this run"))
            if len(self._received) < end:
                break
            body = bytes(self._received[_HEADER.size : end])
            if not hmac.compare_digest(mac, self._mac(self._theirs, self._taken, body)):
                raise self._ended(ValueError("what came over the network is no message of this run"))
            self._taken += 1
            del self._received[:end]
            found.append(self._made_of(of, body) if of else pickle.loads(body))
        return found

    def _made_of(self, known: tuple[type, ...], body: bytes) -> object:
        try:
            return _Unpickler(body, known).load()
        except Exception as error:  # noqa: BLE001  what is no pickle may raise anything
            raise self._ended(error) from None

    def _mac(self, sender: bytes, number: int, body: bytes) -> bytes:
        return _digest(self._key, sender + struct.pack("!Q", number) + body)

    def _ended(self, error: Exception | None = None) -> LinkEnded:
        why = f" ({error})" if error is not None and str(error) else ""
        return LinkEnded(f"{self.name} is gone: its connection has ended{why}")


class _Unpickler(pickle.Unpickler):
    """Loads what is made of some classes and of plain data, and so runs nothing that its sender has thought of."""

    def __init__(self, body: bytes, known: tuple[type, ...]) -> None:
        super().__init__(io.BytesIO(body))
        self._known = {(kind.__module__, kind.__name__): kind for kind in known}

    def find_class(self, module: str, name: str) -> type:
        """The class of that name; UnpicklingError for any but those that are known."""
        if (module, name) not in self._known:
            raise pickle.UnpicklingError(f"its message is made of {module}.{name}")
        return self._known[module, name]


def connect(address: tuple[str, int], key: bytes, *, seconds: float = _HANDSHAKE_SECONDS, name: str = "") -> Link:
    """A link to who listens at this address.

    Raises:
        ForeignPeer: who answers does not know the key.
        OSError: nobody answers.
    """
    connected = socket.create_connection(address, seconds)
    try:
        return Link(connected, _prove(connected, key, serving=False), serving=False, name=name or "the controller")
    except BaseException:
        connected.close()
        raise


def accept(connected: socket.socket, key: bytes) -> Link:
    """A link to who has connected; ForeignPeer where that one does not know the key, and says so in time."""
    connected.settimeout(_HANDSHAKE_SECONDS)
    try:
        return Link(connected, _prove(connected, key, serving=True), serving=True)
    except BaseException:
        connected.close()
        raise


def _prove(connected: socket.socket, key: bytes, *, serving: bool) -> bytes:
    """Prove to know the key and have it proved, each by a challenge that is used once; return the key of this link."""
    ours = secrets.token_bytes(_NONCE_BYTES)
    deadline = time.monotonic() + _HANDSHAKE_SECONDS
    try:
        connected.sendall(_GREETING + ours)
        greeting = _exactly(connected, len(_GREETING) + _NONCE_BYTES, deadline)
        theirs = greeting[len(_GREETING) :]
        nonces = ours + theirs if serving else theirs + ours  # the server's first
        labels = (b"server", b"client") if serving else (b"client", b"server")
        # The client proves first: who scans ports learns nothing that is made of the key.
        if not serving:
            connected.sendall(_digest(key, labels[0] + nonces))
        proof = _exactly(connected, _MAC_BYTES, deadline)
        if not greeting.startswith(_GREETING) or not hmac.compare_digest(proof, _digest(key, labels[1] + nonces)):
            raise ForeignPeer("who has connected does not know the key")
        if serving:
            connected.sendall(_digest(key, labels[0] + nonces))
    except OSError as error:
        raise ForeignPeer(f"who has connected does not know the key: {error}") from None
    _give_up_a_silent_peer(connected)
    return _digest(key, b"link" + nonces)


def _exactly(connected: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        connected.settimeout(max(0.001, deadline - time.monotonic()))  # for all of it: a peer may send byte by byte
        part = connected.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the connection has ended")
        data += part
    return data


def _give_up_a_silent_peer(connected: socket.socket) -> None:
    """Let the kernel ask an idle peer each second, and end the connection where the peer's machine does not answer."""
    connected.settimeout(_SEND_SECONDS)
    if connected.family in {socket.AF_INET, socket.AF_INET6}:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, 1),
            (socket.TCP_KEEPINTVL, 1),
            (socket.TCP_KEEPCNT, _SILENT_SECONDS),
            (socket.TCP_USER_TIMEOUT, int(_SEND_SECONDS * 1000)),  # also where the peer lives, and takes nothing
        ):
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


def _digest(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")
