"""The time of a collective: a latency (alpha) for each message, and bytes divided by a bandwidth (beta).

Sources of the formulas: Thakur, Rabenseifner and Gropp 2005 ("Optimization of Collective Communication Operations in
MPICH"), MPICH and gloo; for rings, Patarasuk and Yuan 2009. The formulas give lower bounds: measured times are mostly
longer. A shorter measured time means another algorithm, a reduction in the switch, a wrong size, a wrong number of
ranks or a missing synchronisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_ddpperf.errors import SettingError, require_number, require_one_of, require_ranks
from pytest_ddpperf.metrics.communication import bus_factor
from pytest_ddpperf.records.network import COLLECTIVES

ALGORITHMS = ("ring", "tree", "hierarchical", "recursive_doubling", "halving_doubling")
_GBIT = 1e9 / 8  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A link between ranks: the latency of a message in seconds, and the bytes per second in one direction."""

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        require_number("latency", self.latency)
        require_number("bandwidth", self.bandwidth, positive=True)


@dataclass(frozen=True, slots=True)
class Terms:
    """The work of one rank in a collective: messages, and bytes as multiples of the buffer's size."""

    messages: float  # number of messages, one after another
    sent: float  # bytes that the rank sends


@dataclass(frozen=True, slots=True)
class Complexity:
    """The cost of one collective by one algorithm for n ranks and a buffer of S bytes; lg is the binary logarithm."""

    collective: str
    algorithm: str
    messages: str  # number of messages that a rank sends one after another; each takes the latency
    sent: str  # bytes that a rank sends, which are divided by the bandwidth
    suits: str  # the sizes of messages, or numbers of ranks, that the algorithm is meant for
    terms: Callable[[int], Terms]  # messages and bytes as numbers, of n


def _lg(n: int) -> int:
    return math.ceil(math.log2(n))


def _halving_doubling(n: int) -> Terms:
    """Returns a rank's work in Rabenseifner's all-reduce; some ranks send whole buffers if n is no power of two."""
    part = (n - 1) / n
    if n & (n - 1) == 0:
        return Terms(2 * _lg(n), 2 * part)
    return Terms(2 * int(math.log2(n)) + 2, 2 * part + 2)


_LARGE, _SHORT, _POWERS = "large messages", "short messages", "powers of two"
_PART = "(n-1)/n S"
_AR, _RS, _AG, _BROADCAST, _A2A = COLLECTIVES
_ROWS = (
    (_AR, "ring", "2(n-1)", "2(n-1)/n S", _LARGE, lambda n: Terms(2 * (n - 1), 2 * (n - 1) / n)),
    (_AR, "tree", "2 lg n", "2 lg n S", _SHORT, lambda n: Terms(2 * _lg(n), 2 * _lg(n))),
    (_AR, "recursive_doubling", "lg n", "lg n S", _SHORT, lambda n: Terms(_lg(n), _lg(n))),
    (_AR, "halving_doubling", "2 lg n", "2(n-1)/n S", _POWERS, _halving_doubling),
    (_RS, "ring", "n-1", _PART, _LARGE, lambda n: Terms(n - 1, (n - 1) / n)),
    (_RS, "halving_doubling", "lg n", _PART, _POWERS, lambda n: Terms(_lg(n), (n - 1) / n)),
    (_RS, "recursive_doubling", "lg n", "(lg n - (n-1)/n) S", _SHORT, lambda n: Terms(_lg(n), _lg(n) - (n - 1) / n)),
    (_AG, "ring", "n-1", _PART, _LARGE, lambda n: Terms(n - 1, (n - 1) / n)),
    (_AG, "recursive_doubling", "lg n", _PART, _POWERS, lambda n: Terms(_lg(n), (n - 1) / n)),
    (_AG, "halving_doubling", "lg n", _PART, _POWERS, lambda n: Terms(_lg(n), (n - 1) / n)),
    (_BROADCAST, "ring", "lg n + n-1", "2(n-1)/n S", _LARGE, lambda n: Terms(_lg(n) + n - 1, 2 * (n - 1) / n)),
    (_BROADCAST, "tree", "lg n", "lg n S", _SHORT, lambda n: Terms(_lg(n), _lg(n))),
    (_BROADCAST, "halving_doubling", "2 lg n", "2(n-1)/n S", _POWERS, lambda n: Terms(2 * _lg(n), 2 * (n - 1) / n)),
    (_A2A, "ring", "n-1", _PART, "all sizes", lambda n: Terms(n - 1, (n - 1) / n)),
)
TABLE: Mapping[tuple[str, str], Complexity] = {row[:2]: Complexity(*row) for row in _ROWS}
_IN_LEVELS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")


def communication_complexity_analysis() -> tuple[Complexity, ...]:
    """Returns the cost of each collective by each algorithm, for equal links between all ranks.

    For a broadcast, ``ring`` is a scatter and an all-gather; ``halving_doubling`` is a scatter by a tree and an
    all-gather by recursive doubling. For an all-to-all, ``ring`` is an exchange in pairs.
    """
    return tuple(TABLE.values())


def collective_time(
    collective: str, size_bytes: float, world_size: int, network: Network, algorithm: str = "ring"
) -> float:
    """Returns seconds of a collective: messages x latency + bytes sent / bandwidth.

    Args:
        collective: one of ``COLLECTIVES``.
        size_bytes: the whole buffer: the gathered buffer of an all-gather, the buffer before a reduce-scatter, and one
            rank's buffer for other collectives.
        world_size: number of ranks; a single rank takes no time.
        network: the links between them.
        algorithm: one of ``ALGORITHMS``, other than hierarchical.

    Raises:
        SettingError: an argument is impossible, such as 6 ranks with ``halving_doubling``, except for an all-reduce.
    """
    n = require_ranks("world_size", world_size)
    size = require_number("size_bytes", size_bytes)
    require_one_of("collective", collective, COLLECTIVES)
    require_one_of("algorithm", algorithm, ALGORITHMS)
    if (collective, algorithm) not in TABLE:
        raise _no_algorithm(collective, algorithm)
    if algorithm.endswith("_doubling") and collective != "all_reduce" and n & (n - 1):
        raise SettingError(f"world_size={n}: {algorithm} of {collective} needs a power of two; use algorithm='ring'")
    if n == 1:
        return 0.0
    terms = TABLE[collective, algorithm].terms(n)
    return terms.messages * network.latency + size * terms.sent / network.bandwidth


def _no_algorithm(collective: str, algorithm: str) -> SettingError:
    if algorithm == "hierarchical" and collective in _IN_LEVELS:
        return SettingError("algorithm='hierarchical' needs two links; call hierarchical_time, which takes both")
    known = [row.algorithm for row in TABLE.values() if row.collective == collective]
    return SettingError(
        f"algorithm={algorithm!r}: there is no cost formula for {collective} by this algorithm; give one of "
        f"{', '.join(known)}"
    )


def hierarchical_time(
    collective: str, size_bytes: float, nodes: int, ranks_per_node: int, *, local: Network, between: Network
) -> float:
    """Returns seconds of a collective in two levels: inside each node, and between ranks with equal local rank.

    An all-reduce is a reduce-scatter inside the nodes, an all-reduce of the parts between nodes, and an all-gather
    inside the nodes. A reduce-scatter or an all-gather runs once inside the nodes and once between nodes. A broadcast
    is a tree between the nodes and a tree inside each node.

    Args:
        collective: any collective but all_to_all.
        size_bytes: as in ``collective_time``.
        nodes: number of nodes.
        ranks_per_node: number of ranks on each node.
        local: the links inside a node.
        between: the link of each rank to the other nodes.
    """
    require_one_of("collective", collective, COLLECTIVES)
    if collective not in _IN_LEVELS:
        raise _no_algorithm(collective, "hierarchical")
    inside, outside = require_ranks("ranks_per_node", ranks_per_node), require_ranks("nodes", nodes)
    if collective == "broadcast":
        trees = ((outside, between), (inside, local))
        return sum(collective_time(collective, size_bytes, n, links, "tree") for n, links in trees)
    halves = ("reduce_scatter", "all_gather") if collective == "all_reduce" else (collective,)
    within = sum(collective_time(half, size_bytes, inside, local) for half in halves)
    return within + collective_time(collective, size_bytes / inside, outside, between)


def estimate_communication_time(
    tensor_size_bytes: float,
    world_size: int,
    bandwidth_gbps: float,
    latency_ms: float,
    algorithm: str = "ring",
    *,
    collective: str = "all_reduce",
    ranks_per_node: int = 1,
    local_bandwidth_gbps: float | None = None,
    local_latency_ms: float = 0.0,
) -> float:
    """Returns seconds of a collective; for example, 100 MiB over 4 ranks with 10 Gbit/s and 0.1 ms take 0.12642912 s.

    Args:
        tensor_size_bytes: the whole buffer, as in ``collective_time``.
        world_size: number of ranks.
        bandwidth_gbps: bandwidth of a rank's link in one direction, in Gbit/s (10^9 bits).
        latency_ms: latency of a message, in milliseconds.
        algorithm: one of ``ALGORITHMS``.
        collective: one of ``COLLECTIVES``.
        ranks_per_node: for hierarchical; it must divide ``world_size``.
        local_bandwidth_gbps: for hierarchical: bandwidth of the links inside a node.
        local_latency_ms: for hierarchical: latency inside a node.
    """
    speed = require_number("bandwidth_gbps", bandwidth_gbps, positive=True)
    network = Network(latency=require_number("latency_ms", latency_ms) / 1e3, bandwidth=speed * _GBIT)
    require_one_of("algorithm", algorithm, ALGORITHMS)
    size = require_number("tensor_size_bytes", tensor_size_bytes)
    if algorithm != "hierarchical":
        return collective_time(collective, size, world_size, network, algorithm)
    nodes = nodes_of(world_size, ranks_per_node)
    if local_bandwidth_gbps is None:
        raise SettingError("local_bandwidth_gbps=None: hierarchical needs the bandwidth in a node, in Gbit/s")
    inside = require_number("local_bandwidth_gbps", local_bandwidth_gbps, positive=True)
    latency = require_number("local_latency_ms", local_latency_ms) / 1e3
    local = Network(latency=latency, bandwidth=inside * _GBIT)
    return hierarchical_time(collective, size, nodes, ranks_per_node, local=local, between=network)


def nodes_of(world_size: int, ranks_per_node: int) -> int:
    """Returns the number of nodes; raises SettingError if ``ranks_per_node`` does not divide ``world_size``."""
    if require_ranks("world_size", world_size) % require_ranks("ranks_per_node", ranks_per_node):
        raise SettingError(
            f"world_size={world_size} is no multiple of ranks_per_node={ranks_per_node}; change one of them"
        )
    return world_size // ranks_per_node


def hybrid_nodes(sharding: str, world_size: int, ranks_per_node: int | None) -> int:
    """Returns the number of nodes for HYBRID_SHARD, which shards inside each node; 1 for other shardings."""
    if sharding != "HYBRID_SHARD":
        if ranks_per_node is not None:
            raise SettingError(
                f"ranks_per_node={ranks_per_node} is only for HYBRID_SHARD, not for sharding={sharding!r}: leave it out"
            )
        return 1
    if ranks_per_node is None:
        raise SettingError("ranks_per_node=None: HYBRID_SHARD shards in each node; give the number of ranks on a node")
    return nodes_of(world_size, ranks_per_node)


def algorithm_bandwidth(size_bytes: float, seconds: float) -> float:
    """Returns algbw of nccl-tests in bytes per second: the size of the whole buffer divided by the time."""
    return require_number("size_bytes", size_bytes) / require_number("seconds", seconds, positive=True)


def bus_bandwidth(collective: str, size_bytes: float, world_size: int, seconds: float) -> float:
    """Returns busbw of nccl-tests in bytes per second, which can be compared with a link's bandwidth.

    busbw is algbw times 2(n-1)/n for an all-reduce, (n-1)/n for an all-gather, a reduce-scatter and an all-to-all, and
    1 for a broadcast (nccl-tests, doc/PERFORMANCE.md).
    """
    require_one_of("collective", collective, COLLECTIVES)
    factor = bus_factor(collective, require_ranks("world_size", world_size))
    return factor * algorithm_bandwidth(size_bytes, seconds)
