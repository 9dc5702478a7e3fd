"""What tasks of a launcher say when they meet, and what an agent says of the ranks of a launch unasked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pytest_ddpperf.launch.failures import RankEnd


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

    def plain(self) -> dict[str, Any]:
        """The same for JSON."""
        return {**asdict(self), "cores": sorted(self.cores)}

    @classmethod
    def of(cls, plain: Any) -> Hello:
        """The hello of ``plain``; TypeError or KeyError if it is none."""
        fields = {**plain, "rank": int(plain["rank"]), "cores": frozenset(plain["cores"]), "gpus": (*plain["gpus"],)}
        return cls(**fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """What the controller makes of a task: the agent of a node, or idle (``node`` is None)."""

    node: int | None
    cores: frozenset[int] = frozenset()  # of all tasks of the node
    key: bytes = b""  # for further links to the controller, in place of the card's


@dataclass(frozen=True)
class Close:
    """The end: the task ends with this exit status."""

    status: int


@dataclass(frozen=True)
class States:
    """Ranks whose state has changed; a report comes once."""

    ranks: tuple[RankEnd, ...]


@dataclass(frozen=True)
class Printed:
    """Lines that a rank has printed."""

    rank: int
    lines: tuple[str, ...]
