"""A client of NCCL's RAS service, which reports NCCL's state over TCP on each node, from version 2.24 on."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

from pytest_ddpperf.launch.environment import RAS_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SECONDS = 2.0
_OTHERS_SECONDS = 1  # in which the process that answers waits for the others
_MOST = 16 * 1024  # bytes of an answer


def status(environ: Mapping[str, str], seconds: float = _SECONDS) -> str:
    """Returns the status text of NCCL's RAS service at the address in ``environ``; empty if it takes too long."""
    host, _, port = environ.get(RAS_ADDRESS, "").rpartition(":")
    answer = bytearray()
    deadline = time.monotonic() + seconds
    with (
        contextlib.suppress(OSError, ValueError),
        socket.create_connection((host.strip("[]"), int(port)), seconds) as peer,
    ):
        lines = _lines(peer, deadline)
        peer.sendall(b"CLIENT PROTOCOL 2\n")
        if not next(lines, b"").upper().startswith(b"SERVER PROTOCOL "):
            return ""
        peer.sendall(b"TIMEOUT %d\n" % _OTHERS_SECONDS)
        if next(lines, b"").upper() != b"OK\n":
            return ""
        peer.sendall(b"STATUS\n")
        for line in lines:
            answer += line
            if len(answer) > _MOST:
                break
    return answer[:_MOST].decode(errors="replace").strip()


def _lines(peer: socket.socket, deadline: float) -> Iterator[bytes]:
    """Yields the lines that a peer sends until it closes the connection; raises OSError at the deadline."""
    rest = b""
    while True:
        peer.settimeout(max(0.001, deadline - time.monotonic()))
        received = peer.recv(4096)
        *whole, rest = (rest + received).splitlines(keepends=True) or [b""]
        if rest.endswith(b"\n") or not received:
            whole, rest = [*whole, rest], b""
        yield from filter(None, whole)
        if not received:
            return
