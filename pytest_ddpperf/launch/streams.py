"""The data that a rank sends its controller: messages over a socket, and its output in files without a name."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hmac
import math
import os
import pickle
import re
import select
import socket
import struct
import tempfile
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import IO, TYPE_CHECKING

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch.messages import numbers
from pytest_ddpperf.units import format_count

if TYPE_CHECKING:
    from _typeshed import HasFileno

OUTPUT_LIMIT = 64 * 1024  # bytes
REPORTED = 20  # lines of each stream in the report of a test
_MOVED = re.compile(r"\x1b\[[0-9;?]*[A-HJK]")  # of a terminal's cursor: progress bars go up and down
_CPP_STACK = re.compile(  # torch prints it after a warning of c10d, and the user's lines are far above it
    r"^(?:Exception raised from .*\(most recent call first\):\n)?(?:(?:frame #\d+: |<omitting python frames>).*\n)+\n?",
    re.MULTILINE,
)
_HEADER = struct.Struct("!8sQ")  # of a message: a magic word and the length of what follows, a MAC first
_MAC_BYTES = 32
_MAGIC = b"ddpperf\n"
_REQUEST = b"?"
_CHUNK = 1 << 20
_MAX_LENGTH = 1 << 36  # bytes; a longer message would not fit into memory next to the object that it was made of
# Bound here, because users' code may patch these functions.
_dumps, _send, _recv = pickle.dumps, socket.socket.send, socket.socket.recv
_compare, _digest = hmac.compare_digest, hmac.digest
_KEEP_SIZE_AND_PUNCH_HOLE = 3  # of fallocate(2)


def readable(files: Iterable[HasFileno | int], seconds: float | None) -> set[int]:
    """Waits at most ``seconds`` for data, and returns the descriptors of ``files`` that have data."""
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(None if seconds is None else math.ceil(seconds * 1000))}


class GarbledMessage(Exception):
    """The error if the received bytes are not a message of the peer."""


class Frames:
    """The messages in a stream of bytes, each after a header with a magic word, a length and a MAC.

    The MAC covers the sender's name (``ours`` or ``theirs``), the message's number and its body. Nobody without the
    ``key`` can add, change, repeat or remove a message.
    """

    def __init__(self, key: bytes = b"", ours: bytes = b"", theirs: bytes = b"") -> None:
        self._key, self._ours, self._theirs = key, ours, theirs
        self._sent = self._taken = 0
        self.received = bytearray()  # what has arrived of bodies that have not been taken

    def header(self, body: bytes) -> bytes:
        """Returns the bytes to send in front of the next message: magic word, length and MAC."""
        mac = self._mac(self._ours, self._sent, body)
        self._sent += 1
        return _HEADER.pack(_MAGIC, len(mac) + len(body)) + mac

    def take(self) -> bytes | None:
        """Returns the next received message, or None if it is incomplete; raises GarbledMessage for invalid bytes."""
        if not _MAGIC.startswith(self.received[: len(_MAGIC)]):
            raise GarbledMessage
        if len(self.received) < _HEADER.size:
            return None
        start, length = _HEADER.size, _HEADER.unpack_from(self.received)[1]
        if length > _MAX_LENGTH:
            raise GarbledMessage
        if len(self.received) < start + length:
            return None
        mac, body = self.received[start : start + _MAC_BYTES], bytes(self.received[start + _MAC_BYTES : start + length])
        if not _compare(mac, self._mac(self._theirs, self._taken, body)):
            raise GarbledMessage
        self._taken += 1
        del self.received[: start + length]
        return body

    def _mac(self, sender: bytes, number: int, body: bytes) -> bytes:
        return _digest(self._key, sender + number.to_bytes(8, "big") + body, "sha256")


class Channel:
    """One end of a connection that carries pickled messages.

    ``received`` never waits for the stream's end, because a child process of a killed rank may keep the socket open.
    """

    def __init__(self, connected: socket.socket, frames: Frames | None = None) -> None:
        self._socket = connected
        self._frames = frames or Frames()
        self._sending = threading.Lock()
        self.closed = False
        self.error: OSError | None = None  # that has ended the connection

    def fileno(self) -> int:
        """Returns the socket's descriptor, for selectors."""
        return self._socket.fileno()

    def send(self, message: object) -> None:
        """Sends a message and waits until it is written; does not fail if the receiver is gone."""
        try:
            self.send_bytes(_dumps(message, protocol=pickle.HIGHEST_PROTOCOL))
        except (BrokenPipeError, ConnectionResetError):
            self.closed = True

    def send_bytes(self, body: bytes) -> None:
        """Sends a message that is not a pickle; raises OSError if the other end is gone."""
        with self._sending:
            for data in (self._frames.header(body), body):
                view = memoryview(data)
                while view:  # unlike in ``sendall``, the socket's limit is for some of it, however large it is
                    view = view[_send(self._socket, view[:_CHUNK]) :]

    def received(self) -> list[object]:
        """Returns the messages that have arrived completely, and sets ``closed`` at the end of the stream.

        Raises GarbledMessage if the received bytes are not a message; nothing more is read.
        """
        messages: list[object] = []
        try:
            while True:
                while (body := self._frames.take()) is not None:
                    messages.append(pickle.loads(body))
                if self.closed or not readable([self._socket], 0):
                    break
                try:
                    data = self._socket.recv(_CHUNK)
                except OSError as error:
                    data, self.error = b"", error
                self.closed = not data
                self._frames.received += data
        except Exception as error:  # garbled data may be a pickle that raises anything
            self.closed = True
            if not messages:
                raise GarbledMessage from error
        return messages

    def request(self) -> None:
        """Asks a rank for the collectives that it has called; some ranks never answer, and ignore the request."""
        with contextlib.suppress(OSError):  # it may have ended, and its last message not been read
            self._socket.send(_REQUEST, socket.MSG_DONTWAIT)

    def asked(self) -> bool:
        """Waits for a request of the controller; returns False if the controller has dismissed this rank or is gone."""
        return bool(_recv(self._socket, len(_REQUEST)))

    def dismiss(self) -> None:
        """Signals to the other end that no message will follow."""
        with contextlib.suppress(OSError):  # the same
            self._socket.shutdown(socket.SHUT_WR)


# torch 2.8 and 2.9 print it to stdout for each group.
_OF_GLOO = re.compile(rb"^\[Gloo\] Rank \d+ is connected to \d+ peer ranks\..*\n", re.MULTILINE)


@dataclass(frozen=True)
class RankOutput:
    """The text that a rank has printed, cut to the last 64 KiB of each stream."""

    stdout: str = ""
    stderr: str = ""


def open_output() -> IO[bytes]:
    """Opens a temporary file without a name for one stream of a process: no crash can leave it behind."""
    try:
        return tempfile.TemporaryFile(prefix="ddpperf-", buffering=0)
    except OSError as error:
        if error.errno == errno.EMFILE:  # the caller knows for how many ranks
            raise
        reason = f"the output of ranks cannot be stored in {tempfile.tempdir or 'TMPDIR'}: {error.strerror}"
        raise LaunchError(f"{reason}; set TMPDIR to a folder that can be written") from None


def read_output(file: IO[bytes], title: str, limit: int = OUTPUT_LIMIT, since: int = 0) -> str:
    """Returns a stream's text after byte ``since``, cut to its last ``limit`` bytes; ``title`` names the stream."""
    size = os.fstat(file.fileno()).st_size - since
    start = max(0, size - limit)
    text = _OF_GLOO.sub(b"", os.pread(file.fileno(), limit, since + start)).decode(errors="replace")
    return f"[the first {start} of {size} bytes of {title} are cut here]\n{text}" if start else text


class FollowedOutput:
    """A reader of new lines of a stream; each call of ``lines`` returns at most the last 64 KiB of new text."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._position = 0

    def lines(self, *, last: bool = False) -> list[str]:
        """Returns the new complete lines, and with ``last`` also an incomplete line at the end."""
        size = os.fstat(self._file.fileno()).st_size
        start = max(self._position, size - OUTPUT_LIMIT)
        skipped = [f"[{start - self._position} bytes are cut here]"] if start > self._position else []
        text = os.pread(self._file.fileno(), size - start, start)
        taken = text if last else text[: text.rfind(b"\n") + 1]
        self._position = start + len(taken)
        return skipped + _OF_GLOO.sub(b"", taken).decode(errors="replace").splitlines()


def trim_output(file: IO[bytes]) -> None:
    """Frees the disk space of a long stream, except the last 64 KiB; offsets in the file stay valid."""
    status = os.fstat(file.fileno())
    if status.st_blocks * 512 > 16 * OUTPUT_LIMIT:
        span = ctypes.c_longlong(0), ctypes.c_longlong(status.st_size - OUTPUT_LIMIT)
        ctypes.CDLL(None).fallocate(file.fileno(), _KEEP_SIZE_AND_PUNCH_HOLE, *span)


def titled(outputs: Iterable[tuple[int, RankOutput]]) -> tuple[tuple[str, str], ...]:
    """Returns ranks' output with titles for the test's report, such as ``rank 1 stderr``.

    Only the last ``REPORTED`` lines of a stream are shown. Omitted are C++ stacks, and lines that are also in a lower
    rank's stream of the same name. A line that was overwritten, as by a progress bar, is shown in its last state.
    """
    ranks = list(outputs)
    sections: list[tuple[int, str, str]] = []
    for name in ("stdout", "stderr"):
        alike: dict[str, list[int]] = {}
        for rank, output in ranks:
            printed = _CPP_STACK.sub("[a C++ stack is omitted; pytest -s shows all]\n", getattr(output, name))
            alike.setdefault("\n".join(map(_last_state, printed.split("\n"))), []).append(rank)
        known: set[str] = set()
        for text, group in alike.items():
            if text.strip():
                lines = text.rstrip("\n").split("\n")
                sections.append((group[0], f"{numbers(group)} {name}", _reported(lines, known)))
                known.update(lines)
    return tuple((title, text) for _, title, text in sorted(sections, key=itemgetter(0)))


def _last_state(line: str) -> str:
    """Returns the final text of a line that was overwritten repeatedly."""
    states = _MOVED.sub("", line).split("\r")
    return next((state for state in reversed(states) if state.strip()), "")


def _reported(lines: Sequence[str], known: Collection[str]) -> str:
    """Returns the last lines that are not in ``known``, after a note on the omitted lines."""
    new = [line for line in lines if line not in known or not line.strip()]
    shown = new[-REPORTED:]
    before, repeated = len(new) - len(shown), len(lines) - len(new)
    said = [
        *([f"{format_count(before, 'line')} before these"] if before else []),
        *([f"{format_count(repeated, 'line')} that an earlier rank printed"] if repeated else []),
    ]
    notes = [f"[omitted: {' and '.join(said)}; pytest -s shows all]"] if said else []
    return "\n".join([*notes, *shown]) + "\n"
