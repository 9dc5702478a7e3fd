"""A link between two network namespaces with a rate and a delay, for kernels without netem: packets pass this process.

    python benchmarks/shaped_link.py NAMESPACE NAMESPACE --rate 125e6 --delay 1e-3

Each namespace gets a TUN device of its own name. A packet leaves when the link is free, takes its bytes at the rate,
and arrives after the delay. Prints ``ready``, and runs until its standard input ends.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_PACKET = 1 << 16
_QUEUED = 4096  # packets; more are lost, as in a router
_SPIN_SECONDS = 0.0002  # which a wait may end late


def device(namespace: str) -> int:
    """The descriptor of a new TUN device in a namespace, of the same name."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/run/netns/{namespace}").open(encoding="ascii") as there:
        if libc.setns(there.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", namespace.encode(), _IFF_TUN | _IFF_NO_PI))
    return descriptor


@dataclass
class Direction:
    """Packets on their way from one device to the other."""

    source: int
    sink: int
    rate: float  # bytes/s
    delay: float  # seconds
    free: float = 0.0  # when the link has sent what it was given
    queue: collections.deque[tuple[float, bytes]] = field(default_factory=collections.deque)

    def take(self) -> None:
        """Take the packets that wait at the source."""
        while True:
            try:
                packet = os.read(self.source, _PACKET)
            except BlockingIOError:
                return
            if len(self.queue) < _QUEUED:
                self.free = max(self.free, time.monotonic()) + len(packet) / self.rate
                self.queue.append((self.free + self.delay, packet))

    def give(self) -> None:
        """Deliver what is due."""
        while self.queue and self.queue[0][0] <= time.monotonic():
            with contextlib.suppress(OSError):  # the device is not up
                os.write(self.sink, self.queue.popleft()[1])

    @property
    def due(self) -> float:
        """When the next packet arrives."""
        return self.queue[0][0] if self.queue else float("inf")


def forward(first: int, second: int, rate: float, delay: float) -> None:
    """Carry packets both ways until standard input ends."""
    ways = [Direction(first, second, rate, delay), Direction(second, first, rate, delay)]
    while True:
        left = min(way.due for way in ways) - time.monotonic()
        wait = None if left == float("inf") else max(0.0, left - _SPIN_SECONDS)
        ready, _, _ = select.select([first, second, sys.stdin], [], [], wait)
        if sys.stdin in ready:
            return
        for way in ways:
            if way.source in ready:
                way.take()
            way.give()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("namespaces", nargs=2)
    parser.add_argument("--rate", type=float, required=True, help="bytes/s")
    parser.add_argument("--delay", type=float, required=True, help="seconds each way")
    options = parser.parse_args()
    first, second = map(device, options.namespaces)
    print("ready", flush=True)
    forward(first, second, options.rate, options.delay)


if __name__ == "__main__":
    main()
