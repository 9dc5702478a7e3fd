"""The agent of a node: it has launchers as the controller has, and starts the ranks that the controller asks for."""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from pytest_ddpperf.errors import LaunchError, in_a_line
from pytest_ddpperf.instruments.health import watch_health
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.messages import Signal, Sweep
from pytest_ddpperf.launch.nodes.link import ForeignPeer, Link, LinkEnded, connect
from pytest_ddpperf.launch.nodes.messages import (
    AskCalls,
    AskGpus,
    AskHealth,
    AskPreload,
    AskReady,
    AskStacks,
    Begin,
    Calls,
    Close,
    Dismiss,
    GpuCount,
    NodeHealth,
    NodeReady,
    NodeSwept,
    Opened,
    OpenLauncher,
    Ping,
    Printed,
    Stacks,
    States,
    WatchHealth,
)
from pytest_ddpperf.launch.nodes.network import interface_of
from pytest_ddpperf.launch.nodes.tunnel import StoreTunnel
from pytest_ddpperf.launch.preloading import Judged, Wanted
from pytest_ddpperf.launch.processes import out_of_memory_kills
from pytest_ddpperf.launch.rank_processes import RankProcesses
from pytest_ddpperf.launch.redirection import Redirection
from pytest_ddpperf.records.health import CpuHealth, Health

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_ddpperf.instruments.health import Watch
    from pytest_ddpperf.launch.failures import RankEnd
    from pytest_ddpperf.launch.messages import Job
    from pytest_ddpperf.launch.nodes.meeting import Card

    CheckOut = Callable[[Redirection], "CheckedOut | None"]  # has its target on this node, and gives what was made

_TEND_SECONDS = 0.1
_END_SECONDS = 20.0  # in which launches end that the controller no longer waits for
GONE = 1  # the status of a task whose controller is gone


class CheckedOut(Protocol):
    """Files that are there until they are closed."""

    def close(self) -> None:
        """Remove them."""


class Agent:
    """Serves the controller over ``link``; ``card`` says where further links lead."""

    def __init__(self, link: Link, card: Card, node: int, check_out: CheckOut) -> None:
        self._link, self._card, self._node = link, card, node
        self._hosts: dict[int, _Host] = {}
        self._checkouts = _Checkouts(check_out)
        self._watch: Watch = lambda _: Health(cpu=CpuHealth())  # nobody has asked to watch yet

    def serve(self) -> int:
        """Do what the controller asks for until it closes the link; return the status that this task ends with."""
        try:
            while True:
                message = self._link.receive()
                if isinstance(message, Close):
                    return message.status
                if isinstance(message, Ping):
                    self._link.send(Ping(time.time_ns()))
                elif isinstance(message, OpenLauncher):
                    self._open(message)
                elif isinstance(message, WatchHealth):
                    running = (host.launcher for host in self._hosts.values() if host.is_alive())
                    self._watch = watch_health([pid for launcher in running for pid in launcher.parents])
                elif isinstance(message, AskHealth):
                    self._link.send(NodeHealth(message.number, self._watch(None).cpu))
        except LinkEnded:
            return GONE
        finally:
            with contextlib.ExitStack() as closing:
                closing.callback(self._checkouts.keep)
                for host in self._hosts.values():
                    closing.callback(host.close)

    def _open(self, request: OpenLauncher) -> None:
        try:
            link = connect((self._card.host, self._card.port), self._card.key)
        except (OSError, ForeignPeer) as error:
            raise LinkEnded(f"the controller is gone: {error}") from None
        link.send(Opened(self._node, request.number))
        like = None if request.like is None else self._hosts[request.like]
        host = _Host(link, self._card, request, None if like is None else like.launcher, self._checkouts.provide)
        self._hosts[request.number] = host
        host.start()
        if host.target is not None:
            self._checkouts.keep(*(one.target for one in self._hosts.values() if one.is_alive()))


class _Checkouts:
    """The files of other revisions that this node has not had."""

    def __init__(self, check_out: CheckOut) -> None:
        self._check_out = check_out
        self._made: dict[str, CheckedOut | None] = {}
        self._lock = threading.Lock()

    def provide(self, redirection: Redirection) -> None:
        """Have the files of the target here; LaunchError if that cannot be."""
        with self._lock:
            if redirection.target not in self._made:
                self._made[redirection.target] = self._check_out(redirection)

    def keep(self, *targets: str | None) -> None:
        """Remove the files of all targets but these."""
        with self._lock:
            for target in self._made.keys() - {*targets}:
                made = self._made.pop(target)
                if made is not None:
                    made.close()


class _Host(threading.Thread):
    """One launcher of this node, and the link by which one of the controller's asks it for ranks."""

    def __init__(
        self,
        link: Link,
        card: Card,
        request: OpenLauncher,
        like: Launcher | None,
        provide: Callable[[Redirection], None],
    ) -> None:
        super().__init__(name=f"ddpperf-node-{request.number}", daemon=True)
        self._link, self._card, self._provide = link, card, provide
        self._base = dict(os.environ)
        self._judged = Judged()
        self._environ = dict(self._base)  # as it is for the ranks of the next launch
        self._redirection = None if request.redirection is None else Redirection.loads(request.redirection)
        self.launcher = Launcher(
            environ=self._environ, preload=request.preload, redirection=self._redirection, like=like
        )

    @property
    def target(self) -> str | None:
        """The folder of another revision whose code the ranks run."""
        return None if self._redirection is None else self._redirection.target

    def run(self) -> None:
        """Serve until the link ends."""
        try:
            while True:
                message = self._link.receive()
                if isinstance(message, AskReady):
                    self._link.send(NodeReady(self._get_ready(message)))
                elif isinstance(message, AskPreload):
                    # Those that read the number of their rank stay with the ranks, whose numbers here change.
                    with contextlib.suppress(LaunchError):  # the next launch tells
                        self.launcher.preload(Wanted(asked=(), seen=message.modules, ranks=0), self._judged)
                    self._link.send(NodeReady())
                elif isinstance(message, Begin):
                    self._launch(message)
                elif isinstance(message, AskGpus):
                    self._link.send(GpuCount(self._gpus()))
        except LinkEnded:
            return
        except Exception as error:  # noqa: BLE001  the controller reports it
            with contextlib.suppress(LinkEnded):
                self._link.send(NodeSwept(reason=in_a_line(error)))
        finally:
            self._link.close()
            self.launcher.close()

    def close(self) -> None:
        """End the launch that is under way, if one is, and the launcher."""
        self._link.close()
        if self.is_alive():
            self.launcher.abort()
            self.join(_END_SECONDS)

    def _gpus(self) -> int:
        try:
            return len(self.launcher.machine().gpus.names)
        except LaunchError as error:
            print(error, file=sys.stderr)  # noqa: T201  the controller says that the node has no GPU
            return 0

    def _get_ready(self, asked: AskReady) -> str:
        """Import torch under the controller's variables; gives what prevents it."""
        kept = {name: value for name, value in self._base.items() if name not in asked.changes}
        self._environ.clear()
        self._environ.update(kept, **{name: value for name, value in asked.changes.items() if value is not None})
        try:
            if self._redirection is not None:
                self._provide(self._redirection)
            self.launcher.wait()
        except LaunchError as error:
            return str(error)
        return ""

    def _launch(self, begin: Begin) -> None:
        try:
            job = replace(begin.job, interface=interface_of(self._link.address, os.environ))
            if job.device != "cpu":
                job = replace(job, gpus=self.launcher.machine().gpus)
            ends = self._conduct(job, echo=begin.echo)
        except LinkEnded:
            raise
        except LaunchError as error:
            self._link.send(NodeSwept(reason=str(error)))
        else:
            self._link.send(NodeSwept(ends))

    def _conduct(self, job: Job, *, echo: bool) -> tuple[RankEnd, ...]:
        def printed(rank: int, lines: list[str]) -> None:
            self._link.send(Printed(rank, tuple(lines)))

        kills = out_of_memory_kills()
        with (
            self.launcher.forking(job) as (zygotes, here, sweep),
            StoreTunnel(self._card, job.listening) as tunnel,
            RankProcesses(zygotes, printed if echo else None, job.first_rank) as ranks,
        ):
            try:
                ranks.fork(replace(here, listening=tunnel.port))
                _Conducted(self._link, ranks).until_swept()
            finally:
                sweep()
            starved = out_of_memory_kills() > kills
            return tuple(replace(end, report=None, starved=starved) for end in ranks.ends)


class _Conducted:
    """The ranks of a launch on this node, and what the controller knows of them."""

    def __init__(self, link: Link, ranks: RankProcesses) -> None:
        self._link, self._ranks = link, ranks
        self._told: dict[int, RankEnd] = {}
        self._over = False

    def until_swept(self) -> None:
        """Tell the controller how the ranks stand, and do what it asks for, until it asks for the end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._link, selectors.EVENT_READ, self._hear)
            self._ranks.register(selector)
            while not self._over:
                for key, _ in selector.select(_TEND_SECONDS):
                    key.data()
                self._ranks.tend()
                over = (state for state in self._ranks.states if state.over)
                new = {state.rank: state for state in over if self._told.get(state.rank) is not state}
                if new:
                    known = {rank for rank, told in self._told.items() if told.report is not None}
                    self._told.update(new)
                    ends = (end for end in self._ranks.ends if end.rank in new)
                    told = tuple(replace(end, report=None) if end.rank in known else end for end in ends)
                    self._link.send(States(told))

    def _hear(self) -> None:
        for message in self._link.received():
            deadline = time.monotonic() + getattr(message, "seconds", 0.0)
            if isinstance(message, Signal):
                self._ranks.signal(message.ranks, message.number)
            elif isinstance(message, Dismiss):
                self._ranks.dismiss()
            elif isinstance(message, AskStacks):
                progress = self._ranks.progress()
                self._link.send(Stacks(self._ranks.stacks(deadline), progress))
            elif isinstance(message, AskCalls):
                self._ranks.ask_calls(deadline)
                self._link.send(Calls(self._ranks.calls(deadline)))
            elif isinstance(message, Sweep):
                self._over = True
