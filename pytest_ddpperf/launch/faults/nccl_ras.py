"""A client of NCCL's RAS service, which reports NCCL's state over TCP on each node, from version 2.24 on."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping

from pytest_ddpperf.launch.environment import RAS_ADDRESS

_SECONDS = 2.0
_OTHERS_SECONDS = 1  # in which the process that answers waits for the others
_MOST = 16 * 1024  # bytes of an answer


def status(environ: Mapping[str, str], seconds: float = _SECONDS) -> str:
    """Returns the status text of NCCL's RAS service at the address in ``environ``; empty if it takes too long."""
    host, _, port = environ.get(RAS_ADDRESS, "").rpartition(":")
    answer = b""
    deadline = time.monotonic() + seconds
    with (
        contextlib.suppress(OSError, ValueError),
        socket.create_connection((host.strip("[]"), int(port)), seconds) as peer,
        peer.makefile("rb") as lines,
    ):
        peer.sendall(b"CLIENT PROTOCOL 2\n")
        if not lines.readline(_MOST).upper().startswith(b"SERVER PROTOCOL "):
            return ""
        peer.sendall(b"TIMEOUT %d\n" % _OTHERS_SECONDS)
        if lines.readline(_MOST).upper() != b"OK\n":
            return ""
        peer.sendall(b"STATUS\n")
        while len(answer) < _MOST and (left := deadline - time.monotonic()) > 0:
            peer.settimeout(left)
            if not (part := lines.read1(_MOST)):
                break
            answer += part
    return answer[:_MOST].decode(errors="replace").strip()
