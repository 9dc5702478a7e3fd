"""The seconds of collectives on a known or measured network, with an error band."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_ddpperf.analysis.inputs import require_one_of, require_ranks
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.planner.costs import Network, collective_time, hierarchical_time
from pytest_ddpperf.planner.links import CLUSTERS, HARDWARE
from pytest_ddpperf.records.network import CollectiveFit
from pytest_ddpperf.records.timeline import Transfer
from pytest_ddpperf.units import format_count, format_values, power_of_two

_SPREAD = 2  # median errors that the band of a measured network reaches to either side
_LIKE: Mapping[str, str] = {
    "barrier": "all_reduce",
    "reduce": "broadcast",
    "gather": "all_gather",
    "scatter": "all_gather",
}
_ALONE = ("send", "recv")  # one message of a pair of ranks


@dataclass(frozen=True, slots=True)
class Band:
    """The error band of a modelled time: factors for the best, the most likely and the worst case."""

    low: float
    likely: float
    high: float


LINKS = Band(1.0, 1.25, 2.0)
"""Factors of times by the ring formulas with a datasheet's bandwidth: all-reduces of 1 GB reach 0.7 to 0.9 of it on
H100s; below 0.5, ``ddpperf network --check`` calls a network slow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedNetwork:
    """A cluster of nodes with one kind of links inside a node, and another kind between nodes; see ``CLUSTERS``."""

    name: str
    ranks_per_node: int = 8
    band: Band = LINKS  # what its times are multiplied by
    taken: float = 0.0  # the share of the computing that stops while a transfer is under way

    def __post_init__(self) -> None:
        require_one_of("network", self.name, CLUSTERS)
        require_ranks("ranks_per_node", self.ranks_per_node)

    def seconds(self, transfer: Transfer) -> float:
        """Returns seconds by ring formulas; in two levels if a group has several ranks on each of several nodes."""
        local, between = (HARDWARE[link] for link in CLUSTERS[self.name])
        inside = max(1, min(transfer.ranks, self.ranks_per_node // transfer.stride))
        nodes = -(-transfer.ranks // inside)
        if nodes == 1:
            return _seconds(transfer, local)
        name = like(transfer)
        if inside == 1 or name == "all_to_all" or transfer.name in _ALONE:  # most parts go to other nodes
            return _seconds(transfer, between)
        size = _bytes_of(transfer)
        levels = hierarchical_time(name, size, nodes, inside, local=local, between=between)
        if name == "broadcast":  # a ring sends the whole once or twice, and a tree at each of its levels
            return min(levels, collective_time(name, size, transfer.ranks, between))
        return levels


def _seconds(transfer: Transfer, network: Network) -> float:
    if transfer.ranks == 1:
        return 0.0
    if transfer.name in _ALONE:
        return network.latency + transfer.nbytes / network.bandwidth
    return collective_time(like(transfer), _bytes_of(transfer), transfer.ranks, network)


def _bytes_of(transfer: Transfer) -> int:
    return 0 if transfer.name == "barrier" else transfer.nbytes


def like(transfer: Transfer) -> str:
    """Returns the name of the measured collective whose times are used for a transfer."""
    return _LIKE.get(transfer.name, transfer.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedNetwork:
    """A measured network: fits of the fastest calls, by collective, each for the number of ranks that was measured.

    ``usual``: the time of a usual call divided by the fastest call's; ``taken``: as in ``NamedNetwork``.
    """

    name: str
    fits: tuple[CollectiveFit, ...]
    taken: float
    usual: float = 1.0

    @property
    def band(self) -> Band:
        """Returns the band from the fastest to usual calls, widened on both sides by twice the fits' median error."""
        error = _SPREAD * max((fit.error for fit in self.fits), default=0.0)
        return Band(max(0.1, 1 - error), self.usual, self.usual * (1 + error))

    def seconds(self, transfer: Transfer) -> float:
        """Returns seconds by the fit; transfers below the smallest size take as long as the smallest."""
        if transfer.ranks == 1:
            return 0.0
        name = like(transfer)
        fit = next((fit for fit in self.fits if (fit.collective, fit.world_size) == (name, transfer.ranks)), None)
        if fit is None:
            raise SettingError(
                f"network {self.name} was not measured for {name} of {format_count(transfer.ranks, 'rank')}, only for "
                f"{', '.join(fit.collective for fit in self.fits)} of {format_count(self.fits[0].world_size, 'rank')}; "
                f"choose another network: {', '.join(CLUSTERS)}"
            )
        if transfer.nbytes > fit.max_bytes:
            size = power_of_two(transfer.nbytes, above=True)
            sent, measured = format_values((transfer.nbytes, fit.max_bytes), "B")
            raise SettingError(
                f"a step sends {sent} in one {transfer.name}, but network {self.name} was measured only up to "
                f"{measured}; run ddpperf network --world-size={transfer.ranks} --max-size={size}"
            )
        return fit.seconds(max(transfer.nbytes, fit.min_bytes))


NetworkModel = NamedNetwork | FittedNetwork
