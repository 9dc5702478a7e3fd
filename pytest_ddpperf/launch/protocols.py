"""What a launch asks of its parts: the ranks of this machine, those of other nodes, and the nodes themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from selectors import BaseSelector

    from pytest_ddpperf.launch.failures import RankEnd
    from pytest_ddpperf.launch.messages import Job, RankCalls, SeenImport
    from pytest_ddpperf.launch.progress import Progress
    from pytest_ddpperf.launch.rank_processes import Echo


class Ranks(Protocol):
    """Some of the ranks of a launch; those of another node are reached over a link."""

    @property
    def states(self) -> Sequence[RankEnd]:
        """Returns how each rank stands, as far as is known here, without its output."""

    @property
    def ends(self) -> Sequence[RankEnd]:
        """The same with what each rank has printed."""

    def register(self, selector: BaseSelector) -> None:
        """Register what tells of the ranks; the data of each key is the function that takes it."""

    def tend(self) -> None:
        """Hand on what ranks have printed, and keep their files short."""

    def signal(self, ranks: Sequence[int], number: int) -> None:
        """Send a signal to those of these ranks that still run."""

    def dismiss(self) -> None:
        """Let the ranks end."""

    def ask_stacks(self, deadline: float, /) -> None:
        """Begin to ask for stacks, where that can be begun."""

    def stacks(self, deadline: float) -> dict[int, str]:
        """The stacks of each rank that has not finished; the text may be empty."""

    def progress(self) -> dict[int, Progress]:
        """Returns how far each rank has come that has not finished, as of when the stacks were taken."""

    def ask_calls(self, deadline: float, /) -> None:
        """Ask ranks what they have called."""

    def calls(self, deadline: float) -> dict[int, RankCalls]:
        """Returns what ranks have called; without those that do not answer in time."""


class RanksElsewhere(Ranks, Protocol):
    """Ranks of another node."""

    def fork(self, job: Job) -> None:
        """Start the ranks on a job."""

    def ask_sweep(self, seconds: float) -> None:
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

    def ask_preload(self, modules: Sequence[SeenImport]) -> None:
        """Begin to import these modules where ranks were started before, so that later ones find them imported."""

    def preloaded(self) -> None:
        """Wait until they are imported, as far as that is harmless there."""

    def close(self) -> None:
        """End what was started for this launcher."""
