"""Messages between a rank and its controller: pickles, each behind its length, over a stream socket."""

from __future__ import annotations

import pickle
import socket
import struct

_LENGTH = struct.Struct("!Q")
_CHUNK = 1 << 20


class Channel:
    """One end of a rank's socket.

    The controller never waits in it: a rank may be killed in the middle of a message while a process that it left
    behind holds the other end open, so that no end of file ever comes.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._received = bytearray()
        self.closed = False

    def fileno(self) -> int:
        """The descriptor, for selectors."""
        return self._socket.fileno()

    def send(self, message: object) -> None:
        """Send, waiting as long as it takes; a receiver that is gone is no error: there is nobody left to tell."""
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            self._socket.sendall(_LENGTH.pack(len(body)))
            self._socket.sendall(body)
        except (BrokenPipeError, ConnectionResetError):
            self.closed = True

    def received(self) -> list[object]:
        """The messages that have arrived completely by now. Sets ``closed`` at the end of the stream."""
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
        """Tell the other end that nothing more will be sent."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.closed = True

    def wait_for_dismissal(self) -> None:
        """Wait until the other end has nothing more to say, or is gone."""
        try:
            while self._socket.recv(_CHUNK):
                pass
        except ConnectionResetError:
            self.closed = True

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
