"""The nodes of a run, as the controller sees them. On each node, one task of torchrun, srun or mpirun is the agent."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_ddpperf.errors import LaunchError, SettingError
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.deadlines import late
from pytest_ddpperf.launch.link import KEY_BYTES, Close, ForeignPeer, Link, LinkEnded, accept, accepted, end, welcome
from pytest_ddpperf.launch.nodes.agent import Agent
from pytest_ddpperf.launch.nodes.meeting import MEETING_SECONDS, Card, Hello, Role
from pytest_ddpperf.launch.nodes.network import interface_of, lead_to_store
from pytest_ddpperf.launch.redirection import Redirection
from pytest_ddpperf.records.launch import CpuHealth

_OPEN_SECONDS = 30.0
_PING_SECONDS, _PINGS = 5.0, 4
_MOST_STRANGERS = 64  # concurrent connections that have not yet proved that they know the key


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """Another node, with the link to its agent."""

    number: int
    hello: Hello
    link: Link
    ahead: int  # of the node's clock, in nanoseconds
    uncertain: int  # the error of ``ahead``, in nanoseconds


class Cluster:
    """All nodes of a run, as the controller sees them. ``close`` ends the tasks of the other nodes."""

    def __init__(self, host: str, own: Hello, size: int) -> None:
        self._own, self._size = own, size
        self._environ = dict(os.environ)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, 0), backlog=max(128, size), family=family)
        self.card = Card(host, self._listening.getsockname()[1], secrets.token_bytes(KEY_BYTES))
        self._met: dict[int, tuple[Link, Hello]] = {}
        self._stranger = ""  # the message about a process that connected and is no task
        self._opened: dict[tuple[int, int], Link] = {}
        self._numbers = itertools.count()
        self._news = threading.Condition()
        self._asking = threading.Lock()  # for a thread that waits for an agent's answer: no other may read it
        self._strangers = threading.Semaphore(_MOST_STRANGERS)
        self._known: frozenset[str] = frozenset()  # addresses that may connect; all may until all tasks have come
        self.nodes: tuple[Node, ...] = ()
        threading.Thread(target=self._accept, name="ddpperf-nodes", daemon=True).start()

    def gather(self, seconds: float = MEETING_SECONDS) -> None:
        """Waits for all tasks of torchrun, srun or mpirun, and chooses one task on each node as the node's agent.

        Raises:
            SettingError: a task has other versions or test files than this task, or a node's tasks see different GPUs.
            LaunchError: a task has not come in time, or another program has connected.
        """
        expected = set(range(1, self._size))
        with self._news:
            self._news.wait_for(lambda: self._stranger or expected <= self._met.keys(), seconds)
            if self._stranger:
                raise LaunchError(self._stranger)
            missing = sorted(expected - self._met.keys())
            met = dict(self._met)
        if missing:
            named = f"rank {missing[0]} of the launcher{f' and {len(missing) - 1} more' if missing[1:] else ''}"
            cure = "see its output for a failed import of a test, or check that no firewall blocks the connection"
            raise late(LaunchError(f"{named} did not connect to rank 0 within {seconds:.0f} s: {cure}"))
        self.card = replace(self.card, key=secrets.token_bytes(KEY_BYTES))  # others may have read the old one
        self._known = frozenset(link.peer for link, _ in met.values())
        for _, hello in met.values():
            self._require_alike(hello)
        of_machine: dict[str, list[Hello]] = defaultdict(list)
        for hello in (self._own, *(met[rank][1] for rank in sorted(met))):
            of_machine[hello.machine].append(hello)
        agents = [require_one_agent(hellos).rank for hellos in of_machine.values()]
        cores = {machine: frozenset().union(*(one.cores for one in hellos)) for machine, hellos in of_machine.items()}
        use_cores(cores[self._own.machine])
        found = []
        for rank, (link, hello) in sorted(met.items()):
            number = agents.index(rank) if rank in agents else None
            link.name = f"rank {rank} of the launcher" if number is None else f"node {number} ({hello.host})"
            link.send(Role(node=number, cores=cores[hello.machine], key=self.card.key))
            if number is not None:
                ahead, uncertain = offset(link)
                found.append(Node(number=number, hello=hello, link=link, ahead=ahead, uncertain=uncertain))
        self.nodes = tuple(sorted(found, key=lambda node: node.number))

    def _require_alike(self, hello: Hello) -> None:
        for name, own in self._own.needed.items():
            other = hello.needed.get(name, "none")
            if other != own:
                raise SettingError(
                    f"{name} is {own} on the node of rank 0, but {other} on {hello.host} (rank {hello.rank} of the "
                    "launcher); make them the same on all nodes"
                )

    @property
    def differences(self) -> list[str]:
        """Returns a sentence about each fact, such as the CPU, that differs between a node and the controller."""
        return [
            f"{name} is {own} on the controller, and {other} on node {node.number} ({node.hello.host})"
            for node in self.nodes
            for name, own in self._own.facts.items()
            if (other := node.hello.facts.get(name, "unknown")) != own
        ]

    @property
    def interface(self) -> str:
        """Returns the network interface of this node that ranks of several nodes use."""
        return interface_of(self.nodes[0].link.address if self.nodes else self.card.host, os.environ)

    def changes(self, environ: Mapping[str, str]) -> dict[str, str | None]:
        """Returns the changes of ``environ`` since the start of the run; a removed variable has the value None."""
        gone: dict[str, str | None] = dict.fromkeys(self._environ.keys() - environ.keys())
        return gone | {name: value for name, value in environ.items() if self._environ.get(name) != value}

    def opened(self, node: Node, preload: Sequence[str], redirection: Redirection | None) -> Link:
        """Starts a launcher on a node, with the arguments of ``Agent.open``, and returns the link to it."""
        key = node.number, next(self._numbers)
        with self._asking:
            node.link.ask(Agent.open, key[1], preload, redirection).answer(_OPEN_SECONDS)
        link = self._opened.pop(key)
        link.name = node.link.name
        return link

    def watch(self, nodes: int) -> Callable[[], dict[str, CpuHealth]]:
        """Starts to measure the load of ``nodes`` other nodes, and returns a function that ends the measurement.

        That function returns the load by other processes, by node name. The load of a silent node is unknown.
        """
        watched = self.nodes[:nodes]
        for node in watched:
            with contextlib.suppress(LinkEnded):
                node.link.ask(Agent.watch_health)

        def ended() -> dict[str, CpuHealth]:
            found, asked = {node.link.name: CpuHealth() for node in watched}, list[Any]()
            with self._asking:
                for node in watched:
                    with contextlib.suppress(LinkEnded):
                        asked.append(node.link.ask(Agent.health))
                until = time.monotonic() + _PING_SECONDS
                for question in asked:
                    with contextlib.suppress(LaunchError):
                        found[question.link.name] = question.answer(until - time.monotonic())
            return found

        return ended

    @property
    def lost(self) -> str:
        """Returns a message if the connection to an agent has ended, else an empty text."""
        with self._asking:
            try:
                for node in self.nodes:
                    node.link.received()  # nothing is awaited
            except LinkEnded as error:
                return str(error)
        return ""

    def close(self, status: int, *, first: bool = False) -> None:
        """Ends all tasks with this exit status.

        With ``first`` this process ends before the tasks: launchers take the first task that ends for the failed one.
        """
        for link, _ in tuple(self._met.values()):
            with contextlib.suppress(LinkEnded):
                link.send(Close(status))
            if not first:
                link.close()
        end(self._listening)

    def _accept(self) -> None:
        for connected, address in accepted(self._listening):
            known = self._known
            if (known and address not in known) or not self._strangers.acquire(blocking=False):
                connected.close()
                continue
            threading.Thread(target=self._welcome, args=(connected, known), name="ddpperf-nodes", daemon=True).start()

    def _welcome(self, connected: socket.socket, known: frozenset[str]) -> None:
        try:
            link, hello = accept(connected, self.card.key)
        except ForeignPeer:
            return
        finally:
            self._strangers.release()
        taken = False
        with contextlib.suppress(LinkEnded, LookupError, TypeError, ValueError):  # the peer is gone, or sent nonsense
            taken = self._taken(link, hello, known)
        if not taken:
            link.close()

    def _taken(self, link: Link, hello: Any, known: frozenset[str]) -> bool:
        """Handles the JSON that a new connection has sent; returns False if the caller must close the link."""
        match hello:
            case {"task": dict(plain)}:
                task = Hello.of(plain)
                welcome(link)
                with self._news:
                    self._meet(link, task)
                    self._news.notify_all()
            case {"launcher": [int(node), int(number)]} if known:  # before the meeting, others can read the key
                self._opened[node, number] = link  # before its agent answers that it is open
                welcome(link)
            case {"store": int(port)} if known:  # the same
                lead_to_store(link, port)
            case {"looks": _}:  # the peer asks whether its card leads to this controller
                welcome(link)
                return False
            case _:
                return False
        return True

    def _meet(self, link: Link, hello: Hello) -> None:
        """Records a task that has connected. If its rank is impossible or taken, records an error for ``gather``."""
        known, _ = self._met.setdefault(hello.rank, (link, hello))
        if known is link and hello.rank in range(1, self._size):
            return
        twice = "" if known is link else f", and so did one at {known.peer}"
        self._stranger = (
            f"a process at {link.peer} said that it is rank {hello.rank} of the launcher{twice}: a foreign "
            "process has the key of this run; name a folder that only you can read: --ddpperf-rendezvous-dir=DIR"
        )
        if known is not link:
            link.close()


def offset(link: Link) -> tuple[int, int]:
    """Returns by how many ns the clock of another machine is ahead of this machine's clock, and the uncertainty in ns.

    The fastest of several exchanges of time stamps counts, as in NTP (RFC 5905, section 8).
    """
    found = []
    for _ in range(_PINGS):
        sent = time.time_ns()
        clock = link.ask(Agent.clock).answer(_PING_SECONDS)
        took = time.time_ns() - sent
        found.append((took, clock - sent - took // 2))
    took, ahead = min(found)
    return ahead, took // 2


def require_one_agent(hellos: Sequence[Hello]) -> Hello:
    """Returns the first of a node's tasks, the future agent; raises SettingError if the tasks see different GPUs."""
    for other in hellos[1:]:
        if other.gpus != hellos[0].gpus:
            raise SettingError(
                f"tasks {hellos[0].rank} and {other.rank} of the launcher are on the same node, {other.host}, but see "
                "different GPUs; start one task per node that sees all GPUs: --ntasks-per-node=1 --gpus-per-node=N"
            )
    return hellos[0]


def use_cores(cores: frozenset[int]) -> None:
    """Binds this process and its later ranks to ``cores``, because torchrun, srun or mpirun may allow fewer cores."""
    with contextlib.suppress(OSError):  # a control group forbids it
        os.sched_setaffinity(0, cores)
