"""A rank's exception as a message; the first rank that failed, and the error that tells of it."""

from __future__ import annotations

import re
import signal
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpperf import errors
from pytest_ddpperf.errors import DdpperfError, PayloadError, RankFailed, RankSkipped
from pytest_ddpperf.launch.messages import Failed, Finished
from pytest_ddpperf.launch.stacks import in_library, is_machinery, numbers, written
from pytest_ddpperf.launch.streams import RankOutput, titled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_ddpperf.launch.messages import FailureKind, RankReport, Stage

_INSTRUMENTS = str(Path(__file__).parents[1] / "instruments")
_CPU_ALLOCATOR = "DefaultCPUAllocator: can't allocate memory"
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


def failed_report(error: BaseException, stage: Stage) -> Failed:
    """Describe an exception; this never raises one itself."""
    try:
        return Failed(stage, _kind(error), _name(error), _text(error), _traceback(error), time.time_ns())
    except Exception as second:  # noqa: BLE001  e.g. MemoryError again, or an exception whose repr raises
        text = f"(and {type(second).__name__} while it was put into words)"
        return Failed(stage, "raised", type(error).__name__, text, "", time.time_ns())


def _kind(error: BaseException) -> FailureKind:
    names = {cls.__name__ for cls in type(error).__mro__}
    if "OutcomeException" in names:  # pytest's, whose __module__ says builtins
        return "skipped" if "Skipped" in names else "failed"
    if isinstance(error, DdpperfError):
        return "refused"
    if isinstance(error, SystemExit):
        return "exited"
    if names & {"MemoryError", "OutOfMemoryError"} or _CPU_ALLOCATOR in str(error):
        return "memory"
    return "raised"


def _name(error: BaseException) -> str:
    kind = type(error)
    prefix = "" if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}."
    return f"{prefix}{kind.__qualname__}"


def _text(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"sys.exit({'' if error.code is None else repr(error.code)})"
    return str(error)


def _traceback(error: BaseException) -> str:
    if isinstance(error, DdpperfError):
        return ""  # the message has it all
    summary = traceback.TracebackException.from_exception(error)
    _cut_machinery(summary, set())
    return "".join(summary.format()).rstrip("\n")


def _cut_machinery(summary: traceback.TracebackException, seen: set[int]) -> None:
    """Remove the frames between the fork and the user's function from an exception, its cause and its context."""
    if id(summary) in seen:
        return
    seen.add(id(summary))
    kept = [frame for frame in summary.stack if not is_machinery(frame.filename)]
    users = next((i for i, frame in enumerate(kept) if not in_library(frame.filename)), 0)
    # Frames of instruments lead to the user's code too; where none of it follows, the fault may be an instrument's.
    leading = [frame for frame in kept[:users] if not frame.filename.startswith(_INSTRUMENTS)]
    summary.stack = traceback.StackSummary.from_list([*leading, *kept[users:]])
    for cause in (summary.__cause__, summary.__context__):
        if cause is not None:
            _cut_machinery(cause, seen)


@dataclass(frozen=True)
class RankEnd:
    """The state of a rank when its launch was stopped; ``status`` is None where the process still ran."""

    rank: int
    report: RankReport | None = None
    status: int | None = None
    stamp: int = 0  # of the end
    output: RankOutput = field(default_factory=RankOutput)

    @property
    def failure(self) -> Failed | None:
        """The report of a rank that could still report its failure."""
        return self.report if isinstance(self.report, Failed) else None

    @property
    def failed(self) -> bool:
        """Whether the rank had failed."""
        return self.failure is not None or (self.report is None and self.status is not None)

    @property
    def over(self) -> bool:
        """Whether the rank had reported or ended."""
        return self.report is not None or self.status is not None

    @property
    def echo(self) -> str:
        """The message of a victim, whose error only tells of a lost peer, without addresses; empty for others."""
        if self.failure is None or self.failure.kind != "raised":
            return ""
        kind, found = self.failure.type.rpartition(".")[2], _SECONDARY.search(self.failure.text)
        return f"{kind}: {found[0]}" if found is not None and kind in _TORCH_ERRORS else ""

    @property
    def when(self) -> int:
        """The time of the report or of the end, in nanoseconds since the epoch."""
        return self.report.stamp if self.report is not None else self.stamp


def failure(ends: Sequence[RankEnd], world_size: int, *, out_of_memory: bool) -> DdpperfError:
    """The error for a launch in which a rank failed: the root cause first, then the other ranks.

    The root is the earliest failure that is not a victim's. A skip counts only where no rank failed. ``out_of_memory``
    says that the kernel has killed a process for want of memory meanwhile.
    """
    failed = sorted((end for end in ends if end.failed), key=lambda end: end.when)
    skips = [end.failure for end in failed if end.failure is not None and end.failure.kind == "skipped"]
    causes = [end for end in failed if not end.echo and end.failure not in skips]
    if skips and not causes:
        return RankSkipped(skips[0].text)
    root = causes[0] if causes else failed[0]
    if root.failure is not None and root.failure.stage in {"load", "send"}:
        return PayloadError(_undelivered(root.rank, root.failure))
    if root.failure is not None and root.failure.kind == "refused":
        return _refusal(root.failure)
    heading = f"rank {root.rank} of {world_size} {_fate(root, out_of_memory=out_of_memory)}"
    parts = (heading, _details(root), _others(ends, root, out_of_memory=out_of_memory))
    return RankFailed(
        "\n\n".join(filter(None, parts)),
        rank=root.rank,
        sections=titled((end.rank, end.output) for end in ends),
        out_of_memory=any(_wanted_memory(end, killed=out_of_memory) for end in failed),
    )


def _wanted_memory(end: RankEnd, *, killed: bool) -> bool:
    """Whether a rank failed for want of memory."""
    if end.failure is not None:
        return end.failure.kind == "memory"
    if end.status == -signal.SIGABRT:
        return _BAD_ALLOC in end.output.stderr
    return killed and end.status == -signal.SIGKILL


def _refusal(report: Failed) -> DdpperfError:
    """Make the plugin's own error again that was raised on the rank."""
    refusal: DdpperfError = getattr(errors, report.type.rpartition(".")[2], DdpperfError)(report.text)
    return refusal


def _undelivered(rank: int, report: Failed) -> str:
    if report.stage == "send":
        return report.text
    missing = report.type.rpartition(".")[2] in {"ImportError", "ModuleNotFoundError"}
    hint = "; a rank imports what the function needs by the sys.path of the test session" if missing else ""
    return f"rank {rank} cannot load the function: {report.type}: {report.text}{hint}\n\n{report.traceback}"


def _fate(end: RankEnd, *, out_of_memory: bool) -> str:
    """Tell the fate of a rank, as the rest of a sentence that starts with the rank."""
    if end.failure is not None:
        return _raised(end.failure)
    if end.status is None or end.report is not None:
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
    if end.failure is not None:
        return end.failure.traceback
    fatal = end.output.stderr.rfind(_FATAL)
    if fatal < 0:
        return ""
    first, _, text = end.output.stderr[fatal:].partition("\n")
    return f"{first}\n{written(text)}"


def _others(ends: Sequence[RankEnd], root: RankEnd, *, out_of_memory: bool) -> str:
    """One line for each fate of the other ranks."""
    root_fate = _fate(root, out_of_memory=out_of_memory)
    echo = next((end.echo for end in ends if end.echo), "")

    def fate(end: RankEnd) -> str:
        if end.echo:
            return f"stopped (victims: {echo})"
        if not end.over:
            return "stopped"
        if isinstance(end.report, Finished):
            return "finished"
        own_fate = _fate(end, out_of_memory=out_of_memory)
        return "the same" if own_fate == root_fate else own_fate

    fates: dict[str, list[int]] = {}
    for end in ends:
        if end is not root:
            fates.setdefault(fate(end), []).append(end.rank)
    return "\n".join(f"{numbers(ranks)}: {shared}" for shared, ranks in fates.items())
