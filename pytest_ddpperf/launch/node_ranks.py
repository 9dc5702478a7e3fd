"""The ranks of another node in a launch, as the controller sees them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from selectors import EVENT_READ, BaseSelector
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch.faults.failures import RankEnd
from pytest_ddpperf.launch.link import Close, LinkEnded, NoAnswer
from pytest_ddpperf.launch.messages import Answer, Job

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_ddpperf.launch.link import Link, Question
    from pytest_ddpperf.launch.messages import SeenImport
    from pytest_ddpperf.launch.rank_processes import Echo, RankProcesses

P = ParamSpec("P")
T = TypeVar("T")

_ANSWER_SECONDS = 3.0  # in which the answer comes after the seconds that were given for it


@dataclass(frozen=True)
class States:
    """Ranks whose state has changed; a report comes once."""

    ranks: tuple[RankEnd, ...]


@dataclass(frozen=True)
class Printed:
    """Lines that a rank has printed."""

    rank: int
    lines: tuple[str, ...]


class NodeRanks:
    """Ranks of another node; ``link`` leads to the launcher there, and is free again after ``sweep``.

    Raises:
        LaunchError: from any method that hears of it: the node cannot start the ranks, or is gone.
    """

    def __init__(
        self,
        link: Link,
        ranks: range,
        launch: Callable[..., list[RankEnd]],  # the method of what serves the link
        *,
        node: int,
        echo: Echo | None,
        ahead: int,  # of this node's clock, in nanoseconds
    ) -> None:
        self._link, self._begun_by, self._node, self._echo, self._ahead = link, launch, node, echo, ahead
        self._states = {rank: RankEnd(rank=rank) for rank in ranks}
        self._launch: Question[list[RankEnd]] | None = None  # while it goes on

    @property
    def ends(self) -> Sequence[RankEnd]:
        """Returns how each rank stands, as far as is known here."""
        return [*self._states.values()]

    def fork(self, job: Job) -> None:
        """Start the ranks on a job."""
        ranks = {"first_rank": min(self._states), "local_world_size": len(self._states), "node": self._node}
        here = replace(job, environ={}, **ranks)  # type: ignore[arg-type]
        self._launch = self._link.ask(self._begun_by, here, echo=self._echo is not None)

    def register(self, selector: BaseSelector) -> None:
        """Register the link, and take what came together with an answer."""
        selector.register(self._link, EVENT_READ, self._collect)
        self._collect()

    def ask(
        self, method: Callable[Concatenate[RankProcesses, P], T], *arguments: P.args, **named: P.kwargs
    ) -> Callable[[float], T | None]:
        """Ask the node to call a method of its ranks; the result waits for what it returns, None if that is late."""
        asked = self._link.ask(method, *arguments, **named)

        def answer(seconds: float) -> T | None:
            try:
                return asked.answer(seconds + _ANSWER_SECONDS, self._hear)
            except NoAnswer:
                return None

        return answer

    def ask_sweep(self) -> None:
        """Ask the node to leave no process of the launch."""
        if self._launch is not None:
            with contextlib.suppress(LinkEnded):
                self._link.send(Close())

    def sweep(self, seconds: float) -> None:
        """Wait until no process of the launch is left; an agent that is gone leaves none either."""
        if self._launch is None:
            return
        swept = False
        try:
            with contextlib.suppress(LinkEnded):
                self._note(self._launch.answer(seconds + _ANSWER_SECONDS, self._hear))
                swept = True
        finally:
            if not swept:
                self._link.close()  # ends the launcher there and its ranks; the next launch has another one

    def _collect(self) -> None:
        for message in self._link.received():
            self._hear(message)

    def _hear(self, message: Any) -> None:
        if isinstance(message, States):
            self._note(message.ranks)
        elif isinstance(message, Printed) and self._echo is not None:
            self._echo(message.rank, list(message.lines))
        elif isinstance(message, Answer) and self._launch is not None and message.number == self._launch.number:
            self._launch = None
            raise LaunchError(f"{self._link.name}: {message.error}")

    def _note(self, ranks: Sequence[RankEnd]) -> None:
        for new in ranks:
            report = self._states[new.rank].report
            if new.report is not None:
                report = replace(new.report, stamp=new.report.stamp - self._ahead)
            self._states[new.rank] = replace(new, report=report, stamp=new.stamp - self._ahead if new.stamp else 0)


class OtherNodes(Protocol):
    """The other nodes, as one launcher uses them."""

    @property
    def interface(self) -> str:
        """The network interface of this node by which ranks of several nodes talk."""

    def counts(self, world_size: int, gpus: int) -> tuple[int, ...]:
        """Returns how many of so many ranks each node has; ``gpus``: those of this node, 0 if ranks are on the CPU."""

    def ranks(self, counts: Sequence[int], environ: Mapping[str, str], echo: Echo | None) -> Sequence[NodeRanks]:
        """Returns the ranks of the other nodes in a launch, which have these variables."""

    def preload(self, modules: Sequence[SeenImport]) -> Callable[[], None]:
        """Begin to import modules where ranks were started before; the result waits until that is done."""

    def close(self) -> None:
        """End what was started for this launcher."""
