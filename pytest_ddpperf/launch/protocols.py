"""What a launcher asks of other nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_ddpperf.launch.messages import SeenImport
    from pytest_ddpperf.launch.node_ranks import NodeRanks
    from pytest_ddpperf.launch.rank_processes import Echo


class OtherNodes(Protocol):
    """The other nodes, as one launcher uses them."""

    @property
    def interface(self) -> str:
        """The network interface of this node by which ranks of several nodes talk."""

    def counts(self, world_size: int, gpus: int) -> tuple[int, ...]:
        """How many of so many ranks each node has; ``gpus``: those of this node, 0 if ranks are on the CPU."""

    def ranks(self, counts: Sequence[int], environ: Mapping[str, str], echo: Echo | None) -> Sequence[NodeRanks]:
        """The ranks of the other nodes in a launch, which have these variables."""

    def preload(self, modules: Sequence[SeenImport]) -> Callable[[], None]:
        """Begin to import modules where ranks were started before; the result waits until that is done."""

    def close(self) -> None:
        """End what was started for this launcher."""
