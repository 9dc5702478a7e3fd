"""Ranks that live on from call to call, because to start them costs seconds where CUDA and NCCL begin anew."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.errors import DdpperfError, LaunchError, SettingError
from pytest_ddpperf.launch import conduct, environment, payload, processes
from pytest_ddpperf.launch.conduct import LaunchedRanks, LaunchEnd, begin, end_seconds, error_of, evidence
from pytest_ddpperf.launch.environment import RAS_ADDRESS
from pytest_ddpperf.launch.launch_result import LaunchResult
from pytest_ddpperf.launch.messages import Call
from pytest_ddpperf.launch.rank_processes import RankProcesses
from pytest_ddpperf.launch.renewal import Renewed, renew
from pytest_ddpperf.launch.stacks import numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from pytest_ddpperf.launch.environment import Variables
    from pytest_ddpperf.launch.failures import RankEnd
    from pytest_ddpperf.launch.launcher import Launcher
    from pytest_ddpperf.launch.messages import Job
    from pytest_ddpperf.launch.zygote_process import ZygoteProcess

_RENEW_SECONDS = 10.0
_SLACK = 30.0  # of later deadlines: torch has that of the first call, and a minute more


class LastingRanks:
    """Ranks of one launcher, which serves nobody else, from call to call.

    The first call starts them. A rank that fails and a deadline end them, and so does a call that asks for others; the
    next call starts new ones. ``close`` ends them, and so does the end of this process, however it comes.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._started: Job | None = None  # the job that the ranks were started with
        self._zygotes: Sequence[ZygoteProcess] = ()
        self._read: dict[str, str] = {}  # the variables that the ranks have read for good
        self._timeout = 0.0  # of the first job, which torch has
        self._sweep: Callable[[], None] = lambda: None
        self._here: RankProcesses | None = None
        self._owner = os.getpid()
        self.left: list[str] = []  # by the last call, in words

    @property
    def alive(self) -> bool:
        """Whether the ranks run and wait for a call."""
        return self._here is not None

    def having(self, variables: Variables) -> Self:
        """The same ranks, with these variables besides those of the environment."""
        self._launcher.having(variables)
        return self

    def run(self, function: Callable[..., Any], *args: Any, **how: Any) -> LaunchResult[Any]:
        """Call ``function(ctx, *args)`` on every rank, as ``Launcher.run`` does; then find what the call has left.

        Raises:
            SettingError: the ranks would be on several nodes.
            DdpperfError: as of ``Launcher.run``.
        """
        self.left = []
        started = time.monotonic()
        job, counts = self._launcher.described(Call(function, args), **how)
        if len(counts) > 1:
            raise SettingError(
                f"ranks last from test to test on one node alone, and these {job.world_size} are on {len(counts)}: "
                "set group=test, or a world_size that fits on a node"
            )
        job = replace(job, lasting=True)
        self._end_unless_fit(job)
        try:
            ends = self._called(job)
            self._launcher.note(ends)
            self._renew(job)
        except BaseException:
            self._end(dismiss=False)
            raise
        seconds = time.monotonic() - started
        values = payload.values_of(ends, job.timeout - seconds)
        return LaunchResult(values, tuple(end.output for end in ends), seconds, ends[0].imports)

    def close(self) -> None:
        """End the ranks and what they were forked from."""
        self._end(dismiss=True)

    def _end(self, *, dismiss: bool) -> None:
        here, self._here = self._here, None
        if here is None or self._owner != os.getpid():  # a fork of this process ends nothing of its parent's
            return
        try:
            with here, contextlib.suppress(LaunchError):
                if dismiss and self._started is not None:
                    LaunchedRanks([here]).dismiss(end_seconds(self._started))
        finally:
            try:
                self._sweep()
            finally:
                self._launcher.close()

    def _end_unless_fit(self, job: Job) -> None:
        """End ranks that have died meanwhile, or that the job asks for others than."""
        if self._owner != os.getpid():
            self._here, self._owner = None, os.getpid()
        if self._here is None:
            return
        gone: list[int] = []
        try:
            gone = self._here.gone()
        except LaunchError:
            gone = [*self._here.ranks]
        if gone:
            self.left.append(f"{numbers(gone)} had ended since the call before: this one has new ranks")
        if gone or not self._fits(job):
            self.close()

    def _fits(self, job: Job) -> bool:
        asked = [one and (one.world_size, one.device, one.group, one.gpus, one.bind) for one in (self._started, job)]
        alike = asked[0] == asked[1] and self._read == environment.read_at_start(self._launcher.variables)
        return alike and job.timeout <= self._timeout + _SLACK and self._launcher.serves(self._zygotes)

    def _called(self, job: Job) -> list[RankEnd]:
        """Let the ranks do a job, and give how each stands when all have returned."""
        deadline, kills = time.monotonic() + job.timeout, processes.out_of_memory_kills()
        if self._here is None:
            with self._launcher.forking(job) as (self._zygotes, here, self._sweep):
                deadline = time.monotonic() + job.timeout
                self._read, self._timeout = environment.read_at_start(self._launcher.variables), job.timeout
                self._here = RankProcesses(self._zygotes, self._launcher.echo)
                self._started = job = begin(self._here, here)
        else:
            job = replace(job, listening=0 if self._started is None else self._started.listening)
            job = self._launcher.here(self._zygotes[0], job)
            kept = {} if self._started is None else self._started.environ
            if RAS_ADDRESS in kept:  # of the communicator, which lives on
                job = replace(job, environ={**job.environ, RAS_ADDRESS: kept[RAS_ADDRESS]})
            self._here.call(job)
        launch = LaunchedRanks([self._here])
        with conduct.overdue_shown(job, self._zygotes):
            outcome = launch.watch(deadline, conduct.grace_of(job))
            if outcome is not LaunchEnd.FINISHED:
                found = evidence(launch, outcome, job, self._zygotes, time.monotonic() - deadline + job.timeout)
                sweep, self._sweep = self._sweep, lambda: None
                sweep()
                starved = self._here.ranks if processes.out_of_memory_kills() > kills else ()
                raise error_of(launch.ends, found, job, self._zygotes, starved)
        return launch.ends

    def _renew(self, job: Job) -> None:
        """Let the ranks find and put back what the call has left; end them where they cannot serve another one."""
        called = replace(job, call=payload.dump_call(Call(renew, ())), renews=True, timeout=_RENEW_SECONDS)
        try:
            found: tuple[Renewed, ...] = payload.values_of(self._called(called), _RENEW_SECONDS)
        except DdpperfError as error:
            self.left.append(f"what could not be put back: {error.headline}")
            self._end(dismiss=False)
            return
        whose: dict[str, list[int]] = {}
        for rank, each in enumerate(found):
            for text in each.left:
                whose.setdefault(text, []).append(rank)
        self.left += [f"{numbers(ranks)}: {text}" for text, ranks in whose.items()]
        calls = {each.called for each in found}
        if len(calls - {None}) > 1:
            told = ", ".join(f"rank {rank}: {each.called}" for rank, each in enumerate(found))
            self.left.append(f"a collective that not all have called ({told} so far): the next call has new ranks")
        if len(calls) > 1 or None in calls:
            self.close()
