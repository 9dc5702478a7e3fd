"""What controller, zygote and ranks say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_ddpperf.records.measurement import Mode

Stage = Literal["join", "load", "run", "send"]
Kind = Literal["raised", "failed", "skipped", "refused", "exited", "memory"]


@dataclass(frozen=True)
class Call:
    """What to call on a rank: ``function(ctx, *arguments)``."""

    function: Callable[..., object]
    arguments: tuple[object, ...]


@dataclass(frozen=True)
class Job:
    """One launch, as all its ranks read it.

    Attributes:
        call: a ``Call``, pickled; loaded once path, environment and directory are in place.
        group: backend of the process group; None for a lone process that asks something of torch.
        timeout: seconds until torch's own deadline, which is only there for when ours has failed.
        listening: the port on which rank 0 serves the store; its socket is already bound.
        preload: modules that the zygote imports first, where it has not yet, so that not every rank has to.
    """

    call: bytes
    first_rank: int
    local_world_size: int
    world_size: int
    device: str
    group: str | None
    mode: Mode | None
    timeout: float
    listening: int
    environ: Mapping[str, str]
    path: tuple[str, ...]
    directory: str
    preload: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finished:
    """A rank's function has returned; ``value`` is its pickled result, ``stamp`` the time in nanoseconds."""

    value: bytes
    stamp: int


@dataclass(frozen=True)
class Failed:
    """A rank's function has ended otherwise.

    Attributes:
        type: name of the exception's class; ``text`` is its message.
        traceback: as it is shown, without the frames of this plugin.
    """

    stage: Stage
    kind: Kind
    type: str
    text: str
    traceback: str
    stamp: int


Report = Finished | Failed


@dataclass(frozen=True)
class Ready:
    """The zygote has imported torch and takes requests."""


@dataclass(frozen=True)
class Unready:
    """The zygote could not import what ranks need."""

    reason: str


@dataclass(frozen=True)
class Fork:
    """Asks for a rank. Its descriptors come along: report socket, stdout, stderr, stacks, job, listening socket."""

    local_rank: int
    preload: tuple[str, ...] = ()  # modules that it shall find imported


@dataclass(frozen=True)
class Forked:
    """A rank has been started."""

    local_rank: int
    pid: int


@dataclass(frozen=True)
class Refused:
    """A rank could not be forked."""

    local_rank: int
    reason: str


@dataclass(frozen=True)
class Copy:
    """Asks for another zygote, a copy of this one. Its control socket and the file for its output come along."""

    mark: str  # its own, in place of this one's


@dataclass(frozen=True)
class Copied:
    """Another zygote has been forked; ``pid`` is None for one that could not be."""

    mark: str
    pid: int | None


@dataclass(frozen=True)
class Signal:
    """Asks that these ranks, where they still run, get a signal."""

    local_ranks: tuple[int, ...]
    number: int


@dataclass(frozen=True)
class Sweep:
    """Asks that every process below the zygote be killed and reaped."""


@dataclass(frozen=True)
class Ended:
    """A rank is gone; ``status`` as of ``os.waitstatus_to_exitcode``: negative for a signal."""

    local_rank: int
    status: int
    stamp: int


@dataclass(frozen=True)
class Swept:
    """Nothing is left below the zygote but ``remaining``, which the kernel does not let go."""

    remaining: tuple[int, ...]


Request = Fork | Copy | Signal | Sweep
Event = Ready | Unready | Forked | Copied | Refused | Ended | Swept
