"""Runs one launch on this machine and on other nodes, from the first fork to the last exit."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, TypeVar

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.deadlines import watched
from pytest_ddpperf.launch.faults import failures
from pytest_ddpperf.launch.faults.stacks import STACK_SECONDS
from pytest_ddpperf.launch.progress import Progress
from pytest_ddpperf.launch.rank_processes import RankProcesses
from pytest_ddpperf.launch.streams import RankOutput, titled
from pytest_ddpperf.launch.zygote_process import ZygoteEnded, ZygoteProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_ddpperf.launch.faults.deadline import LateRanks
    from pytest_ddpperf.launch.faults.failures import RankEnd
    from pytest_ddpperf.launch.messages import Job, RankCalls, SeenImport
    from pytest_ddpperf.launch.node_ranks import NodeRanks

P = ParamSpec("P")
T = TypeVar("T")

_GRACE = 0.25  # seconds in which the other ranks may still report after the first failure
_CUDA_GRACE = 1.0  # the same on CUDA, whose errors ranks notice only when they wait for the device
_END_SECONDS, _CUDA_END_SECONDS = 3.0, 15.0  # of a rank: the driver frees a GPU's memory meanwhile
_TRIM_SECONDS = 1.0  # in which a rank may fill the disk with what it prints
_ECHO_SECONDS = 0.1  # in which a line that a rank has printed waits to be shown
_OTHERS_SECONDS = 2.0
_CALLS_SECONDS = 1.0
_REPORT_SECONDS = 20.0  # in which stacks and calls of late ranks are collected
_OVERDUE_SECONDS = 10.0  # after all deadlines of a launch


def end_seconds(job: Job) -> float:
    """Returns how many seconds a job's ranks may take to end: more if the ranks use GPUs."""
    return _CUDA_END_SECONDS if job.probes or job.device != "cpu" else _END_SECONDS


def run_ranks(here: RankProcesses, elsewhere: Sequence[NodeRanks] = ()) -> tuple[list[RankEnd], float]:
    """Runs a job on new ranks and ends all their processes; returns how each rank ended, and the seconds taken.

    This machine runs the first ranks; ``elsewhere`` has the ranks of other nodes. Raises the error of a failed rank.
    """
    started, job = time.monotonic(), here.job
    with overdue_shown(job, here.zygotes):
        launch = LaunchedRanks(here, elsewhere)
        try:
            # Bound here: no other process can take the port between the choice and the use.
            with socket.create_server(("127.0.0.1", 0), backlog=max(128, job.world_size)) as listener:
                port = listener.getsockname()[1]
                here.fork(port, listener)  # of the store that rank 0 serves
            for other in elsewhere:
                other.fork(replace(job, listening=port))
            outcome = launch.watch(started + job.timeout, _CUDA_GRACE if job.device == "cuda" else _GRACE)
            if outcome is LaunchEnd.FINISHED:
                launch.dismiss(end_seconds(job))
            found = _evidence(launch, outcome)
        except ZygoteEnded as error:
            error.unused = not elsewhere and not here.progress() and not any(state.over for state in here.states)
            raise
        finally:
            until = time.monotonic() + end_seconds(job)
            with contextlib.ExitStack() as sweeping:  # all, whatever one of them raises
                for other in elsewhere:
                    sweeping.callback(other.sweep, until)
                sweeping.callback(here.sweep)
                for other in elsewhere:  # the stack calls the last one first: all nodes sweep at the same time
                    sweeping.callback(other.ask_sweep)
        seconds = time.monotonic() - started
        ends = launch.ends
    if outcome is not LaunchEnd.FINISHED:
        if not isinstance(found, dict):
            raise found.error(ends, job, max(zygote.threads for zygote in here.zygotes) - 1)
        raise failures.failure(ends, job.world_size, stacks=found)
    return ends, seconds


@contextlib.contextmanager
def overdue_shown(job: Job, zygotes: Iterable[ZygoteProcess]) -> Iterator[None]:
    """Ends the launch in this context if the launch hangs although all its deadlines have passed.

    10 s after all deadlines, the stacks of this process are shown and the fork servers are killed. Then every wait for
    a rank fails, and the launch raises LaunchError.
    """
    most = job.timeout + _REPORT_SECONDS + 2 * end_seconds(job) + _OVERDUE_SECONDS
    late = f"a launch with a deadline of {job.timeout:g} s had not ended after {most:g} s: the test session was blocked"

    def kill() -> None:
        for zygote in zygotes:
            with contextlib.suppress(OSError):  # it is gone
                zygote.kill()

    told = f"{late}, and its ranks were killed; please report its stacks, on standard error"
    with watched(f"{late}, and its ranks are killed", most, kill) as ended:
        try:
            yield
        except LaunchError as error:
            if not ended.is_set():
                raise
            raise LaunchError(told) from error
    if ended.is_set():
        raise LaunchError(told)


def _evidence(launch: LaunchedRanks, outcome: LaunchEnd) -> LateRanks | dict[int, str]:
    """Returns facts about a late launch, or the ranks' stacks after gloo received unexpected sizes, else {}."""
    if outcome is LaunchEnd.FINISHED:
        return {}
    for zygote in set(launch.here.zygotes):
        zygote.require_running()
    if outcome is LaunchEnd.LATE:
        from pytest_ddpperf.launch.faults.deadline import late_ranks

        return late_ranks(launch, launch.here.job)
    if any(rank.mismatch for rank in launch.ends):
        with contextlib.suppress(LaunchError):  # the zygote's end must not hide the ranks' failure
            launch.fail_waiting()
            return launch.stacks()
    return {}


@dataclass(frozen=True)
class LaunchResult(Generic[T]):
    """The results of a launch: ``values`` and ``outputs`` by rank, and the seconds from the first fork to the end."""

    values: tuple[T, ...]
    outputs: tuple[RankOutput, ...]
    seconds: float
    imports: tuple[SeenImport, ...] = ()  # that rank 0 made, because no zygote had made them before

    def rank(self, rank: int) -> T:
        """Returns the return value of the launched function on ``rank``."""
        return self.values[rank]

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """Returns the output of each rank that printed something, with a title for the test's report."""
        return titled(enumerate(self.outputs))


class LaunchEnd(Enum):
    """The possible ends of the wait for a launch's ranks."""

    FINISHED = "every function has returned"
    FAILED = "a rank has failed"
    LATE = "the deadline has passed"


class LaunchedRanks:
    """All ranks of a launch, in the order of their numbers: ranks of this machine first, then ranks of other nodes."""

    def __init__(self, here: RankProcesses, elsewhere: Sequence[NodeRanks] = ()) -> None:
        self.here, self._elsewhere = here, elsewhere

    @property
    def states(self) -> list[RankEnd]:
        """Returns the state of each rank, without reading the output of ranks on this machine."""
        return [*self.here.states, *(end for other in self._elsewhere for end in other.ends)]

    @property
    def ends(self) -> list[RankEnd]:
        """Returns the state of each rank, with its output."""
        return [*self.here.ends, *(end for other in self._elsewhere for end in other.ends)]

    def watch(self, deadline: float, grace: float = _GRACE) -> LaunchEnd:
        """Waits for all ranks until ``deadline``, or ``grace`` seconds after a failure; returns how the wait ended."""
        until = deadline

        def waits_until() -> float | None:
            nonlocal until
            states = self.states
            if until == deadline and any(rank.failed for rank in states):
                until = min(deadline, time.monotonic() + grace)
            return None if all(rank.over for rank in states) else until

        self._wait(waits_until)
        states = self.states
        if any(rank.failed for rank in states):
            return LaunchEnd.FAILED
        return LaunchEnd.FINISHED if all(rank.over for rank in states) else LaunchEnd.LATE

    def _wait(self, until: Callable[[], float | None]) -> None:
        """Receives messages of ranks until a deadline; ``until`` returns the current deadline, or None to stop."""
        pause = _TRIM_SECONDS if self.here.echo is None else _ECHO_SECONDS
        with selectors.DefaultSelector() as selector:
            self.here.register(selector)
            for other in self._elsewhere:
                other.register(selector)
            late = False
            while not late:
                deadline = until()
                if deadline is None:
                    break
                remaining = deadline - time.monotonic()
                late = remaining <= 0  # what has arrived by now counts: this process may have been stopped meanwhile
                for key, _ in selector.select(max(0.0, min(remaining, pause))):
                    key.data()
                self.here.tend()

    def look(self, seconds: float) -> None:
        """Receives messages of ranks for ``seconds`` seconds."""
        deadline = time.monotonic() + seconds
        self._wait(lambda: deadline)

    def fail_waiting(self, *suspects: int) -> None:
        """Kills ``suspects`` and all ranks that have reported, so that ranks blocked in their collectives fail, too."""
        deadline = time.monotonic() + _OTHERS_SECONDS
        while not all(rank.over for rank in self.states) and time.monotonic() < deadline:
            reported = (rank.rank for rank in self.states if rank.report is not None)
            self._tell(RankProcesses.signal, (*suspects, *reported), signal.SIGKILL)
            self.watch(deadline)

    def dismiss(self, seconds: float) -> None:
        """Lets all ranks end at the same time, and waits at most ``seconds`` seconds for their end."""
        self._tell(RankProcesses.dismiss)
        deadline = time.monotonic() + seconds
        self._wait(lambda: deadline if any(rank.status is None for rank in self.states) else None)

    def progress(self) -> dict[int, Progress]:
        """Returns the stage and step of each unfinished rank, by rank."""
        return self._told(0.0, RankProcesses.progress)

    def stacks(self, seconds: float = STACK_SECONDS) -> dict[int, str]:
        """Returns faulthandler's stacks of each unfinished rank, by rank; the text may be empty."""
        found = self._told(seconds, RankProcesses.stacks, seconds)
        return {rank.rank: "" for rank in self.states if not rank.over} | found

    def calls(self) -> dict[int, RankCalls]:
        """Returns the collectives that ranks have called, by rank; ranks that do not answer in time are missing."""
        return self._told(_CALLS_SECONDS, RankProcesses.calls, _CALLS_SECONDS)

    def _tell(
        self, method: Callable[Concatenate[RankProcesses, P], None], *arguments: P.args, **named: P.kwargs
    ) -> None:
        for other in self._elsewhere:
            other.ask(method, *arguments, **named)
        method(self.here, *arguments, **named)

    def _told(
        self,
        seconds: float,
        method: Callable[Concatenate[RankProcesses, P], dict[int, T]],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> dict[int, T]:
        """Calls a method of ``RankProcesses`` on all nodes at the same time; returns the results by rank."""
        deadline = time.monotonic() + seconds
        answers = [other.ask(method, *arguments, **named) for other in self._elsewhere]
        found = method(self.here, *arguments, **named)
        for answer in answers:
            found |= answer(deadline - time.monotonic()) or {}  # late nodes share the few seconds after the deadline
        return found
