"""The messages between the controller and the processes of other nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_ddpperf.launch.failures import RankEnd
from pytest_ddpperf.launch.messages import Job, RankCalls, SeenImport
from pytest_ddpperf.launch.progress import Progress
from pytest_ddpperf.records.health import CpuHealth


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """What a task says of itself when it meets the controller."""

    rank: int
    host: str
    machine: str  # tasks with the same one are on one node
    cores: frozenset[int]  # that the task may use
    gpus: tuple[str, ...] = ()  # that the task may open, by UUID, and those of them that it is told to use
    needed: Mapping[str, str] = field(default_factory=dict)  # facts that must equal the controller's
    facts: Mapping[str, str] = field(default_factory=dict)  # facts that are told where they differ


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """What the controller makes of a task: the agent of a node, or idle (``node`` is None)."""

    node: int | None
    cores: frozenset[int] = frozenset()  # of all tasks of the node
    key: bytes = b""  # for further links to the controller, in place of the card's


@dataclass(frozen=True)
class Ping:
    """A message that comes back at once, with the clock of who sends it back."""

    clock: int = 0  # nanoseconds since the epoch


@dataclass(frozen=True)
class Close:
    """The end: the task ends with this exit status."""

    status: int


@dataclass(frozen=True)
class WatchHealth:
    """The request to watch the node during a launch."""


@dataclass(frozen=True)
class AskHealth:
    """The end of the launch; the answer is ``NodeHealth`` with the same number."""

    number: int


@dataclass(frozen=True)
class NodeHealth:
    """What else the node did during the launch."""

    number: int
    cpu: CpuHealth


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenLauncher:
    """The request for a launcher, to which a link of its own leads; the answer is ``Opened`` over that link."""

    number: int
    preload: tuple[str, ...]
    redirection: str | None = None  # of ``Redirection.dumps``
    like: int | None = None  # the number of a launcher with the same arguments


@dataclass(frozen=True)
class Opened:
    """The first message over the link of a launcher of a node."""

    node: int
    number: int


@dataclass(frozen=True)
class ReachStore:
    """The first message over a link that carries the bytes of a launch's store; ``port`` is the controller's."""

    port: int


@dataclass(frozen=True)
class AskReady:
    """The request to import torch. ``changes``: variables by which the environment differs from that at the start."""

    changes: Mapping[str, str | None]


@dataclass(frozen=True)
class AskPreload:
    """The request to import modules that later ranks then find imported; ``NodeReady`` answers it."""

    modules: tuple[SeenImport, ...]


@dataclass(frozen=True)
class NodeReady:
    """Ranks can be forked at once, or not for this reason."""

    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Begin:
    """The ranks of a node in a launch."""

    job: Job
    echo: bool = False


@dataclass(frozen=True)
class Dismiss:
    """The ranks may end."""


@dataclass(frozen=True)
class AskStacks:
    """The request for the stacks of the ranks that have not finished, in so many seconds."""

    seconds: float


@dataclass(frozen=True)
class AskCalls:
    """The request for what the ranks have called, in so many seconds."""

    seconds: float


@dataclass(frozen=True)
class AskGpus:
    """The request for the number of GPUs that ranks of this node can use."""


@dataclass(frozen=True)
class GpuCount:
    """The number of GPUs that ranks of this node can use."""

    number: int


@dataclass(frozen=True)
class States:
    """Ranks whose state has changed; a report comes once."""

    ranks: tuple[RankEnd, ...]


@dataclass(frozen=True)
class Printed:
    """Lines that a rank has printed."""

    rank: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Stacks:
    """The answer to ``AskStacks``, by rank."""

    texts: Mapping[int, str]
    progress: Mapping[int, Progress]


@dataclass(frozen=True)
class Calls:
    """The answer to ``AskCalls``, by rank."""

    ranks: Mapping[int, RankCalls]


@dataclass(frozen=True)
class NodeSwept:
    """The end of a launch on a node: its ranks with what they have printed, or why it could not be conducted."""

    ranks: tuple[RankEnd, ...] = ()
    reason: str = ""
