"""Many launches of one launcher, and launches of many ranks: what grows, and what is left."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.campaign.left import SHARED, processes
from pytest_ddpperf.errors import RankFailed
from pytest_ddpperf.launch.launcher import Launcher

FAILING_EVERY = 10  # launches: one whose second rank raises
SETTLED = 0.2  # of the launches, after which nothing may grow
MAX_GROWTH = 4 << 20  # bytes of memory that the launches after that may add to a process
SECONDS = 120.0
ENDING = 5.0  # seconds: the kernel lists a thread for a moment after it was joined
POLL = 0.01  # seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """What a process holds; memory is what it has resident, in bytes."""

    memory: int
    files: int
    threads: int
    children: int

    @classmethod
    def of(cls, pid: int) -> State:
        """That of a process."""
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        fields = dict(line.split(":", 1) for line in status.splitlines())
        tasks = Path(f"/proc/{pid}/task")
        children = "".join((task / "children").read_text(encoding="ascii") for task in tasks.iterdir())
        return cls(
            memory=int(fields["VmRSS"].split()[0]) << 10,
            files=len(os.listdir(f"/proc/{pid}/fd")),
            threads=int(fields["Threads"]),
            children=len(children.split()),
        )

    def holds_more(self, settled: State) -> bool:
        """Whether it is more than it was once the first launches had ended."""
        pairs = ((self.files, settled.files), (self.threads, settled.threads), (self.children, settled.children))
        return any(now > then for now, then in pairs) or self.memory - settled.memory > MAX_GROWTH

    def __str__(self) -> str:
        return (
            f"{self.memory / (1 << 20):7.1f} MiB, {self.files} descriptors, {self.threads} threads, "
            f"{self.children} children"
        )


def train(ctx: Any, failing: int) -> float:
    """Some steps with collectives; the rank ``failing`` raises before the last, and rank 0 is none that can."""
    import torch
    import torch.distributed as dist

    weight = torch.ones(1000)
    for _ in range(5):
        dist.all_reduce(weight)
        weight /= ctx.world_size
    if 0 < ctx.rank == failing:
        raise ValueError("sabotaged")
    dist.barrier()
    return float(weight.sum())


def endured(launches: int, world_sizes: Sequence[int]) -> Iterator[tuple[str, bool]]:
    """Lines of a report, each with whether it holds."""
    before = set(os.listdir(SHARED)), set(processes())
    with Launcher() as launcher:
        yield from _launches(launcher, launches) if launches else ()
        for size in world_sizes:
            started = time.monotonic()
            values = launcher.run(train, 0, world_size=size, device="cpu", backend="gloo", timeout=SECONDS).values
            whole = time.monotonic() - started
            yield f"{size} ranks on {os.cpu_count()} cores: started and ended in {whole:.1f} s", len(values) == size
    left = set(os.listdir(SHARED)) - before[0]
    yield f"left in {SHARED}: {', '.join(sorted(left)) or 'nothing'}", not left
    own = {pid: name for pid, name in processes().items() if pid not in before[1] and str(os.getpid()) in _parents(pid)}
    yield f"left of processes: {', '.join(own.values()) or 'nothing'}", not own


def _parents(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[1:2]
    except OSError:
        return []


def _lasting(pid: int, settled: State | None) -> State:
    """What a process holds, with time to end what is ending where that is more than ``settled``."""
    deadline = time.monotonic() + ENDING
    state = State.of(pid)
    while settled is not None and state.holds_more(settled) and time.monotonic() < deadline:
        time.sleep(POLL)
        state = State.of(pid)
    return state


def _launches(launcher: Launcher, launches: int) -> Iterator[tuple[str, bool]]:
    settled: list[State] = []
    shown = {round(launches * share) for share in (SETTLED, 0.4, 0.6, 0.8, 1)}
    started = time.monotonic()
    for number in range(1, launches + 1):
        fails = number % FAILING_EVERY == 0
        try:
            launcher.run(train, int(fails), world_size=2, device="cpu", backend="gloo", timeout=SECONDS)
        except RankFailed:
            if not fails:
                raise
        if number not in shown:
            continue
        gc.collect()
        pids = (os.getpid(), launcher.pid or 0)
        found = [_lasting(pid, then) for pid, then in zip(pids, settled or (None, None), strict=True)]
        settled = settled or found
        for name, now, then in zip(("session", "zygote"), found, settled, strict=True):
            yield f"{number:5} launches, {name}: {now}", not now.holds_more(then)
    yield f"{(time.monotonic() - started) / launches:.2f} s for a launch", True
