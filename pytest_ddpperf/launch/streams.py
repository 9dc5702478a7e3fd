"""What a rank sends its controller: messages over a socket, and its output in files without a name."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

OUTPUT_LIMIT = 64 * 1024  # bytes
_LENGTH = struct.Struct("!Q")
_CHUNK = 1 << 20


class Channel:
    """One end of a rank's socket; each message is a pickle with its length in front.

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


@dataclass(frozen=True)
class RankOutput:
    """The text that a rank has printed, cut to the last 64 KiB of each stream."""

    stdout: str = ""
    stderr: str = ""


def open_output() -> IO[bytes]:
    """Open a file for one stream of one process; no crash can leave it behind."""
    return tempfile.TemporaryFile(prefix="ddpperf-", buffering=0)


def read_output(file: IO[bytes], title: str, limit: int = OUTPUT_LIMIT) -> str:
    """Read the last ``limit`` bytes of a stream without moving the writer's position."""
    size = os.fstat(file.fileno()).st_size
    start = max(0, size - limit)
    text = os.pread(file.fileno(), limit, start).decode(errors="replace")
    return f"[the first {start} of {size} bytes of {title} are cut here]\n{text}" if start else text


def titled(outputs: Iterable[tuple[int, RankOutput]]) -> tuple[tuple[str, str], ...]:
    """Give each stream that is not empty a title for the test's report, such as ``rank 1 stderr``."""
    return tuple(
        (f"rank {rank} {name}", text)
        for rank, output in outputs
        for name, text in (("stdout", output.stdout), ("stderr", output.stderr))
        if text.strip()
    )
