"""The first rank that failed, and the error that tells of it."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_ddpperf import errors
from pytest_ddpperf.errors import DdpperfError, PayloadError, RankFailed, RankSkipped
from pytest_ddpperf.launch import stacks
from pytest_ddpperf.launch.messages import Failed, Finished
from pytest_ddpperf.launch.outputs import RankOutput, titled
from pytest_ddpperf.launch.stacks import numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_ddpperf.launch.messages import RankReport

# What torch says of a lost peer. A rank with such an error is a victim, unless all failed ranks are.
_SECONDARY = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|[Ss]ocket [Tt]imeout|failed to recv, got 0 bytes"
    r"|Connection refused|Socket is not connected|Timed out waiting|Wait timeout|wait timeout|Application timeout"
    r"|remote process exited|ncclRemoteError|NCCL communicator was aborted|recvValue failed|sendBytes failed"
)
_TORCH_ERRORS = frozenset({"RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError", "DistError"})
_FATAL = "Fatal Python error:"
_BAD_ALLOC = "what():  std::bad_alloc"  # the last words of a process whose C++ thread got no memory
_OOM_HINT = ": the kernel ran out of memory; use fewer ranks or a smaller batch"


@dataclass(frozen=True)
class RankEnd:
    """The state of a rank when its launch was stopped; ``status`` is None where the process still ran."""

    rank: int
    report: RankReport | None = None
    status: int | None = None
    stamp: int = 0  # of the end
    output: RankOutput = field(default_factory=RankOutput)

    @property
    def failed(self) -> bool:
        """Whether the rank had failed."""
        return isinstance(self.report, Failed) or (self.report is None and self.status is not None)

    @property
    def over(self) -> bool:
        """Whether the rank had reported or ended."""
        return self.report is not None or self.status is not None

    @property
    def victim(self) -> bool:
        """Whether the rank's error only tells of a lost peer."""
        report = self.report
        return (
            isinstance(report, Failed)
            and report.kind == "raised"
            and report.type.rpartition(".")[2] in _TORCH_ERRORS
            and _SECONDARY.search(report.text) is not None
        )

    @property
    def when(self) -> int:
        """The time of the report or of the end, in nanoseconds since the epoch."""
        return self.report.stamp if self.report is not None else self.stamp


def failure(ends: Sequence[RankEnd], world_size: int, *, out_of_memory: bool) -> DdpperfError:
    """The error for a launch in which a rank failed: the root cause first, then the other ranks.

    The root is the earliest failure that is not a victim's. A skip counts only where no rank failed.
    """
    failed = sorted((end for end in ends if end.failed), key=lambda end: end.when)
    skipped = [end for end in failed if isinstance(end.report, Failed) and end.report.kind == "skipped"]
    causes = [end for end in failed if not end.victim and end not in skipped]
    if skipped and not causes:
        return RankSkipped(_report(skipped[0]).text)
    root = causes[0] if causes else failed[0]
    if isinstance(root.report, Failed) and root.report.stage in {"load", "send"}:
        return PayloadError(_undelivered(root.rank, root.report))
    if isinstance(root.report, Failed) and root.report.kind == "refused":
        return _refusal(root.report)
    heading = f"rank {root.rank} of {world_size} {_what(root, out_of_memory=out_of_memory)}"
    parts = [heading, _details(root), *_others(ends, root, out_of_memory=out_of_memory)]
    return RankFailed(
        "\n\n".join(filter(None, parts)),
        rank=root.rank,
        sections=titled((end.rank, end.output) for end in ends),
        out_of_memory=any(_wanted_memory(end, killed=out_of_memory) for end in failed),
    )


def _wanted_memory(end: RankEnd, *, killed: bool) -> bool:
    """Whether a rank failed for want of memory; ``killed`` says that the kernel killed a process for that meanwhile."""
    if isinstance(end.report, Failed):
        return end.report.kind == "memory"
    if end.status == -signal.SIGABRT:
        return _BAD_ALLOC in end.output.stderr
    return killed and end.status == -signal.SIGKILL


def _refusal(report: Failed) -> DdpperfError:
    """Make the plugin's own error again that was raised on the rank."""
    kind = getattr(errors, report.type.rpartition(".")[2], DdpperfError)
    refusal: DdpperfError = kind(report.text)
    return refusal


def _report(end: RankEnd) -> Failed:
    if not isinstance(end.report, Failed):
        raise TypeError(end.report)
    return end.report


def _undelivered(rank: int, report: Failed) -> str:
    if report.stage == "send":
        return report.text
    missing = report.type.rpartition(".")[2] in {"ImportError", "ModuleNotFoundError"}
    hint = "; a rank imports what the function needs by the sys.path of the test session" if missing else ""
    return f"rank {rank} cannot load the function: {report.type}: {report.text}{hint}\n\n{report.traceback}"


def _what(end: RankEnd, *, out_of_memory: bool) -> str:
    """Tell the fate of a rank, as the rest of a sentence that starts with the rank."""
    if isinstance(end.report, Failed):
        return _raised(end.report)
    if end.status is None or isinstance(end.report, Finished):
        return "was stopped"
    if end.status >= 0:
        return f"exited with status {end.status}"
    try:
        name = signal.Signals(-end.status).name
    except ValueError:
        name = f"signal {-end.status}"
    return f"was killed by {name}{_OOM_HINT if out_of_memory and -end.status == signal.SIGKILL else ''}"


def _raised(report: Failed) -> str:
    first = report.text.partition("\n")[0]
    joining = " while it joined the group" if report.stage == "join" else ""
    if report.kind == "exited":
        return f"called {first}{joining}"
    if report.kind == "failed":
        return f"failed: {first}"
    verb = "ran out of memory:" if report.kind == "memory" else "raised"
    return f"{verb} {report.type}{': ' if first else ''}{first}{joining}"


def _details(end: RankEnd) -> str:
    if isinstance(end.report, Failed):
        return end.report.traceback
    fatal = end.output.stderr.rfind(_FATAL)
    if fatal < 0:
        return ""
    first, _, text = end.output.stderr[fatal:].partition("\n")
    return f"{first}\n{stacks.written(text)}"


def _others(ends: Sequence[RankEnd], root: RankEnd, *, out_of_memory: bool) -> list[str]:
    """One line for each fate of the other ranks."""
    root_fate = _what(root, out_of_memory=out_of_memory)
    echo = next((_echo(_report(end)) for end in ends if end.victim), "")

    def fate(end: RankEnd) -> str:
        if end.victim:
            return f"stopped (victims: {echo})"
        if not end.over:
            return "stopped"
        if isinstance(end.report, Finished):
            return "finished"
        own_fate = _what(end, out_of_memory=out_of_memory)
        return "the same" if own_fate == root_fate else own_fate

    fates: dict[str, list[int]] = {}
    for end in ends:
        if end is not root:
            fates.setdefault(fate(end), []).append(end.rank)
    return ["\n".join(f"{numbers(ranks)}: {shared}" for shared, ranks in fates.items())]


def _echo(report: Failed) -> str:
    """A victim's message without addresses, torch's source lines and advice."""
    found = _SECONDARY.search(report.text)
    return f"{report.type.rpartition('.')[2]}: {found[0] if found else report.text}"
