"""What a launch asks of other nodes, and of the ranks there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from selectors import BaseSelector

    from pytest_ddpperf.launch.failures import RankEnd
    from pytest_ddpperf.launch.messages import Job, SeenImport
    from pytest_ddpperf.launch.rank_processes import Echo, RankProcesses

P = ParamSpec("P")
T = TypeVar("T")


class RanksElsewhere(Protocol):
    """Ranks of another node, as far as is known here; a rank's output comes with its state."""

    @property
    def ends(self) -> Sequence[RankEnd]:
        """Returns how each rank stands."""

    def fork(self, job: Job) -> None:
        """Start the ranks on a job."""

    def register(self, selector: BaseSelector) -> None:
        """Register what tells of the ranks; the data of each key is the function that takes it."""

    def ask(
        self, method: Callable[Concatenate[RankProcesses, P], T], *arguments: P.args, **named: P.kwargs
    ) -> Callable[[float], T | None]:
        """Begin to call a method there; the result waits so many seconds for what it returns, None if that is late."""

    def ask_sweep(self) -> None:
        """Begin to end the processes of the launch."""

    def sweep(self, seconds: float) -> None:
        """Wait until no process of the launch is left; then ``ends`` has all that was printed."""


class OtherNodes(Protocol):
    """The other nodes, as one launcher uses them."""

    @property
    def interface(self) -> str:
        """The network interface of this node by which ranks of several nodes talk."""

    def counts(self, world_size: int, gpus: int) -> tuple[int, ...]:
        """How many of so many ranks each node has; ``gpus``: those of this node, 0 if ranks are on the CPU."""

    def ranks(self, counts: Sequence[int], environ: Mapping[str, str], echo: Echo | None) -> Sequence[RanksElsewhere]:
        """The ranks of the other nodes in a launch, which have these variables."""

    def preload(self, modules: Sequence[SeenImport]) -> Callable[[], None]:
        """Begin to import modules where ranks were started before; the result waits until that is done."""

    def close(self) -> None:
        """End what was started for this launcher."""
