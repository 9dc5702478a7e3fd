"""The network between nodes: the addresses of this machine, and the tunnel to the store of a launch."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.instruments.host import kernel_text
from pytest_ddpperf.launch import environment, streams
from pytest_ddpperf.launch.link import ForeignPeer, Link, LinkEnded, accepted, connect, end, welcome

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_ddpperf.launch.nodes.meeting import Card

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915
_ANY_PORT = 9  # nothing is sent there: the kernel only looks up the route
_CHUNK = 1 << 16
_SECONDS = 10.0


def interface_of(address: str, environ: Mapping[str, str]) -> str:
    """Returns the interface for ranks of several nodes: the user's choice, or the interface with ``address``."""
    known = addresses()
    for named in filter(None, map(environ.get, environment.INTERFACES)):
        if named in {name for name, _ in known}:  # NCCL's may be a list, or a part of a name
            return named
    for name, other in known:
        if ipaddress.ip_address(other) == ipaddress.ip_address(address.partition("%")[0]):
            return name
    raise LaunchError(f"no network interface has the address {address}; name an interface: GLOO_SOCKET_IFNAME=eth0")


def addresses() -> list[tuple[str, str]]:
    """Returns name and address of each network interface that has an address, IPv4 first."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # without an address
                continue
            found.append((name, socket.inet_ntoa(answer[20:24])))
    lines = kernel_text(Path("/proc/net/if_inet6")).splitlines()
    found += [(words[5], str(ipaddress.IPv6Address(bytes.fromhex(words[0])))) for words in map(str.split, lines)]
    return found


def own_address(other: str, environ: Mapping[str, str]) -> str:
    """Returns this machine's IP address on the interface that the user chose, or else on the route to ``other``.

    ``other`` is the name or address of a node. It is empty if no node is known.
    """
    for named in filter(None, map(environ.get, environment.INTERFACES)):
        for name, address in addresses():
            if name == named:
                return address
    for host in filter(None, (other, socket.gethostname())):
        try:
            kind, _, _, _, target = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
            with socket.socket(kind, socket.SOCK_DGRAM) as asking:
                asking.connect(target)
                found = str(asking.getsockname()[0])
        except OSError:
            continue
        if not ipaddress.ip_address(found.partition("%")[0]).is_loopback:  # many machines resolve their own name to it
            return found
    for _, address in addresses():
        if not ipaddress.ip_address(address).is_loopback:
            return address
    raise LaunchError("other nodes can reach no address of this node; name an interface: GLOO_SOCKET_IFNAME=eth0")


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
    """Forwards data between a link and the TCPStore at ``port`` of this node, until one of them ends."""
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
            for descriptor in streams.readable(ways, None):
                source, sink = ways[descriptor]
                data = source.recv(_CHUNK)
                if not data:
                    return
                sink.sendall(data)
