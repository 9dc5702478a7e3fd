"""The ranks of a launch on another node, as the controller (pytest's process) sees them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from selectors import EVENT_READ, BaseSelector
from typing import Any, Concatenate, ParamSpec, TypeVar

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.launch.faults.failures import RankEnd
from pytest_ddpperf.launch.link import Close, Link, LinkEnded, NoAnswer, Question
from pytest_ddpperf.launch.messages import Answer, Job
from pytest_ddpperf.launch.rank_processes import Echo, RankProcesses

P = ParamSpec("P")
T = TypeVar("T")

_ANSWER_SECONDS = 3.0  # in which the answer comes after the seconds that were given for it


@dataclass(frozen=True)
class States:
    """A node's message with the states of ranks that have changed; a rank's report is sent only once."""

    ranks: tuple[RankEnd, ...]


@dataclass(frozen=True)
class Printed:
    """A node's message with lines that a rank has printed."""

    rank: int
    lines: tuple[str, ...]


class NodeRanks:
    """The ranks of a launch on another node; ``link`` leads to the node's launcher.

    Every method raises LaunchError if the node cannot start the ranks, or is gone.
    """

    def __init__(
        self,
        link: Link,
        ranks: range,
        launch: Callable[..., list[RankEnd]],  # the method that runs a launch, of the object at the other end
        *,
        node: int,
        echo: Echo | None,
        ahead: int,  # by how many nanoseconds the node's clock is ahead
    ) -> None:
        self._link, self._begun_by, self._node, self._echo, self._ahead = link, launch, node, echo, ahead
        self._states = {rank: RankEnd(rank=rank) for rank in ranks}
        self._launch: Question[list[RankEnd]] | None = None  # while it goes on

    @property
    def ends(self) -> Sequence[RankEnd]:
        """Returns the last known state of each rank."""
        return [*self._states.values()]

    def fork(self, job: Job) -> None:
        """Starts the ranks of a job."""
        ranks = {"first_rank": min(self._states), "local_world_size": len(self._states), "node": self._node}
        here = replace(job, environ={}, **ranks)  # type: ignore[arg-type]
        self._launch = self._link.ask(self._begun_by, here, echo=self._echo is not None)

    def register(self, selector: BaseSelector) -> None:
        """Registers the link to the node in ``selector``, and handles messages that have come already."""
        selector.register(self._link, EVENT_READ, self._collect)
        self._collect()

    def ask(
        self, method: Callable[Concatenate[RankProcesses, P], T], *arguments: P.args, **named: P.kwargs
    ) -> Callable[[float], T | None]:
        """Asks the node to call a method of its ranks; returns a function(seconds) that waits for the result."""
        asked = self._link.ask(method, *arguments, **named)

        def answer(seconds: float) -> T | None:
            try:
                return asked.answer(seconds + _ANSWER_SECONDS, self._hear)
            except NoAnswer:
                return None

        return answer

    def ask_sweep(self) -> None:
        """Asks the node to end all processes of the launch."""
        if self._launch is not None:
            with contextlib.suppress(LinkEnded):
                self._link.send(Close())

    def sweep(self, until: float) -> None:
        """Waits until the node has ended all processes of the launch; a node also ends them if the connection ends.

        ``until`` is the deadline, which all nodes share; the answer may come a little later.
        """
        if self._launch is None:
            return
        swept = False
        try:
            with contextlib.suppress(LinkEnded):
                self._note(self._launch.answer(until - time.monotonic() + _ANSWER_SECONDS, self._hear))
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
