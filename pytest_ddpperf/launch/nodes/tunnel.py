"""The tunnel to a launch's store: rank 0 serves the store on its own node, and other nodes reach it through a link."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

from pytest_ddpperf.launch.link import ForeignPeer, Link, LinkEnded, accepted, connect, end, welcome
from pytest_ddpperf.launch.streams import readable

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_ddpperf.launch.nodes.meeting import Card

_CHUNK = 1 << 16
_SECONDS = 10.0


class StoreTunnel:
    """A port on this machine's loopback that leads to ``port`` on the controller's node, while the context is open."""

    def __init__(self, card: Card, port: int) -> None:
        self._card, self._far = card, port
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listening.getsockname()[1]
        self._open: set[socket.socket] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="ddpperf-store", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        end(self._listening)
        for connected in tuple(self._open):
            end(connected)

    def _accept(self) -> None:
        for connected, _ in accepted(self._listening):
            threading.Thread(target=self._lead, args=(connected,), name="ddpperf-store", daemon=True).start()

    def _lead(self, connected: socket.socket) -> None:
        self._open.add(connected)
        # If this fails, torch reports to the rank that its store is gone.
        with contextlib.suppress(OSError, ForeignPeer):
            link = connect((self._card.host, self._card.port), self._card.key, {"store": self._far})
            with contextlib.closing(link):
                splice(connected, link)
        self._open.discard(connected)
        end(connected)


def lead_to_store(link: Link, port: int) -> None:
    """Forwards data between a link and the TCPStore at this port of this node; returns when one of them ends."""
    with (
        contextlib.closing(link),
        contextlib.suppress(OSError, LinkEnded),
        socket.create_connection(("127.0.0.1", port), _SECONDS) as connected,
    ):
        welcome(link)
        splice(connected, link)


def splice(connected: socket.socket, link: Link) -> None:
    """Copies bytes between a connection and a link until one of them ends."""
    far, first = link.hand_over()
    for one in (connected, far):
        one.settimeout(None)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):
        connected.sendall(first)
        ways = {connected.fileno(): (connected, far), far.fileno(): (far, connected)}
        while True:
            for descriptor in readable(ways, None):
                source, sink = ways[descriptor]
                data = source.recv(_CHUNK)
                if not data:
                    return
                sink.sendall(data)
