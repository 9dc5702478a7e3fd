"""Launchers on other nodes, which start ranks for one launcher of the controller."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from pytest_ddpperf.errors import LaunchError, RankSkipped
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.launch.link import Link, LinkEnded, Question
from pytest_ddpperf.launch.messages import SeenImport
from pytest_ddpperf.launch.node_ranks import NodeRanks
from pytest_ddpperf.launch.nodes.agent import NodeLauncher
from pytest_ddpperf.launch.nodes.cluster import Cluster, Node
from pytest_ddpperf.launch.rank_processes import Echo
from pytest_ddpperf.launch.redirection import Redirection

_PROBE_SECONDS = 180.0
_READY_SECONDS = 240.0  # more than a zygote takes at most


class NodeLaunchers:
    """The launchers of other nodes that belong to one launcher of the controller; each starts when first needed."""

    def __init__(self, cluster: Cluster, preload: Sequence[str], redirection: Redirection | None = None) -> None:
        self.cluster = cluster
        self.links: dict[int, Link] = {}
        self._preload, self._redirection = tuple(preload), redirection

    @property
    def interface(self) -> str:
        """Returns the network interface of this node that ranks of several nodes use."""
        return self.cluster.interface

    def counts(self, world_size: int, gpus: int) -> tuple[int, ...]:
        """Returns each node's number of ranks, the controller's node first; it has ``gpus`` GPUs (0: use CPUs)."""
        nodes = self.cluster.nodes
        if not gpus:
            return spread(world_size, 1 + len(nodes))
        if world_size <= gpus:
            return (world_size,)
        until = time.monotonic() + _PROBE_SECONDS
        asked = [self.link(node).ask(NodeLauncher.gpus) for node in nodes]  # they look at the same time
        others = [gpus_of(question, until) for question in asked]
        return spread(world_size, 1 + len(nodes), min(gpus, *others))

    def ranks(self, counts: Sequence[int], environ: Mapping[str, str], echo: Echo | None) -> list[NodeRanks]:
        """Returns the ranks on other nodes; ``counts`` has each node's number of ranks, ``echo`` gets printed lines."""
        taking_part = self.cluster.nodes[: len(counts) - 1]
        links = [self.link(node) for node in taking_part]
        changes = self.cluster.changes(environ)
        until = time.monotonic() + _READY_SECONDS
        for asked in [link.ask(NodeLauncher.get_ready, changes) for link in links]:  # they import at the same time
            asked.answer(until - time.monotonic())
        ranks = (range(end - count, end) for end, count in zip(accumulate(counts), counts, strict=True))
        return [
            NodeRanks(link, of_node, NodeLauncher.launch, node=node.number, echo=echo, ahead=node.ahead)
            for node, link, of_node in zip(taking_part, links, [*ranks][1:], strict=True)
        ]

    def preload(self, modules: Sequence[SeenImport]) -> Callable[[], None]:
        """Starts to import modules on nodes that have started ranks; returns a function that waits for the imports."""
        asked, until = [], time.monotonic() + _READY_SECONDS
        for link in self.links.values():
            with contextlib.suppress(LinkEnded):  # the next launch reports it
                asked.append(link.ask(NodeLauncher.preload, tuple(modules)))

        def wait() -> None:
            for question in asked:
                with contextlib.suppress(LaunchError):  # the same
                    question.answer(until - time.monotonic())

        return wait

    def close(self) -> None:
        """Ends these launchers and their ranks."""
        for link in self.links.values():
            link.close()
        self.links.clear()

    def link(self, node: Node) -> Link:
        """Returns the link to the launcher on ``node``, and starts this launcher if necessary."""
        found = self.links.get(node.number)
        if found is not None and found.closed:
            found.close()
        if found is None or found.closed:
            found = self.links[node.number] = self.cluster.opened(node, self._preload, self._redirection)
        return found


def gpus_of(question: Question[int], until: float) -> int:
    """Waits for a node's number of usable GPUs, and returns the number; raises LaunchError if it is 0."""
    found = question.answer(until - time.monotonic())
    if not found:
        name = question.link.name
        raise LaunchError(f"{name} has no GPU that torch can use, but the node of rank 0 has one; use device=cpu")
    return found


def spread(world_size: int, nodes: int, gpus: int = 0) -> tuple[int, ...]:
    """Divides ranks evenly among nodes; returns the number of ranks of each node that gets ranks, in the nodes' order.

    If nodes have ``gpus`` GPUs each, ranks use as few nodes as possible. If ``gpus`` is 0, ranks on CPUs use all nodes.
    Raises RankSkipped if the ranks cannot be divided evenly.
    """
    needed = min(nodes, -(-world_size // gpus) if gpus else world_size)
    each, left = divmod(world_size, needed)
    if left:
        raise RankSkipped(f"{world_size} ranks cannot be divided evenly among the {needed} nodes that they need")
    return (each,) * needed
