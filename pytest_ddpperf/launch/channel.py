"""Messages between a rank and its controller over a stream socket: each is a pickle with its length in front."""

from __future__ import annotations

import pickle
import socket
import struct

_LENGTH = struct.Struct("!Q")
_CHUNK = 1 << 20


class Channel:
    """One end of a rank's socket.

    ``received`` never waits. A rank may be killed in the middle of a message while a child of it holds the socket open:
    then the end of the file never comes.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._received = bytearray()
        self.closed = False

    def fileno(self) -> int:
        """Give selectors the socket's descriptor."""
        return self._socket.fileno()

    def send(self, message: object) -> None:
        """Send a message and wait until it is written; a receiver that is gone is no error."""
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            self._socket.sendall(_LENGTH.pack(len(body)))
            self._socket.sendall(body)
        except (BrokenPipeError, ConnectionResetError):
            self.closed = True

    def received(self) -> list[object]:
        """Take the messages that have arrived completely, and set ``closed`` at the end of the stream."""
        while not self.closed:
            try:
                data = self._socket.recv(_CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:
                self.closed = True
            self._received += data
        return list(self._messages())

    def _messages(self) -> list[object]:
        messages: list[object] = []
        while len(self._received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
            if len(self._received) < end:
                break
            messages.append(pickle.loads(self._received[_LENGTH.size : end]))
            del self._received[:end]
        return messages

    def dismiss(self) -> None:
        """Tell the other end that no message will follow."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.closed = True

    def wait_for_dismissal(self) -> None:
        """Wait until the other end has dismissed this one, or is gone."""
        try:
            while self._socket.recv(_CHUNK):
                pass
        except ConnectionResetError:
            self.closed = True

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
