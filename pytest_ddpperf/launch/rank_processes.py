"""The controller's view of the ranks of one launch."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import selectors
import signal
import socket
import time
from dataclasses import dataclass, replace
from enum import Enum
from typing import IO, TYPE_CHECKING

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch import outputs
from pytest_ddpperf.launch.channel import Channel
from pytest_ddpperf.launch.failures import RankEnd
from pytest_ddpperf.launch.messages import Ended, Failed, Finished, Fork, Refused, Signal

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_ddpperf.launch.messages import ZygoteEvent
    from pytest_ddpperf.launch.zygote_process import ZygoteProcess

GRACE = 0.25  # seconds in which the other ranks may still report after the first failure
_LEAVE_SECONDS = 3.0
_STACK_SECONDS = 2.0
_STACK_POLL = 0.025


class End(Enum):
    """How the wait for a launch ended."""

    FINISHED = "every function has returned"
    FAILED = "a rank has failed"
    LATE = "the deadline has passed"


@dataclass
class LocalRank:
    """One rank's socket and files, and its state as far as the controller knows it."""

    local_rank: int
    channel: Channel
    stdout: IO[bytes]
    stderr: IO[bytes]
    stacks: IO[bytes]
    state: RankEnd

    @property
    def end(self) -> RankEnd:
        """The state together with the text that the rank has printed so far."""
        name = f"rank {self.state.rank}"
        stdout, stderr = outputs.read(self.stdout, f"{name}'s stdout"), outputs.read(self.stderr, f"{name}'s stderr")
        return replace(self.state, output=outputs.RankOutput(stdout, stderr))

    def collect(self) -> None:
        """Take the report, if the rank has sent one."""
        for message in self.channel.received():
            if isinstance(message, (Finished, Failed)):
                self.state = replace(self.state, report=message)

    def ended(self, event: Ended) -> None:
        """Note that the process has ended; all that it sent has arrived by now."""
        self.collect()
        self.state = replace(self.state, status=event.status, stamp=event.stamp)


class RankProcesses:
    """The ranks of one launch, with their sockets and files. Leaving the context closes these; it ends no process."""

    def __init__(self, zygote: ZygoteProcess, local_world_size: int, first_rank: int = 0) -> None:
        self._zygote = zygote
        self._open = contextlib.ExitStack()
        self._sockets_of_ranks: list[socket.socket] = []
        try:
            self.ranks = [self._prepare(i, first_rank + i) for i in range(local_world_size)]
        except OSError as error:
            self._open.close()
            if error.errno != errno.EMFILE:
                raise
            raise LaunchError(
                f"this process may not open enough files for {local_world_size} ranks; raise its limit (ulimit -n)"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _prepare(self, local_rank: int, rank: int) -> LocalRank:
        of_controller, of_rank = socket.socketpair()
        self._sockets_of_ranks.append(self._open.enter_context(of_rank))
        channel = Channel(self._open.enter_context(of_controller))
        stdout, stderr, stacks = (self._open.enter_context(outputs.open_file()) for _ in range(3))
        return LocalRank(local_rank, channel, stdout, stderr, stacks, RankEnd(rank))

    def fork(self, job: int, listener: socket.socket | None, preload: tuple[str, ...] = ()) -> None:
        """Start the ranks on the job in the file ``job``; rank 0 gets the socket ``listener``."""
        for rank, of_rank in zip(self.ranks, self._sockets_of_ranks, strict=True):
            files = [of_rank.fileno(), rank.stdout.fileno(), rank.stderr.fileno(), rank.stacks.fileno(), job]
            if rank.state.rank == 0 and listener is not None:
                files.append(listener.fileno())
            self._zygote.request(Fork(rank.local_rank, preload), files)
            of_rank.close()

    def watch(self, deadline: float) -> End:
        """Wait until all ranks have returned, or the first has failed, or ``deadline`` has passed."""
        until = deadline
        failed = False
        with selectors.DefaultSelector() as selector:
            selector.register(self._zygote.control, selectors.EVENT_READ)
            for rank in self.ranks:
                selector.register(rank.channel, selectors.EVENT_READ, rank)
            while not all(rank.state.over for rank in self.ranks):
                remaining = until - time.monotonic()
                if remaining <= 0:
                    return End.FAILED if failed else End.LATE
                for key, _ in selector.select(remaining):
                    self._take(key.data)
                    if key.data is not None and key.data.channel.closed:
                        selector.unregister(key.fileobj)
                if not failed and any(rank.state.failed for rank in self.ranks):
                    failed, until = True, min(deadline, time.monotonic() + GRACE)
        return End.FAILED if any(rank.state.failed for rank in self.ranks) else End.FINISHED

    def _take(self, rank: LocalRank | None) -> None:
        if rank is not None:
            rank.collect()
            return
        for event in self._zygote.events(0):
            self._note(event)

    def _note(self, event: ZygoteEvent) -> None:
        if isinstance(event, Refused):
            raise LaunchError(f"rank {self.ranks[event.local_rank].state.rank} could not be forked: {event.reason}")
        if isinstance(event, Ended):
            self.ranks[event.local_rank].ended(event)

    def dismiss(self) -> None:
        """Let all ranks leave their group together, and wait a bounded time until they have."""
        for rank in self.ranks:
            rank.channel.dismiss()
        deadline = time.monotonic() + _LEAVE_SECONDS
        while any(rank.state.status is None for rank in self.ranks) and time.monotonic() < deadline:
            for event in self._zygote.events(deadline - time.monotonic()):
                self._note(event)

    def stacks(self) -> dict[int, str]:
        """Ask faulthandler for the stacks of each rank that has not finished; the text may be empty."""
        waiting = [rank for rank in self.ranks if not rank.state.over]
        self._zygote.request(Signal(tuple(rank.local_rank for rank in waiting), signal.SIGUSR1))
        deadline = time.monotonic() + _STACK_SECONDS
        sizes: list[int] = []
        while time.monotonic() < deadline:
            # faulthandler writes no end mark: a stack is whole when it has stopped growing.
            before, sizes = sizes, [os.fstat(rank.stacks.fileno()).st_size for rank in waiting]
            if all(sizes) and sizes == before:
                break
            select.select([], [], [], _STACK_POLL)
        return {rank.state.rank: outputs.read(rank.stacks, "the stacks") for rank in waiting}
