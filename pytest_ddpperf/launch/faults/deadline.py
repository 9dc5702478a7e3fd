"""The facts about the ranks of a launch that has missed its deadline, and the error that reports these facts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pytest_ddpperf.errors import LaunchError, RanksTimedOut
from pytest_ddpperf.launch import progress
from pytest_ddpperf.launch.faults import roll_call, stacks
from pytest_ddpperf.launch.faults.failures import RankEnd
from pytest_ddpperf.launch.faults.flight_recorder import Stall, stall, waits_in
from pytest_ddpperf.launch.faults.stacks import STACK_SECONDS
from pytest_ddpperf.launch.messages import Job, RankCalls, numbers
from pytest_ddpperf.launch.progress import Progress
from pytest_ddpperf.launch.streams import titled

_LOOK_SECONDS = 0.5  # between the two stacks of a rank: a slow launch may end a step meanwhile
_AGAIN_SECONDS = 0.25  # to wait for the second stacks if a rank has not given the first


class _Launch(Protocol):  # the methods of LaunchedRanks that this module calls
    def stacks(self, seconds: float = ...) -> dict[int, str]: ...
    def progress(self) -> dict[int, Progress]: ...
    def calls(self) -> dict[int, RankCalls]: ...
    def look(self, seconds: float) -> None: ...
    def fail_waiting(self, *suspects: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class LateRanks:
    """The unfinished ranks of a launch that missed its deadline: their stacks, progress and collectives."""

    seconds: float  # since the launch began
    stacks: Mapping[int, str]  # the later of two
    moved: Mapping[int, bool] = field(default_factory=dict)  # whether the two stacks differ, if that is known
    stalled: Stall | None = None  # what ranks wait for, according to torch's flight recorder
    waits_in: Mapping[int, tuple[str, int]] = field(default_factory=dict)  # collectives and their numbers
    progress: Mapping[int, Progress] = field(default_factory=dict)
    advances: bool = False  # whether a rank reached another step between the two stacks

    @property
    def pace(self) -> str:
        """Returns a sentence that says whether the launch is slow or hangs; empty if too few stacks were collected."""
        if self.advances:
            return "steps went on at the deadline, so the launch is slow and does not hang: raise timeout"
        moving = [rank for rank, moved in self.moved.items() if moved]
        if moving:
            moved = f"{numbers(moving)} still moved at the deadline"
            return f"{moved}, so perhaps the launch is slow and does not hang: try a higher timeout"
        if self.moved.keys() == self.stacks.keys():
            return f"no rank moved within {_LOOK_SECONDS:g} s, so the launch hangs, or a single call takes long"
        return ""

    def error(self, ends: Sequence[RankEnd], job: Job, threads: int) -> RanksTimedOut:
        """Returns the error for the missed deadline; ``threads`` is the number of extra threads in the fork server."""
        standing, stalled = self.stacks, self.stalled
        finished = [end.rank for end in ends if end.rank not in standing]
        called = {end.rank: end.failure.sequence for end in ends if end.failure is not None and end.lost_peer}
        nccl = job.group == "nccl"
        first_line, guilty = roll_call.heading(
            standing,
            finished,
            job.world_size,
            self.seconds,
            called,
            nccl=nccl,
            moved=self.moved,
            waits_in=self.waits_in,
        )
        hints = [roll_call.mismatch_hint(standing, finished, nccl=nccl)] if job.world_size > 1 else []
        if stalled is not None:
            guilty, hints = stalled.rank if nccl or stalled.rank is not None else guilty, [stalled.text]
        hints = [progress.told(self.progress), self.pace, *hints]
        if threads:
            extra = f"the process that forks ranks has {threads} extra {'threads' if threads > 1 else 'thread'}"
            hints.append(f"{extra}: ranks would wait forever for a lock that such a thread held at the fork")
        first, _, others = (listing := stacks.listing(standing, guilty)).partition("\n\n")
        return RanksTimedOut(
            "\n\n".join(filter(None, (first_line, *hints, listing))),
            rank=guilty,
            stack=first,
            others=others,
            sections=titled((end.rank, end.output) for end in ends),
        )


def late_ranks(launch: _Launch, job: Job) -> LateRanks:
    """Collects stacks and progress of late ranks twice, to see whether ranks move."""
    nccl = job.group == "nccl"
    first, before = launch.stacks(), launch.progress()
    launch.look(_LOOK_SECONDS)
    later = launch.stacks(STACK_SECONDS if all(first.values()) else _AGAIN_SECONDS)
    now = launch.progress()
    standing = {rank: later.get(rank) or text for rank, text in first.items()}
    calls = launch.calls() if job.group is not None else {}
    elsewhere = [] if nccl else roll_call.waiting(standing)  # a rank that gloo lets wait is in a receive, or the store
    stalled = stall(calls, "NCCL" if nccl else "gloo", elsewhere)
    suspect = roll_call.suspect(standing, [rank for rank in range(job.world_size) if rank not in standing])
    if suspect is not None and (stalled is None or (stalled.rank is None and not nccl)):
        with contextlib.suppress(LaunchError):  # the zygote's end must not hide the deadline
            launch.fail_waiting(suspect)
    return LateRanks(
        seconds=job.timeout,
        stacks=standing,
        moved=roll_call.moved(first, later, nccl=nccl),
        stalled=stalled,
        waits_in={rank: call for rank, answer in calls.items() if (call := waits_in(answer)) is not None},
        progress=now,
        advances=progress.advanced(before, now),
    )
