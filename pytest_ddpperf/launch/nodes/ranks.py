"""The ranks of another node in a launch, as the controller sees them."""

from __future__ import annotations

import contextlib
import selectors
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch.failures import RankEnd
from pytest_ddpperf.launch.messages import Job, Signal, Sweep
from pytest_ddpperf.launch.nodes.link import LinkEnded
from pytest_ddpperf.launch.nodes.messages import (
    AskCalls,
    AskStacks,
    Begin,
    Calls,
    Dismiss,
    NodeSwept,
    Printed,
    Stacks,
    States,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_ddpperf.launch.messages import RankCalls
    from pytest_ddpperf.launch.nodes.link import Link
    from pytest_ddpperf.launch.progress import Progress
    from pytest_ddpperf.launch.rank_processes import Echo

_ANSWER_SECONDS = 3.0  # in which the answer comes after the seconds that were given for it


class NodeRanks:
    """Ranks of another node; ``link`` leads to the launcher there, and is free again after ``sweep``.

    Raises:
        LaunchError: from any method that hears of it: the node cannot start the ranks, or is gone.
    """

    def __init__(
        self,
        link: Link,
        ranks: range,
        *,
        node: int,
        echo: Echo | None,
        ahead: int,  # of this node's clock, in nanoseconds
        store: Callable[[int], contextlib.AbstractContextManager[None]],  # lets ranks reach a port of this node
    ) -> None:
        self._link, self._node, self._echo, self._ahead = link, node, echo, ahead
        self._states = {rank: RankEnd(rank=rank) for rank in ranks}
        self._store = store
        self._open = contextlib.ExitStack()
        self._stacks: dict[int, str] | None = None
        self._progress: dict[int, Progress] = {}
        self._calls: dict[int, RankCalls] | None = None
        self._begun = self._swept = False

    @property
    def states(self) -> list[RankEnd]:
        """Returns how each rank stands, as far as is known here."""
        return list(self._states.values())

    ends = states  # a rank's output comes with its state

    def fork(self, job: Job) -> None:
        """Start the ranks on a job."""
        self._open.enter_context(self._store(job.listening))
        here = {"first_rank": min(self._states), "local_world_size": len(self._states), "node": self._node}
        self._begun = True
        self._link.send(
            Begin(job=replace(job, environ={}, **here), echo=self._echo is not None)  # type: ignore[arg-type]
        )

    def register(self, selector: selectors.BaseSelector) -> None:
        """Register the link."""
        selector.register(self._link, selectors.EVENT_READ, self._collect)

    def tend(self) -> None:
        """Do nothing: the agent looks after the ranks' files."""

    def signal(self, ranks: Sequence[int], number: int) -> None:
        """Send a signal to those of these ranks that still run."""
        self._link.send(Signal(tuple(ranks), number))

    def dismiss(self) -> None:
        """Let the ranks end."""
        self._link.send(Dismiss())

    def ask_stacks(self, deadline: float) -> None:
        """Ask for the stacks."""
        self._stacks = None
        self._link.send(AskStacks(max(0.0, deadline - time.monotonic())))

    def stacks(self, deadline: float) -> dict[int, str]:
        """The stacks of each rank that has not finished, once they have come; none where they do not come in time."""
        self._await(lambda: self._stacks is not None, deadline)
        return self._stacks or {state.rank: "" for state in self.states if not state.over}

    def progress(self) -> dict[int, Progress]:
        """Returns how far each rank had come when the stacks were taken."""
        return self._progress

    def ask_calls(self, deadline: float) -> None:
        """Ask for what ranks have called."""
        self._calls = None
        self._link.send(AskCalls(max(0.0, deadline - time.monotonic())))

    def calls(self, deadline: float) -> dict[int, RankCalls]:
        """Returns what ranks have called; without those that do not answer in time."""
        self._await(lambda: self._calls is not None, deadline)
        return self._calls or {}

    def ask_sweep(self, seconds: float) -> None:
        """Ask the agent to leave no process of the launch."""
        self._open.close()
        if self._begun:
            with contextlib.suppress(LinkEnded):
                self._link.send(Sweep(seconds))

    def sweep(self, seconds: float) -> None:
        """Wait until no process of the launch is left; an agent that is gone leaves none either."""
        try:
            if self._begun:
                with contextlib.suppress(LinkEnded):
                    self._await(lambda: self._swept, time.monotonic() + seconds)
        finally:
            if self._begun and not self._swept:
                self._link.close()  # ends the launcher there and its ranks; the next launch has another one

    def _await(self, done: Callable[[], bool], deadline: float) -> None:
        deadline += _ANSWER_SECONDS
        while not done() and time.monotonic() < deadline:
            message = self._link.receive(max(0.0, deadline - time.monotonic()))
            if message is not None:
                self._take(message)

    def _collect(self) -> None:
        for message in self._link.received():
            self._take(message)

    def _take(self, message: object) -> None:
        if isinstance(message, States):
            self._note(message.ranks)
        elif isinstance(message, Printed):
            if self._echo is not None:
                self._echo(message.rank, list(message.lines))
        elif isinstance(message, Stacks):
            self._stacks, self._progress = dict(message.texts), dict(message.progress)
        elif isinstance(message, Calls):
            self._calls = dict(message.ranks)
        elif isinstance(message, NodeSwept):
            self._swept = True
            self._note(message.ranks)
            if message.reason:
                raise LaunchError(f"{self._link.name}: {message.reason}")

    def _note(self, ranks: Sequence[RankEnd]) -> None:
        for new in ranks:
            report = self._states[new.rank].report
            if new.report is not None:
                report = replace(new.report, stamp=new.report.stamp - self._ahead)
            self._states[new.rank] = replace(new, report=report, stamp=new.stamp - self._ahead if new.stamp else 0)
