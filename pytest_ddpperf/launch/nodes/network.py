"""Addresses and interfaces of this machine."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.instruments.host import kernel_text
from pytest_ddpperf.launch.environment import INTERFACES

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915
_ANY_PORT = 9  # nothing is sent there: the kernel only looks up the route


def interface_of(address: str, environ: Mapping[str, str]) -> str:
    """Returns the network interface for ranks of several nodes: the user's choice, else the one with ``address``."""
    known = addresses()
    for named in filter(None, map(environ.get, INTERFACES)):
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
    """Returns this machine's IP address on the network interface that the user chose, else on the route to ``other``.

    ``other``: name or address of a node, which may be this node; empty if no node is known.
    """
    for named in filter(None, map(environ.get, INTERFACES)):
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
