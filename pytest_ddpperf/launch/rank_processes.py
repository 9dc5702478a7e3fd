"""The ranks of a launch that run on this machine, as the controller (pytest's process) sees them."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import select
import selectors
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import IO

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.launch import streams
from pytest_ddpperf.launch.faults import stacks
from pytest_ddpperf.launch.faults.failures import RankEnd
from pytest_ddpperf.launch.interleaving import TurnSlot
from pytest_ddpperf.launch.messages import Answer, Ended, Failed, Finished, Job, RankCalls
from pytest_ddpperf.launch.processes import out_of_memory_kills
from pytest_ddpperf.launch.progress import Progress, ProgressFile
from pytest_ddpperf.launch.zygote_process import ZygoteProcess

Echo = Callable[[int, list[str]], None]  # takes a rank and lines that it has printed

_STACK_POLL = 0.025


@dataclass(kw_only=True, slots=True)
class _RankProcess:
    """The sockets and files of a rank, and its last known state."""

    channel: streams.Channel
    of_rank: socket.socket  # the other end of ``channel``
    stdout: IO[bytes]
    stderr: IO[bytes]
    stacks: IO[bytes]
    state: RankEnd
    calls: RankCalls | None = None  # the last answer

    @property
    def output(self) -> streams.RankOutput:
        name = f"rank {self.state.rank}"
        return streams.RankOutput(
            streams.read_output(self.stdout, f"{name}'s stdout"), streams.read_output(self.stderr, f"{name}'s stderr")
        )

    def collect(self) -> None:
        """Receives the rank's report, if the rank has sent it."""
        try:
            for message in self.channel.received():
                if isinstance(message, (Finished, Failed)):
                    self.state = replace(self.state, report=message)
                elif isinstance(message, RankCalls):
                    self.calls = message
        except streams.GarbledMessage:
            garbled = Failed(stage="run", kind="garbled", type="", text="", traceback="", stamp=time.time_ns())
            self.state = replace(self.state, report=self.state.report or garbled)

    def ended(self, event: Ended) -> None:
        """Records that the process has ended, after all its messages have arrived."""
        self.collect()
        self.state = replace(self.state, status=event.status, stamp=event.stamp, headless=event.headless)


@contextlib.contextmanager
def enough_files(ranks: int) -> Iterator[None]:
    """Raises LaunchError if code in this context needs more open files than this process may have."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.EMFILE, errno.ETOOMANYREFS}:
            raise
        raise LaunchError(
            f"this process may not open enough files for {ranks} ranks; raise its limit (ulimit -n)"
        ) from None


class RankProcesses(contextlib.AbstractContextManager["RankProcesses"]):
    """The ranks of a job on this machine, with their sockets and files; ``sweep()`` ends all the launch's processes."""

    def __init__(
        self,
        zygotes: Sequence[ZygoteProcess],  # of each rank
        job: Job,
        echo: Echo | None = None,
        sweep: Callable[[], None] = lambda: None,
        turns: TurnSlot | None = None,
    ) -> None:
        self.zygotes, self.job, self.echo, self.sweep = zygotes, job, echo, sweep
        self._turns = turns
        self._asking: socket.socket | None = None  # of rank 0 for turns
        self._kills = out_of_memory_kills()
        self._open = contextlib.ExitStack()
        with contextlib.ExitStack() as failing:
            failing.push(self._open)
            self._progress = ProgressFile(len(zygotes))
            self._open.callback(self._progress.close)
            numbers = range(job.first_rank, job.first_rank + len(zygotes))
            self.ranks = {rank: self._prepared(rank) for rank in numbers}
            failing.pop_all()
        files = ((number, file) for number, rank in self.ranks.items() for file in (rank.stdout, rank.stderr))
        self._followed = [(number, streams.FollowedOutput(file)) for number, file in files]

    def __exit__(self, *_: object) -> None:
        with self._open:
            self._tell(last=True)

    @property
    def states(self) -> list[RankEnd]:
        """Returns the state of each rank, without its output."""
        return [rank.state for rank in self.ranks.values()]

    @property
    def ends(self) -> list[RankEnd]:
        """Returns the state of each rank, with its output."""
        killed = any(rank.state.status == -signal.SIGKILL for rank in self.ranks.values())
        starved = killed and out_of_memory_kills() > self._kills
        return [replace(rank.state, output=rank.output, starved=starved) for rank in self.ranks.values()]

    def tend(self) -> None:
        """Passes new output lines of ranks to ``echo``, and frees the disk space of old output."""
        self._tell()
        for rank in self.ranks.values():
            streams.trim_output(rank.stdout)
            streams.trim_output(rank.stderr)

    def _tell(self, *, last: bool = False) -> None:
        """Passes new lines of ranks to ``echo``, if there is one; if ``last``, also incomplete lines."""
        for number, output in self._followed if self.echo is not None else ():
            if self.echo is not None and (lines := output.lines(last=last)):
                self.echo(number, lines)

    def _prepared(self, rank: int) -> _RankProcess:
        of_controller, of_rank = map(self._open.enter_context, socket.socketpair())
        stdout, stderr = (self._open.enter_context(streams.open_output()) for _ in range(2))
        # Not on a disk, which may be full.
        stacks = self._open.enter_context(os.fdopen(os.memfd_create("ddpperf-stacks"), "r+b", buffering=0))
        channel, state = streams.Channel(of_controller), RankEnd(rank=rank)
        return _RankProcess(channel=channel, of_rank=of_rank, stdout=stdout, stderr=stderr, stacks=stacks, state=state)

    def fork(self, port: int, listener: socket.socket | None = None) -> None:
        """Starts the ranks. The TCPStore has this ``port``; rank 0 serves it on the socket ``listener``."""
        with contextlib.ExitStack() as opened:
            file = os.memfd_create("ddpperf-job")
            opened.callback(os.close, file)
            with open(file, "wb", closefd=False) as written:
                pickle.dump(replace(self.job, listening=port), written)
            for zygote, (number, rank) in zip(self.zygotes, self.ranks.items(), strict=True):
                files = [rank.of_rank.fileno(), rank.stdout.fileno(), rank.stderr.fileno(), rank.stacks.fileno(), file]
                files.append(self._progress.descriptor)
                if number == 0 and listener is not None:
                    files.append(listener.fileno())
                    if self._turns is not None:
                        ours, of_rank = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                        self._asking = self._open.enter_context(ours)
                        files.append(opened.enter_context(of_rank).fileno())
                zygote.fork(number, self.job.preload, self.job.folder, files)
                rank.of_rank.close()

    def register(self, selector: selectors.BaseSelector) -> None:
        """Registers fork servers and ranks; the data of a selector key is the function that handles messages."""
        for zygote in set(self.zygotes):
            selector.register(zygote.control, selectors.EVENT_READ, partial(self._hear, zygote))
        for rank in self.ranks.values():
            if not rank.channel.closed:
                selector.register(rank.channel, selectors.EVENT_READ, partial(self._collect, rank, selector))
        if self._asking is not None:
            selector.register(self._asking, selectors.EVENT_READ, partial(self._give_turn, selector, self._asking))

    def _hear(self, zygote: ZygoteProcess) -> None:
        for event in zygote.events(0):
            if isinstance(event, Answer) and event.error:
                raise LaunchError(event.error)
            if isinstance(event, Ended):
                self.ranks[event.rank].ended(event)

    @staticmethod
    def _collect(rank: _RankProcess, selector: selectors.BaseSelector) -> None:
        rank.collect()
        if rank.channel.closed:
            selector.unregister(rank.channel)

    def _give_turn(self, selector: selectors.BaseSelector, asking: socket.socket) -> None:
        if self._turns is not None and not self._turns.queue.hear(self._turns.slot, asking):
            selector.unregister(asking)
            self._asking = None

    def signal(self, ranks: Sequence[int], number: int) -> None:
        """Sends a signal to each of these ranks that still runs."""
        for zygote in set(self.zygotes):
            zygote.ask("signal", tuple(ranks), number)

    def dismiss(self) -> None:
        """Allows the ranks to end; each rank waits for this after its report."""
        for rank in self.ranks.values():
            rank.channel.dismiss()

    def stacks(self, seconds: float) -> dict[int, str]:
        """Returns faulthandler's stacks of each unfinished rank, by rank; the text may be empty."""
        deadline = time.monotonic() + seconds
        waiting = {number: rank.stacks for number, rank in self.ranks.items() if not rank.state.over}
        since = {number: os.fstat(file.fileno()).st_size for number, file in waiting.items()}  # asked for before
        found = self._told(waiting, since, stacks.SIGNAL, deadline)
        many = {number: file for number, file in waiting.items() if stacks.lacks_main_thread(found[number])}
        return found | (self._told(many, since, stacks.MAIN_SIGNAL, deadline) if many else {})

    def progress(self) -> dict[int, Progress]:
        """Returns the stage and step of each unfinished rank that has begun, by rank."""
        slots = {number: slot for slot, (number, rank) in enumerate(self.ranks.items()) if not rank.state.over}
        found = {number: self._progress.read(slot) for number, slot in slots.items()}
        return {number: each for number, each in found.items() if each is not None}

    def calls(self, seconds: float) -> dict[int, RankCalls]:
        """Returns the collectives that ranks have called, by rank; ranks that do not answer in time are missing."""
        deadline = time.monotonic() + seconds
        asked = {number: rank for number, rank in self.ranks.items() if rank.state.status is None}
        for rank in asked.values():
            rank.channel.request()
        while time.monotonic() < deadline:
            left = [rank for rank in asked.values() if not (rank.channel.closed or (rank.calls and rank.calls.whole))]
            if not left:
                break
            streams.readable([rank.channel for rank in left], max(0.0, deadline - time.monotonic()))
            for rank in left:
                rank.collect()
        return {number: rank.calls for number, rank in asked.items() if rank.calls is not None}

    def _told(self, files: dict[int, IO[bytes]], since: dict[int, int], number: int, deadline: float) -> dict[int, str]:
        """Signals ranks to write their stacks to ``files``; returns the text after byte ``since``, by rank."""
        sizes = old = [os.fstat(file.fileno()).st_size for file in files.values()]
        self.signal(tuple(files), number)
        while time.monotonic() < deadline:
            # faulthandler writes no end mark: a stack is whole when it has stopped growing.
            before, sizes = sizes, [os.fstat(file.fileno()).st_size for file in files.values()]
            if sizes == before and all(size > start for size, start in zip(sizes, old, strict=True)):
                break
            select.select([], [], [], _STACK_POLL)
        return {rank: streams.read_output(file, "the stacks", since=since[rank]) for rank, file in files.items()}
