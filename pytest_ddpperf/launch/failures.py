"""Which rank failed first, and how that is said."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_ddpperf import errors
from pytest_ddpperf.errors import DdpperfError, PayloadError, RankFailed, RankSkipped
from pytest_ddpperf.launch import stacks
from pytest_ddpperf.launch.messages import Failed, Finished
from pytest_ddpperf.launch.outputs import titled
from pytest_ddpperf.launch.stacks import numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_ddpperf.launch.messages import Report
    from pytest_ddpperf.launch.outputs import RankOutput

# What torch says of a peer that is gone; whoever says it is a victim, as long as any rank has failed of itself.
_SECONDARY = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|[Ss]ocket [Tt]imeout|failed to recv, got 0 bytes"
    r"|Connection refused|Socket is not connected|Timed out waiting|Wait timeout|wait timeout|Application timeout"
    r"|remote process exited|ncclRemoteError|NCCL communicator was aborted|recvValue failed|sendBytes failed"
)
_TORCH_ERRORS = frozenset({"RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError", "DistError"})
_FATAL = "Fatal Python error:"
_BAD_ALLOC = (
    "what():  std::bad_alloc"  # said by a thread of C++ that could not have memory, and takes the process along
)
_OOM_HINT = ": the kernel ran out of memory; use fewer ranks or a smaller batch"


@dataclass(frozen=True)
class RankEnd:
    """How a rank stood when its launch was stopped; ``status`` None: it still ran."""

    rank: int
    report: Report | None
    status: int | None
    stamp: int
    output: RankOutput

    @property
    def failed(self) -> bool:
        """Whether it had failed by then."""
        return isinstance(self.report, Failed) or (self.report is None and self.status is not None)

    @property
    def over(self) -> bool:
        """Whether it had come to an end by then, of either kind."""
        return self.report is not None or self.status is not None

    @property
    def victim(self) -> bool:
        """Whether it only says that another one is gone."""
        report = self.report
        return (
            isinstance(report, Failed)
            and report.kind == "raised"
            and report.type.rpartition(".")[2] in _TORCH_ERRORS
            and _SECONDARY.search(report.text) is not None
        )

    @property
    def when(self) -> int:
        """Nanoseconds since the epoch, on this machine's clock."""
        return self.report.stamp if self.report is not None else self.stamp


def failure(ends: Sequence[RankEnd], world_size: int, *, out_of_memory: bool) -> DdpperfError:
    """The error to raise for a launch in which at least one rank failed: the root cause first, then the others.

    The root is the earliest failure that is not the echo of another one. A skip counts only where nothing failed.
    """
    failed = sorted((end for end in ends if end.failed), key=lambda end: end.when)
    skipped = [end for end in failed if isinstance(end.report, Failed) and end.report.kind == "skipped"]
    own = [end for end in failed if not end.victim and end not in skipped]
    if skipped and not own:
        return RankSkipped(_report(skipped[0]).text)
    root = own[0] if own else failed[0]
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
    """Whether a rank failed for want of memory; ``killed``: whether the kernel has killed for it meanwhile."""
    if isinstance(end.report, Failed):
        return end.report.kind == "memory"
    if end.status == -signal.SIGABRT:
        return _BAD_ALLOC in end.output.stderr
    return killed and end.status == -signal.SIGKILL


def _refusal(report: Failed) -> DdpperfError:
    """Our own error, as it was raised on the rank."""
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
    """What happened to a rank, as the rest of a sentence that starts with the rank."""
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
    """The remaining ranks, a line for each fate that some of them share."""
    fates: dict[str, list[int]] = {}
    rooted = _what(root, out_of_memory=out_of_memory)
    for end in ends:
        if end is root:
            continue
        fate = "finished" if isinstance(end.report, Finished) else _what(end, out_of_memory=out_of_memory)
        if end.victim:
            fate = "victim"
        elif not end.over:
            fate = "stopped"
        elif fate == rooted:
            fate = "the same"
        fates.setdefault(fate, []).append(end.rank)
    echo = next((_echo(_report(end)) for end in ends if end.victim), "")
    fates = {f"stopped (victims: {echo})" if fate == "victim" else fate: ranks for fate, ranks in fates.items()}
    return ["\n".join(f"{numbers(ranks)}: {fate}" for fate, ranks in fates.items())]


def _echo(report: Failed) -> str:
    """The part of a victim's message that says something: without addresses, torch's source lines and good wishes."""
    found = _SECONDARY.search(report.text)
    return f"{report.type.rpartition('.')[2]}: {found[0] if found else report.text}"
