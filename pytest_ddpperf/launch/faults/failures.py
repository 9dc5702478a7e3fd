"""Finds the first rank that failed, and makes the error that reports it."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from pytest_ddpperf import errors
from pytest_ddpperf.errors import DdpperfError, PayloadError, RankFailed, RankSkipped
from pytest_ddpperf.launch.faults.cures import ROOM, WANT_OF_MEMORY, cure_of
from pytest_ddpperf.launch.faults.stacks import minority, position, threads, written
from pytest_ddpperf.launch.messages import Failed, Finished, RankReport, StackPosition, grouped, numbers
from pytest_ddpperf.launch.streams import RankOutput, titled

# Messages of torch about a lost peer. A rank with such an error is not to blame, unless all failed ranks have one.
_SECONDARY = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|[Ss]ocket [Tt]imeout|failed to recv, got 0 bytes"
    r"|Connection refused|Socket is not connected|Timed out waiting|Wait timeout|wait timeout|Application timeout"
    r"|remote process exited|ncclRemoteError|NCCL communicator was aborted|recvValue failed|sendBytes failed"
    r"|Connection closed by remote peer|Socket recv failed while polling"
)
_TORCH_ERRORS = frozenset({"RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError", "DistError"})
_FATAL = "Fatal Python error:"
_OF_DUMP = re.compile(  # Python 3.14 adds a C stack
    r"\s*$|(?:Current t|T)hread[' ]|  (?:File|Binary file|\.\.\.|<)|Extension modules: |Python runtime state: "
)
_BAD_ALLOC = "what():  std::bad_alloc"  # the last words of a process whose C++ thread got no memory
_MISMATCH = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")  # gloo's, of a receiving rank
_LAST_WORDS = re.compile(r"^  what\(\):\s*(.*)$", re.MULTILINE)  # of a C++ exception that nobody caught
_LAST_ERROR = re.compile(r"^Last error:\s*\n\s*(\S.*)", re.MULTILINE)  # NCCL's own words, some lines below torch's
_NCCL_WARNING = re.compile(r"NCCL WARN (.*)")
_CUDA_ERROR = re.compile(r"(?:CUDA|HIP) error: .*")
_DEVICE_ASSERT = re.compile(r"^.*block: \[.*Assertion `.*` failed.*$", re.MULTILINE)
_NOTICED = re.compile(r"\[E(\d+) ([\d:.]+) [^\]]*\].*(?:CUDA|HIP) error: ")  # a line of torch's log: day, time
_STAGES = {"join": " while it joined the group", "verify": " while it was compared with a single process"}
_LONG = 150  # characters of a headline
_SENTENCES = re.compile(r".*[a-z)]\.(?= [A-Z])")
_OOM_HINT = ": the kernel ran out of memory; use fewer ranks or a smaller batch"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEnd:
    """The state of a rank at the end of its launch; ``status`` is its exit status, None if the process still ran."""

    rank: int
    report: RankReport | None = None
    status: int | None = None
    stamp: int = 0  # time of the end, in nanoseconds since the epoch
    output: RankOutput = field(default_factory=RankOutput)
    headless: bool = False  # its main thread had ended before the process
    starved: bool = False  # the kernel has meanwhile killed a process of the rank's machine because memory ran out

    @property
    def failure(self) -> Failed | None:
        """Returns the rank's report of its failure; None if the rank has not failed, or ended without a report."""
        return self.report if isinstance(self.report, Failed) else None

    @property
    def failed(self) -> bool:
        """Returns whether the rank reported a failure, or ended without a report."""
        return self.failure is not None or (self.report is None and self.status is not None)

    @property
    def over(self) -> bool:
        """Returns whether the rank had sent its report or had ended."""
        return self.report is not None or self.status is not None

    @property
    def last_words(self) -> str:
        """Returns the message of the C++ exception that aborted the process, or "" if there was none."""
        if self.report is not None or self.status != -signal.SIGABRT:
            return ""
        said = _LAST_WORDS.findall(self.output.stderr)[-1:]
        found = next(filter(None, map(_CUDA_ERROR.search, (*said, self.output.stderr))), None)
        return found[0] if found is not None else "".join(said)

    @property
    def noticed(self) -> tuple[bool, int, str]:
        """Returns a sort key for CUDA errors: failed assertions come first, then earlier times in torch's log."""
        found = _NOTICED.search(self.output.stderr)
        day, time = (int(found[1]), found[2]) if found is not None else (sys.maxsize, "")
        return _DEVICE_ASSERT.search(self.output.stderr) is None, day, time

    @property
    def warnings(self) -> str:
        """Returns the warnings that NCCL printed if the rank failed with a DistBackendError, else an empty text."""
        nccl = self.failure is not None and self.failure.type.endswith("DistBackendError")
        printed = f"{self.output.stdout}\n{self.output.stderr}"  # NCCL's own default is stdout
        return "\n".join(_NCCL_WARNING.findall(printed)) if nccl else ""

    @property
    def lost_peer(self) -> str:
        """Returns the rank's error, without addresses, if it only reports that another rank is gone; else ""."""
        if "NCCL" in self.last_words:
            echo = _SECONDARY.search(self.last_words)
            return "" if echo is None else f"SIGABRT: {echo[0]}"
        if self.failure is None or self.failure.kind != "raised":
            return ""
        kind, found = self.failure.type.rpartition(".")[2], _SECONDARY.search(self.failure.text)
        return f"{kind}: {found[0]}" if found is not None and kind in _TORCH_ERRORS else ""

    @property
    def mismatch(self) -> re.Match[str] | None:
        """Returns the match of gloo's error about unequal message sizes, if this error aborted the rank, else None."""
        return _MISMATCH.search(self.output.stderr) if self.status == -signal.SIGABRT else None


def failure(
    ends: Sequence[RankEnd], world_size: int, *, stacks: Mapping[int, str] = MappingProxyType({})
) -> DdpperfError:
    """Returns the error for a launch in which a rank failed. The error's message begins with the root cause.

    The root cause is the earliest failure that no other rank's failure caused. If ranks called ``pytest.skip`` and none
    failed, the error is RankSkipped. ``stacks`` has faulthandler's text for each rank that still ran.
    """
    failed = sorted((end for end in ends if end.failed), key=lambda end: (end.report or end).stamp)
    for end in failed:
        if end.mismatch is not None:
            return _mismatch(ends, end.rank, end.mismatch, stacks)
    skips = [end.failure for end in failed if end.failure is not None and end.failure.kind == "skipped"]
    causes = [end for end in failed if not end.lost_peer and end.failure not in skips]
    if skips and not causes:
        return RankSkipped(skips[0].text)
    causes = causes or failed
    # Aborts come in any order: if CUDA errors aborted ranks, the root is the earliest CUDA error.
    aborts = [end for end in causes if _CUDA_ERROR.match(end.last_words)]
    root = min(aborts, key=lambda end: end.noticed) if causes[0] in aborts else causes[0]
    if root.failure is not None and root.failure.stage in {"load", "send"}:
        return PayloadError(_undelivered(root.rank, root.failure), sections=_sections(ends))
    if root.failure is not None and root.failure.kind == "refused":
        return _refusal(root.failure, ends)
    heading = f"rank {root.rank} of {world_size} {_fate(root)}"
    details, position = _details(root), None if root.failure is None else root.failure.position
    return RankFailed(
        "\n\n".join(filter(None, (heading, details, _others(ends, root)))),
        rank=root.rank,
        where="" if position is None else position.line,
        stack=details,
        sections=_sections(ends, root),
        out_of_memory=any(map(_wanted_memory, failed)),
    )


def _mismatch(ends: Sequence[RankEnd], receiver: int, sizes: re.Match[str], stacks: Mapping[int, str]) -> RankFailed:
    """Returns the error for a launch in which gloo aborted ``receiver``, because a message was larger than expected.

    The error blames the only rank that is at another line, or sends other tensors, than the other ranks. A rank that
    has called fewer collectives than all others is not blamed, because it may only be slower.
    """
    sequences = {end.rank: end.failure.sequence for end in ends if end.failure is not None and end.failure.sequence}
    if len(sequences) == len(ends) - 1 > 1 and len({*sequences.values()}) == 1:
        sequences[receiver] = next(iter(sequences.values()))
    abreast = {rank for rank, number in sequences.items() if [*sequences.values()].count(number) > 1}
    lines: dict[str, list[int]] = {}
    tensors: dict[str, list[int]] = {}
    fates: dict[str, list[int]] = {}
    for end in ends:
        where, sent = _position(end, stacks), "" if end.failure is None else end.failure.sent
        if where is not None:
            lines.setdefault(where.line, []).append(end.rank)
        if sent:
            tensors.setdefault(sent, []).append(end.rank)
        unknown = "finished" if isinstance(end.report, Finished) else "stopped"
        fates.setdefault(unknown if where is None else where.with_tensors(sent).text, []).append(end.rank)
    minorities = (minority([*groups.values()]) for groups in (lines, tensors))
    odd = next((found[0] for found in minorities if len(found) == 1 and found[0] in abreast), None)
    listed = sorted(fates.items(), key=lambda fate: odd not in fate[1])
    pieces = f"rank {receiver} of {len(ends)} received a piece of {sizes[1]} bytes and expected one of {sizes[2]}"
    if odd is not None:
        pieces = f"rank {odd} called another collective than the other ranks; {pieces}"
    places = "\n".join(f"{numbers(ranks)}: {fate}" for fate, ranks in listed)
    return RankFailed(
        f"ranks called collectives of different sizes: {pieces}\n\n{places}\n\n"
        "TORCH_DISTRIBUTED_DEBUG=DETAIL makes torch name the first collective that differs",
        rank=odd,
        sections=_sections(ends),
    )


def _position(end: RankEnd, stacks: Mapping[int, str]) -> StackPosition | None:
    """Returns the position at which a rank failed or was stopped, or None if the rank finished or left no stack."""
    if end.failure is not None:
        return end.failure.position
    stack = stacks.get(end.rank, end.output.stderr[max(0, end.output.stderr.rfind(_FATAL)) :])
    found = threads(stack)
    return position(found[0]) if found and end.report is None else None


def _wanted_memory(end: RankEnd) -> bool:
    if end.failure is not None:
        return end.failure.kind == "memory" or WANT_OF_MEMORY.search(end.warnings) is not None
    if end.status == -signal.SIGABRT:
        return _BAD_ALLOC in end.output.stderr or WANT_OF_MEMORY.search(end.last_words) is not None
    return end.starved and end.status == -signal.SIGKILL


def _sections(ends: Sequence[RankEnd], root: RankEnd | None = None) -> tuple[tuple[str, str], ...]:
    """Returns (title, output) pairs of ranks, without this plugin's frames and without a stack of rank ``root``."""
    shown = {end.rank: "".join(_dump(end)[: 1 if end is root else 2]) for end in ends}
    return titled((end.rank, replace(end.output, stderr=shown[end.rank])) for end in ends)


def _dump(end: RankEnd) -> tuple[str, str]:
    """Splits a rank's stderr into the text without faulthandler's dump, and the dump without this plugin's frames."""
    before, fatal, rest = end.output.stderr.rpartition(_FATAL)
    first, *lines = rest.splitlines(keepends=True) or [""]
    length = next((i for i, line in enumerate(lines) if not _OF_DUMP.match(line)), len(lines))
    dump = "".join(lines[:length])
    # Without stacks it is another error, and with a report or no status it may be of a process that the rank started.
    if not threads(dump) or end.report is not None or end.status is None:
        return end.output.stderr, ""
    return before + "".join(lines[length:]), f"{fatal}{first}{written(dump, idle=True)}"


def _refusal(report: Failed, ends: Sequence[RankEnd]) -> DdpperfError:
    """Returns the DdpperfError that a rank raised, with the output of all ranks."""
    kind = getattr(errors, report.type.rpartition(".")[2], DdpperfError)
    refusing = [end.rank for end in ends if end.failure is not None and end.failure.kind == "refused"]
    first, *more = report.text.split("\n")
    if kind is errors.WorkloadError and report.stage != "verify" and len(refusing) < len(ends):
        first = f"{first} (on {numbers(refusing)} of {len(ends)})"
    refusal: DdpperfError = kind("\n".join((first, *more)), sections=_sections(ends))
    return refusal


def _undelivered(rank: int, report: Failed) -> str:
    if report.stage == "send" and report.kind == "refused":
        return report.text
    if report.stage == "send":
        reason = f"{report.type}: {report.text}" if report.text else report.type
        return f"the result of rank {rank} cannot be sent back: {reason}; return plain data\n\n{report.traceback}"
    missing = report.type.rpartition(".")[2] in {"ImportError", "ModuleNotFoundError"}
    hint = "; ranks import modules from the sys.path of the test session" if missing else ""
    return f"rank {rank} cannot load the function: {report.type}: {report.text}{hint}\n\n{report.traceback}"


def _fate(end: RankEnd) -> str:
    """Returns how a rank ended, as the rest of a sentence that begins with the rank: ``exited with status 1``."""
    if end.failure is not None:
        return _raised(end.failure, end.warnings)
    if end.status is None or end.report is not None:
        return "was stopped"
    if end.headless:
        return "was killed, because its code or a sandbox ended its main thread"
    if end.status >= 0:
        without_a_word = "" if end.status else ", which os._exit() or a library does: return from the function instead"
        return f"exited with status {end.status}{without_a_word}"
    try:
        name = signal.Signals(-end.status).name
    except ValueError:
        name = f"signal {-end.status}"
    if end.starved and -end.status == signal.SIGKILL:
        return f"was killed by {name}{_OOM_HINT}"
    said = ": ".join(filter(None, (f"was killed by {name}", end.last_words[:200])))
    return "; ".join(filter(None, (said, cure_of("RuntimeError", end.last_words))))


def _raised(report: Failed, warnings: str) -> str:
    of_nccl = _LAST_ERROR.search(report.text) if report.type.endswith("DistBackendError") else None
    first = ": ".join((_headline(report.text), *([of_nccl[1]] if of_nccl is not None else [])))
    stage = _STAGES.get(report.stage, "")
    cure = cure_of(report.type, f"{report.text}\n{warnings}".rstrip("\n")) or ROOM * (report.kind == "memory")
    if report.kind == "exited":
        return f"called {first}{stage}{f'; {cure}' if cure else ''}"
    if report.kind == "garbled":
        return "sent data that is not a report: its code writes to a socket that it did not open"
    if report.kind == "failed":
        return f"failed: {first}"
    phase = f" in {report.phase}" if report.phase else ""
    verb = f"ran out of memory{phase}:" if report.kind == "memory" else "raised"
    said = "; ".join(filter(None, (f"{first}{stage}".removesuffix("." if cure else ""), cure)))
    return f"{verb} {report.type}{': ' if first or cure else ''}{said}"


def _headline(text: str) -> str:
    """Returns an error's first line; if the line is long and ends within a sentence, only its complete sentences."""
    line, more, _ = text.partition("\n")
    breaks = more and len(line) > _LONG and not line.rstrip().endswith(".")
    whole = _SENTENCES.match(line) if breaks else None
    return line if whole is None else whole[0]


def _details(end: RankEnd) -> str:
    if end.failure is not None:
        return end.failure.traceback
    failed = _DEVICE_ASSERT.search(end.output.stderr) if end.last_words else None
    return "\n".join(filter(None, ("" if failed is None else failed[0], _dump(end)[1])))


def _others(ends: Sequence[RankEnd], root: RankEnd) -> str:
    root_fate = _fate(root)
    lost_peer = next((end.lost_peer for end in ends if end.lost_peer), "")

    def fate(end: RankEnd) -> str:
        if end.lost_peer:
            return f"stopped (as a consequence: {lost_peer})"
        if not end.over:
            return "stopped"
        if isinstance(end.report, Finished):
            return "finished"
        own_fate = _fate(end)
        return "the same" if own_fate == root_fate else own_fate

    fates = grouped((end.rank, fate(end)) for end in ends if end is not root)
    return "\n".join(f"{numbers(ranks)}: {shared}" for shared, ranks in fates.items())
