"""The ranks of one launch as the controller sees them, from the first fork to the last exit."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import select
import selectors
import signal
import socket
import time
from dataclasses import dataclass, replace
from enum import Enum
from typing import IO, TYPE_CHECKING

from pytest_ddpperf.errors import LaunchError, RanksTimedOut
from pytest_ddpperf.launch import failures, processes, stacks
from pytest_ddpperf.launch.failures import RankEnd
from pytest_ddpperf.launch.messages import Ended, Failed, Finished, Fork, RankCalls, Refused, Signal
from pytest_ddpperf.launch.streams import (
    Channel,
    FollowedOutput,
    GarbledMessage,
    RankOutput,
    open_output,
    read_output,
    readable,
    titled,
    trim_output,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from pytest_ddpperf.launch.flight_recorder import Stall
    from pytest_ddpperf.launch.messages import Job, ZygoteEvent
    from pytest_ddpperf.launch.zygote_process import ZygoteProcess

    Echo = Callable[[int, list[str]], None]  # takes a rank and lines that it has printed

GRACE = 0.25  # seconds in which the other ranks may still report after the first failure
CUDA_GRACE = 1.0  # the same on CUDA, whose errors ranks notice only when they wait for the device
_END_SECONDS, _CUDA_END_SECONDS = 3.0, 15.0  # of a rank: the driver frees a GPU's memory meanwhile
_TRIM_SECONDS = 1.0  # in which a rank may fill the disk with what it prints
_ECHO_SECONDS = 0.1  # in which a line that a rank has printed waits to be told
_STACK_SECONDS = 2.0
_OTHERS_SECONDS = 2.0
_CALLS_SECONDS = 1.0
_STACK_POLL = 0.025


def end_seconds(job: Job) -> float:
    """The seconds that the ranks of a job may take to end; one that looks for GPUs has started their driver."""
    return _CUDA_END_SECONDS if job.probes or job.device != "cpu" else _END_SECONDS


def conduct(
    zygotes: Sequence[ZygoteProcess], job: Job, sweep: Callable[[], None], echo: Echo | None = None
) -> tuple[list[RankEnd], float]:
    """Run a job on fresh ranks, each of its zygote, sweep, and return how each ended and the seconds that it took."""
    started = time.monotonic()
    kills = processes.out_of_memory_kills()
    with RankProcesses(zygotes, echo) as ranks:
        try:
            ranks.fork(job)
            outcome = ranks.watch(started + job.timeout, CUDA_GRACE if job.device == "cuda" else GRACE)
            standing: dict[int, str] = {}
            stalled: Stall | None = None
            if outcome is LaunchEnd.FINISHED:
                ranks.dismiss(end_seconds(job))
            else:
                for zygote in set(zygotes):
                    zygote.require_running()
            if outcome is LaunchEnd.LATE:
                standing = ranks.stacks()
                if job.group == "nccl":
                    from pytest_ddpperf.launch.flight_recorder import stall

                    stalled = stall(ranks.calls())
                suspect = stacks.suspect(standing, [rank for rank in range(job.world_size) if rank not in standing])
                if suspect is not None and stalled is None:
                    with contextlib.suppress(LaunchError):  # the zygote's end must not hide the deadline
                        ranks.hear_others(suspect)
            elif any(rank.end.mismatch for rank in ranks.ranks):
                with contextlib.suppress(LaunchError):  # nor the ranks' failure
                    ranks.hear_others()
                    standing = ranks.stacks()
        finally:
            sweep()
        seconds = time.monotonic() - started
        ends = [rank.end for rank in ranks.ranks]
    if outcome is LaunchEnd.LATE:
        raise _timed_out(ends, standing, job, max(zygote.threads for zygote in zygotes) - 1, stalled)
    if outcome is LaunchEnd.FAILED:
        killed = processes.out_of_memory_kills() > kills
        raise failures.failure(ends, job.world_size, out_of_memory=killed, stacks=standing)
    return ends, seconds


def _timed_out(
    ends: list[RankEnd], standing: dict[int, str], job: Job, threads: int, stalled: Stall | None
) -> RanksTimedOut:
    finished = [end.rank for end in ends if end.rank not in standing]
    called = {end.rank: end.failure.sequence for end in ends if end.failure is not None and end.lost_peer}
    nccl = job.group == "nccl"
    first_line, guilty = stacks.roll_call(standing, finished, job.world_size, job.timeout, called, nccl=nccl)
    hints = [stacks.mismatch_hint(standing, finished, nccl=nccl)] if job.world_size > 1 else []
    if stalled is not None:
        guilty, hints = stalled.rank, [stalled.text]
    if threads:
        more = f"{threads} more {'threads' if threads > 1 else 'thread'}: a lock that one of them held"
        hints.append(f"the process that ranks are forked from has {more} stays locked on the ranks")
    return RanksTimedOut(
        "\n\n".join(filter(None, (first_line, *hints, stacks.listing(standing, guilty)))),
        rank=guilty,
        sections=titled((end.rank, end.output) for end in ends),
    )


class LaunchEnd(Enum):
    """How the wait for the ranks ended."""

    FINISHED = "every function has returned"
    FAILED = "a rank has failed"
    LATE = "the deadline has passed"


@dataclass(kw_only=True, slots=True)
class _RankProcess:
    """One rank's sockets and files, and its state as far as the controller knows it."""

    channel: Channel
    of_rank: socket.socket  # the other end of ``channel``
    stdout: IO[bytes]
    stderr: IO[bytes]
    stacks: IO[bytes]
    state: RankEnd
    calls: RankCalls | None = None  # the last answer

    @property
    def end(self) -> RankEnd:
        """The state together with the text that the rank has printed so far."""
        name = f"rank {self.state.rank}"
        stdout, stderr = read_output(self.stdout, f"{name}'s stdout"), read_output(self.stderr, f"{name}'s stderr")
        return replace(self.state, output=RankOutput(stdout, stderr))

    def collect(self) -> None:
        """Take the report, if the rank has sent one."""
        try:
            for message in self.channel.received():
                if isinstance(message, (Finished, Failed)):
                    self.state = replace(self.state, report=message)
                elif isinstance(message, RankCalls):
                    self.calls = message
        except GarbledMessage:
            garbled = Failed(stage="run", kind="garbled", type="", text="", traceback="", stamp=time.time_ns())
            self.state = replace(self.state, report=self.state.report or garbled)

    def ended(self, event: Ended) -> None:
        """Note that the process has ended; all that it sent has arrived by now."""
        self.collect()
        self.state = replace(self.state, status=event.status, stamp=event.stamp)


class RankProcesses:
    """The ranks of one launch, with their sockets and files. Leaving the context closes these; it ends no process."""

    def __init__(self, zygotes: Sequence[ZygoteProcess], echo: Echo | None = None) -> None:
        self._zygotes = zygotes  # of each rank
        self._echo = echo
        world_size = len(zygotes)
        self._open = contextlib.ExitStack()
        try:
            self.ranks = [self._prepared(rank) for rank in range(world_size)]
        except OSError as error:
            self._open.close()
            if error.errno != errno.EMFILE:
                raise
            raise LaunchError(
                f"this process may not open enough files for {world_size} ranks; raise its limit (ulimit -n)"
            ) from None
        self._followed = [(rank, FollowedOutput(file)) for rank in self.ranks for file in (rank.stdout, rank.stderr)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._tell(last=True)
        finally:
            self._open.close()

    def _tell(self, *, last: bool = False) -> None:
        """Hand on what ranks have printed since, to who has asked for it."""
        if self._echo is None:
            return
        for rank, output in self._followed:
            lines = output.lines(last=last)
            if lines:
                self._echo(rank.state.rank, lines)

    def _prepared(self, rank: int) -> _RankProcess:
        of_controller, of_rank = map(self._open.enter_context, socket.socketpair())
        stdout, stderr = (self._open.enter_context(open_output()) for _ in range(2))
        # Not on a disk, which may be full.
        stacks = self._open.enter_context(os.fdopen(os.memfd_create("ddpperf-stacks"), "r+b", buffering=0))
        channel, state = Channel(of_controller), RankEnd(rank=rank)
        return _RankProcess(channel=channel, of_rank=of_rank, stdout=stdout, stderr=stderr, stacks=stacks, state=state)

    def fork(self, job: Job) -> None:
        """Start the ranks on a job."""
        with contextlib.ExitStack() as opened:
            # Bound here and served by rank 0: no other process can take the port between the choice and the use.
            listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=max(128, job.world_size)))
            file = os.memfd_create("ddpperf-job")
            opened.callback(os.close, file)
            with open(file, "wb", closefd=False) as written:
                pickle.dump(replace(job, listening=listener.getsockname()[1]), written)
            for number, rank in enumerate(self.ranks):
                files = [rank.of_rank.fileno(), rank.stdout.fileno(), rank.stderr.fileno(), rank.stacks.fileno(), file]
                if number == 0 and job.group is not None:
                    files.append(listener.fileno())
                self._zygotes[number].request(Fork(number, job.preload), files)
                rank.of_rank.close()

    def watch(self, deadline: float, grace: float = GRACE) -> LaunchEnd:
        """Wait until all ranks have returned, or the first has failed, or ``deadline`` has passed."""
        until, late = deadline, False
        pause = _TRIM_SECONDS if self._echo is None else _ECHO_SECONDS
        with selectors.DefaultSelector() as selector:
            for zygote in set(self._zygotes):
                selector.register(zygote.control, selectors.EVENT_READ, zygote)
            for rank in self.ranks:
                selector.register(rank.channel, selectors.EVENT_READ, rank)
            while not (late or all(rank.state.over for rank in self.ranks)):
                remaining = until - time.monotonic()
                late = remaining <= 0  # what has arrived by now counts: this process may have been stopped meanwhile
                for key, _ in selector.select(max(0.0, min(remaining, pause))):
                    if not isinstance(key.data, _RankProcess):
                        self._note(key.data.events(0))
                        continue
                    key.data.collect()
                    if key.data.channel.closed:
                        selector.unregister(key.fileobj)
                if until == deadline and any(rank.state.failed for rank in self.ranks):
                    until = min(deadline, time.monotonic() + grace)
                self._tell()
                for rank in self.ranks:
                    trim_output(rank.stdout)
                    trim_output(rank.stderr)
        if any(rank.state.failed for rank in self.ranks):
            return LaunchEnd.FAILED
        return LaunchEnd.FINISHED if all(rank.state.over for rank in self.ranks) else LaunchEnd.LATE

    def hear_others(self, *first: int) -> None:
        """End these ranks and those that have reported: what waits for them fails, and reports what it has called."""
        deadline = time.monotonic() + _OTHERS_SECONDS
        while not all(rank.state.over for rank in self.ranks) and time.monotonic() < deadline:
            reported = (rank.state.rank for rank in self.ranks if rank.state.report is not None)
            for zygote in set(self._zygotes):
                zygote.request(Signal((*first, *reported), signal.SIGKILL))
            self.watch(deadline)

    def _note(self, events: list[ZygoteEvent]) -> None:
        for event in events:
            if isinstance(event, Refused):
                raise LaunchError(f"rank {event.rank} could not be forked: {event.reason}")
            if isinstance(event, Ended):
                self.ranks[event.rank].ended(event)

    def dismiss(self, seconds: float) -> None:
        """Let all ranks end together, and wait so many seconds at most until they have."""
        for rank in self.ranks:
            rank.channel.dismiss()
        deadline = time.monotonic() + seconds
        while any(rank.state.status is None for rank in self.ranks) and time.monotonic() < deadline:
            told = readable([zygote.control for zygote in set(self._zygotes)], max(0.0, deadline - time.monotonic()))
            for zygote in set(self._zygotes):
                if zygote.control.fileno() in told:
                    self._note(zygote.events(0))

    def stacks(self) -> dict[int, str]:
        """Ask faulthandler for the stacks of each rank that has not finished; the text may be empty."""
        waiting = {number: rank.stacks for number, rank in enumerate(self.ranks) if not rank.state.over}
        deadline = time.monotonic() + _STACK_SECONDS
        found = self._told(waiting, stacks.SIGNAL, deadline)
        many = {number: file for number, file in waiting.items() if stacks.lacks_main_thread(found[number])}
        return found | (self._told(many, stacks.MAIN_SIGNAL, deadline) if many else {})

    def calls(self) -> dict[int, RankCalls]:
        """Ask ranks which collectives of NCCL they have called; without those that do not answer in time."""
        asked = {rank.state.rank: rank for rank in self.ranks if rank.state.status is None}
        for rank in asked.values():
            rank.channel.ask()
        deadline = time.monotonic() + _CALLS_SECONDS
        while time.monotonic() < deadline:
            left = [rank for rank in asked.values() if not (rank.channel.closed or (rank.calls and rank.calls.whole))]
            if not left:
                break
            readable([rank.channel for rank in left], max(0.0, deadline - time.monotonic()))
            for rank in left:
                rank.collect()
        return {number: rank.calls for number, rank in asked.items() if rank.calls is not None}

    def _told(self, files: dict[int, IO[bytes]], number: int, deadline: float) -> dict[int, str]:
        """Send ranks a signal that makes faulthandler write to their files, and read these."""
        sizes = old = [os.fstat(file.fileno()).st_size for file in files.values()]
        for zygote in set(self._zygotes):
            zygote.request(Signal(tuple(files), number))
        while time.monotonic() < deadline:
            # faulthandler writes no end mark: a stack is whole when it has stopped growing.
            before, sizes = sizes, [os.fstat(file.fileno()).st_size for file in files.values()]
            if sizes == before and all(size > start for size, start in zip(sizes, old, strict=True)):
                break
            select.select([], [], [], _STACK_POLL)
        return {rank: read_output(file, "the stacks") for rank, file in files.items()}
