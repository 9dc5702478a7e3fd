"""The agent of a node: the process that starts ranks on its node at the controller's request."""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.health import Watch, watch_health
from pytest_ddpperf.launch.faults.failures import RankEnd
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.link import Close, Link, LinkEnded, connect
from pytest_ddpperf.launch.messages import Job, SeenImport
from pytest_ddpperf.launch.node_ranks import Printed, States
from pytest_ddpperf.launch.nodes.meeting import Card
from pytest_ddpperf.launch.nodes.network import StoreTunnel, interface_of
from pytest_ddpperf.launch.preloading.zygotes import Judged, Wanted
from pytest_ddpperf.launch.rank_processes import RankProcesses
from pytest_ddpperf.launch.redirection import Redirection
from pytest_ddpperf.records.launch import CpuHealth, Health

CheckOut = Callable[[Redirection], Callable[[], None] | None]
"""Checks out the files that a redirection leads to, if this node lacks them; returns a function that removes them."""

_TEND_SECONDS = 0.1
_END_SECONDS = 20.0  # for the end of a launch whose controller is gone
GONE = 1  # the status of a task whose controller is gone


class Agent:
    """The agent of a node, which serves the controller over ``link``. ``card`` has the controller's address and key."""

    def __init__(self, link: Link, card: Card, node: int, check_out: CheckOut) -> None:
        self._link, self._card, self._node = link, card, node
        self._launchers: list[NodeLauncher] = []
        self._checkouts = _Checkouts(check_out)
        self._watch: Watch = lambda _: Health(cpu=CpuHealth())  # until the controller asks to watch

    def serve(self) -> int:
        """Serves the controller until the controller closes the link; returns the exit status for this process."""
        try:
            while not isinstance(message := self._link.receive(), Close):
                self._link.reply(message, self)
        except LinkEnded:
            return GONE
        finally:
            with contextlib.ExitStack() as closing:
                closing.callback(self._checkouts.keep)
                for launcher in self._launchers:
                    closing.callback(launcher.close)
        return message.status

    def clock(self) -> int:
        """Returns the time in nanoseconds since the epoch."""
        return time.time_ns()

    def watch_health(self) -> None:
        """Starts to measure how much other processes use the node's CPUs."""
        running = (launcher for launcher in self._launchers if launcher.is_alive())
        self._watch = watch_health([pid for launcher in running for pid in launcher.launcher.parents])

    def health(self) -> CpuHealth:
        """Returns how much other processes used the node's CPUs since the last call of ``watch_health``."""
        return self._watch(None).cpu

    def open(self, number: int, preload: Sequence[str], redirection: Redirection | None) -> None:
        """Starts launcher ``number`` with these arguments and a separate link to the controller."""
        link = connect((self._card.host, self._card.port), self._card.key, {"launcher": [self._node, number]})
        running = [one for one in self._launchers if one.is_alive()]
        alike = (preload, redirection)
        like = (one.launcher for one in running if (one.launcher.modules, one.launcher.redirection) == alike)
        launcher = Launcher(preload=preload, redirection=redirection, like=next(like, None))
        self._launchers.append(NodeLauncher(link, self._card, launcher, self._checkouts))
        self._launchers[-1].start()
        if redirection is not None:
            others = (one.launcher.redirection for one in running)
            self._checkouts.keep(*(one.target for one in (redirection, *others) if one is not None))


class _Checkouts:
    """The checkouts of reference revisions that this node made, because the controller's checkouts are missing here."""

    def __init__(self, check_out: CheckOut) -> None:
        self._check_out = check_out
        self._made: dict[str, Callable[[], None] | None] = {}
        self._lock = threading.Lock()

    def provide(self, redirection: Redirection) -> None:
        """Checks out the reference revision on this node if its files are missing; raises LaunchError if that fails."""
        with self._lock:
            if redirection.target not in self._made:
                self._made[redirection.target] = self._check_out(redirection)

    def keep(self, *targets: str) -> None:
        """Removes the checkouts of reference revisions on this node, except the folders ``targets``."""
        with self._lock:
            for target in self._made.keys() - {*targets}:
                remove = self._made.pop(target)
                if remove is not None:
                    remove()


class NodeLauncher(threading.Thread):
    """One launcher of this node; a launcher of the controller calls its methods over a link."""

    def __init__(self, link: Link, card: Card, launcher: Launcher, checkouts: _Checkouts) -> None:
        super().__init__(name="ddpperf-node", daemon=True)
        self.launcher = launcher
        self._link, self._card, self._checkouts = link, card, checkouts
        self._base = dict(os.environ)
        self._judged = Judged()

    def run(self) -> None:
        """Serves the controller until the link ends."""
        with contextlib.closing(self.launcher), contextlib.closing(self._link), contextlib.suppress(LinkEnded):
            while True:
                self._link.reply(self._link.receive(), self)

    def close(self) -> None:
        """Ends the running launch, if there is one, and the launcher."""
        self._link.close()
        if self.is_alive():
            self.launcher.abort()
            self.join(_END_SECONDS)

    def gpus(self) -> int:
        """Returns how many GPUs ranks can use here."""
        try:
            return len(self.launcher.machine().gpus.names)
        except LaunchError as error:
            print(error, file=sys.stderr)  # noqa: T201  the controller says that the node has no GPU
            return 0

    def get_ready(self, changes: Mapping[str, str | None]) -> None:
        """Sets the environment variables ``changes`` (None removes a variable), and waits until torch is imported."""
        changed = {**self._base, **changes}
        self.launcher.environ = {name: value for name, value in changed.items() if value is not None}
        if self.launcher.redirection is not None:
            self._checkouts.provide(self.launcher.redirection)
        self.launcher.wait()

    def preload(self, modules: Sequence[SeenImport]) -> None:
        """Imports modules in the fork server, so that later ranks find them; omits imports with side effects."""
        # Those that read the number of their rank stay with the ranks, whose numbers here change.
        self.launcher.preload(Wanted(asked=(), seen=(*modules,), ranks=0), self._judged)

    def launch(self, job: Job, *, echo: bool) -> list[RankEnd]:
        """Runs a job's ranks as the controller asks, and returns how they ended; with ``echo`` sends printed lines."""

        def printed(rank: int, lines: list[str]) -> None:
            self._link.send(Printed(rank, tuple(lines)))

        job = replace(job, interface=interface_of(self._link.address, os.environ))
        if job.device != "cpu":
            job = replace(job, gpus=self.launcher.machine().gpus)
        with (
            self.launcher.ranks(job, printed if echo else None) as ranks,
            StoreTunnel(self._card, job.listening) as tunnel,
        ):
            try:
                ranks.fork(tunnel.port)
                self._serve(ranks)
            finally:
                ranks.sweep()
            return [replace(end, report=None) for end in ranks.ends]

    def _serve(self, ranks: RankProcesses) -> None:
        """Sends ranks' states to the controller and executes its requests, until the controller closes the launch."""
        told: dict[int, RankEnd] = {}
        closed = False

        def tell() -> None:
            new = {state.rank for state in ranks.states if state.over and told.get(state.rank) is not state}
            known = {rank for rank, state in told.items() if state.report is not None}
            told.update({state.rank: state for state in ranks.states if state.rank in new})
            ends = (end for end in ranks.ends if end.rank in new) if new else ()
            if new:
                self._link.send(States(tuple(replace(end, report=None) if end.rank in known else end for end in ends)))

        def hear() -> None:
            nonlocal closed
            tell()  # before an answer about ranks that are over by now
            for message in self._link.received():
                closed = closed or isinstance(message, Close)
                self._link.reply(message, ranks)

        with selectors.DefaultSelector() as selector:
            selector.register(self._link, selectors.EVENT_READ, hear)
            ranks.register(selector)
            hear()  # messages that came together with the request for the launch
            while not closed:
                for key, _ in selector.select(_TEND_SECONDS):
                    key.data()
                ranks.tend()
                tell()
