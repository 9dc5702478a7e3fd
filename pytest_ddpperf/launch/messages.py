"""The messages between the controller (pytest's process), zygotes (the fork servers of ranks) and ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pytest_ddpperf.launch.context import Gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pytest_ddpperf.launch.redirection import Redirection
    from pytest_ddpperf.records.measurement import Mode

K = TypeVar("K")
V = TypeVar("V")
Stage = Literal["join", "load", "run", "verify", "send"]  # verify: a part of run
FailureKind = Literal["raised", "failed", "skipped", "refused", "exited", "memory", "garbled"]


@dataclass(frozen=True)
class Call:
    """The call that each rank makes: ``function(ctx, *arguments)``."""

    function: Callable[..., object]
    arguments: tuple[object, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """The description of one launch; all its ranks read the same description."""

    call: bytes  # a pickled Call; a rank loads it when path, environment and directory are in place
    world_size: int
    device: str
    group: str | None  # backend of the process group; None for a lone process without a group
    mode: Mode | None
    timeout: float  # seconds of the controller's deadline; torch's own is later
    environ: Mapping[str, str] = field(default_factory=dict)  # filled in on each node
    path: tuple[str, ...] = ()
    directory: str = ""
    projects: tuple[str, ...] = ()  # folders whose files are copied for the ranks
    folder: str = ""  # that has the copies
    files: tuple[Redirection, ...] = ()  # that lead to the copies
    preload: tuple[str, ...] = ()  # modules that the zygote imports before it forks
    own_group: bool = False  # whether the function makes the process group itself
    interleaved: bool = False  # whether other launches run at the same time
    listening: int = 0  # port of the store that rank 0 serves; known when its socket is bound
    gpus: Gpus = field(default_factory=Gpus)  # of the node, which its ranks share; none on the CPU
    probes: bool = False  # whether the function looks for GPUs, and so starts their driver
    first_rank: int = 0  # of this node
    local_world_size: int = 0  # the ranks of this node
    node: int = 0
    nodes: int = 1  # that take part
    interface: str = ""  # by which ranks of several nodes talk
    bind: bool = False  # whether each rank is bound to separate cores


@dataclass(frozen=True)
class SeenImport:
    """An import that a rank has made, with its file and duration in seconds."""

    module: str
    file: str
    seconds: float
    installed: bool = True  # else seconds lack installed modules that it imports
    refused: Preloaded | None = None  # if it reads variables that differ between ranks, or that the rank had changed


@dataclass(frozen=True)
class StackPosition:
    """The line of the user's code that a rank has reached, and the function that it waits in."""

    line: str  # the user's innermost line, as "file:line in function"
    call: str  # the library function called there; empty if the rank is in the user's own code
    waits: bool  # whether the rank waits for others: in a collective, in backward, or for its turn

    @property
    def text(self) -> str:
        """Returns the position in words, such as ``in all_reduce (train.py:12 in step)``."""
        if self.call and self.line:
            return f"in {self.call} ({self.line})"
        return f"in {self.call}" if self.call else f"at {self.line}"

    def numbered(self, collective: str, number: int) -> StackPosition:
        """Returns this position with the number of the collective that the rank waits in."""
        named = self.call if self.call == collective else f"{self.call}, {collective}"
        return replace(self, call=f"{named} #{number}") if self.call and self.waits else self

    def with_tensors(self, tensors: str) -> StackPosition:
        """Returns this position with a text on the tensors that were passed to the collective."""
        return replace(self, call=f"{self.call} of {tensors}") if tensors and self.call else self


@dataclass(frozen=True)
class Finished:
    """The report of a rank whose function has returned; ``value`` is pickled, ``stamp`` is in ns since the epoch."""

    value: bytes
    stamp: int
    imports: tuple[SeenImport, ...] = ()
    remark: str = ""  # on its GPU


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The report of a rank whose function failed; ``type`` and ``text`` are the exception's class and message."""

    stage: Stage
    kind: FailureKind
    type: str
    text: str
    traceback: str  # without the frames of this plugin
    stamp: int
    position: StackPosition | None = None
    sent: str = ""  # the tensors that the collective was given, such as float32[8]
    sequence: int | None = None  # how many collectives the rank had called; None if nobody knows
    phase: str = ""  # of training, in which memory ran out


RankReport = Finished | Failed


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupCalls:
    """The collectives that one rank has called in one process group, numbered from 1."""

    ranks: tuple[int, ...]  # the members of the group
    called: int | None  # the number of the last one; 0 before the first, None if the recorder does not say
    ended: int = 0  # the last one that has ended
    pending: Mapping[int, str] = field(default_factory=dict)  # later ones, with their tensors, as far as they are known
    point_to_point: bool = False  # whether a send or a receive has not ended

    @property
    def waits(self) -> bool:
        """Returns whether some collective of this group has not ended yet."""
        return self.point_to_point or (self.called is not None and self.called > self.ended)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCalls:
    """A rank's answer to the controller: the collectives that it has called, by name of the process group."""

    groups: Mapping[str, GroupCalls]
    whole: bool  # else a longer answer follows: this one has numbers alone, of one group


@dataclass(frozen=True)
class Ready:
    """The fork server's message after its import of torch; ``touched``: a module whose import used a GPU, or ""."""

    threads: int = 1
    touched: str = ""


@dataclass(frozen=True)
class Broken:
    """The last message of a fork server that has failed, or cannot import a module that ranks need."""

    reason: str


@dataclass(frozen=True)
class Ask:
    """The request to call a method of the object at the other end, such as a fork server or the ranks of a node.

    The reply is an ``Answer`` with the same ``number``. A fork server does not reply if the method returns None.
    """

    number: int
    method: str
    arguments: tuple[object, ...] = ()
    named: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """The value that a method has returned, or the reason why the method failed."""

    number: int
    value: Any
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preload:
    """The request to a fork server to import a module, with a rank's environment, ``sys.path`` and current folder."""

    environ: Mapping[str, str]
    path: tuple[str, ...]
    directory: str
    module: str = ""
    file: str = ""  # that ranks import; empty if any will do
    of_rank: bool = False  # whether only one rank, which has these variables, is forked from this zygote


@dataclass(frozen=True, kw_only=True, slots=True)
class Preloaded:
    """The fork server's answer to ``Preload``; ``reason``, if any, says why this server must not fork ranks."""

    reason: str = ""
    own_rank: bool = False  # whether the only reason is that the module reads the number of its rank
    inner: tuple[SeenImport, ...] = ()  # of a refused module: imports in it that can be preloaded
    variables: Mapping[str, str | None] = field(default_factory=dict)  # that the import read


@dataclass(frozen=True)
class Ended:
    """The message that a rank's process has ended; ``status`` is its exit status, or minus the signal's number."""

    rank: int
    status: int
    stamp: int
    headless: bool = False  # whether the zygote killed the process because its main thread had ended


def grouped(pairs: Iterable[tuple[V, K]]) -> dict[K, list[V]]:
    """Groups (value, key) pairs by key; returns the list of values of each key."""
    groups: dict[K, list[V]] = {}
    for value, key in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def numbers(ranks: Iterable[int]) -> str:
    """Returns ranks as text: ``rank 1`` or ``ranks 0, 2``."""
    listed = sorted(ranks)
    return f"rank{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed))}"


ZygoteEvent = Ready | Broken | Answer | Ended
