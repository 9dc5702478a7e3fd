"""One launch from the first fork to the last exit."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.errors import PayloadError, RanksTimedOut
from pytest_ddpperf.launch import failures, payload, processes, stacks
from pytest_ddpperf.launch.messages import Finished
from pytest_ddpperf.launch.outputs import titled
from pytest_ddpperf.launch.rank_processes import End, RankProcesses

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_ddpperf.launch.failures import RankEnd
    from pytest_ddpperf.launch.messages import Job
    from pytest_ddpperf.launch.zygote_process import ZygoteProcess


def conduct(zygote: ZygoteProcess, job: Job, sweep: Callable[[], None]) -> tuple[list[RankEnd], float]:
    """Run a job on fresh ranks, sweep, and return how each rank ended and the seconds that it took."""
    started = time.monotonic()
    kills = processes.out_of_memory_kills()
    with RankProcesses(zygote, job.local_world_size, job.first_rank) as ranks:
        try:
            end, standing = _run(ranks, job, started + job.timeout)
        finally:
            sweep()
        seconds = time.monotonic() - started
        ends = [rank.end for rank in ranks.ranks]
    if end is End.LATE:
        raise _timed_out(ends, standing, job)
    if end is End.FAILED:
        raise failures.failure(ends, job.world_size, out_of_memory=processes.out_of_memory_kills() > kills)
    return ends, seconds


def value_of(end: RankEnd) -> Any:
    """Load the value that a rank has returned."""
    if not isinstance(end.report, Finished):
        raise TypeError(end.report)
    try:
        return payload.loads(end.report.value)
    except Exception as error:
        raise PayloadError(
            f"what rank {end.rank} returned cannot be read by the test session: {type(error).__name__}: {error}; "
            "return plain data"
        ) from error


def _run(ranks: RankProcesses, job: Job, deadline: float) -> tuple[End, dict[int, str]]:
    """Start the ranks and wait for them; the second value has the stacks of ranks that the deadline has caught."""
    with contextlib.ExitStack() as opened:
        # Bound here and served by rank 0: no other process can take the port between the choice and the use.
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=max(128, job.world_size)))
        file = os.memfd_create("ddpperf-job")
        opened.callback(os.close, file)
        with open(file, "wb", closefd=False) as written:
            pickle.dump(replace(job, listening=listener.getsockname()[1]), written)
        ranks.fork(file, listener if job.group is not None else None, job.preload)
    end = ranks.watch(deadline)
    if end is End.FINISHED:
        ranks.dismiss()
    return end, ranks.stacks() if end is End.LATE else {}


def _timed_out(ends: list[RankEnd], standing: dict[int, str], job: Job) -> RanksTimedOut:
    finished = [end.rank for end in ends if isinstance(end.report, Finished)]
    first_line, guilty = stacks.roll_call(standing, finished, job.world_size, job.timeout)
    return RanksTimedOut(
        f"{first_line}\n\n{stacks.listing(standing, guilty)}",
        rank=guilty,
        sections=titled((end.rank, end.output) for end in ends),
    )
