"""Predicts the time of a step, with an error band, from the step's timeline and the times of transfers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from statistics import fmean, stdev

from pytest_ddpperf.errors import SettingError, WorkloadError, require_one_of, require_ranks
from pytest_ddpperf.planner.costs import Network, collective_time, hierarchical_time
from pytest_ddpperf.planner.hardware import CLUSTERS, HARDWARE
from pytest_ddpperf.records.network import CollectiveFit
from pytest_ddpperf.records.predictions import Prediction, Replayed, Timeline, Transfer
from pytest_ddpperf.stats.intervals import t_quantile
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
    """The error band of a modelled time: the factors that give the best, the most likely and the worst case."""

    low: float
    likely: float
    high: float


LINKS = Band(1.0, 1.25, 2.0)
"""Factors for times that ring formulas give with a datasheet's bandwidth. All-reduces of 1 GB reach 0.7 to 0.9 of this
bandwidth on H100s; below 0.5, ``ddpperf network --check`` calls a network slow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedNetwork:
    """A cluster of nodes: one type of link inside each node, and another type between nodes; see ``CLUSTERS``."""

    name: str
    ranks_per_node: int = 8
    band: Band = LINKS  # what its times are multiplied by
    taken: float = 0.0  # how much transfers slow computing down, as in ``replayed``

    def __post_init__(self) -> None:
        require_one_of("network", self.name, CLUSTERS)
        require_ranks("ranks_per_node", self.ranks_per_node)

    def seconds(self, transfer: Transfer) -> float:
        """Returns the seconds of a transfer by ring formulas, with separate rings inside nodes and between nodes."""
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
    """Returns the name of the collective whose measured times are used for a transfer."""
    return _LIKE.get(transfer.name, transfer.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedNetwork:
    """A measured network, with a fit of the fastest calls for each collective and number of ranks.

    ``usual``: median call time / fastest call time. ``taken``: how much transfers slow computing (see ``replayed``).
    """

    name: str
    fits: tuple[CollectiveFit, ...]
    taken: float
    usual: float = 1.0

    @property
    def band(self) -> Band:
        """Returns factors 1 - e, u, u (1 + e): u = median / fastest call time, e = twice the largest error of a fit."""
        error = _SPREAD * max((fit.error for fit in self.fits), default=0.0)
        return Band(max(0.1, 1 - error), self.usual, self.usual * (1 + error))

    def seconds(self, transfer: Transfer) -> float:
        """Returns the seconds of a transfer by the fit, but at least the seconds of the smallest measured size."""
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


_FEW_ERRORS = 2  # half the width of the band in standard errors, for a single launch
_SURE = 0.975  # the quantile of Student's t that is half the width of the band, for several launches


ROOFLINES = Band(1.25, 2.0, 3.5)
"""Factors for times that the roofline model gives with a datasheet's rates. Large language models train at 0.35 to 0.6
of the datasheet's FLOP/s (PaLM 0.46, Chowdhery et al. 2022; Megatron-LM 0.3 to 0.52, Narayanan et al. 2021); matrix
products alone reach 0.8 at best."""
MEASURED = 0.1
"""The relative error of computing timed on this machine, in addition to its scatter: real ranks disturb each other."""


def predicted(
    timeline: Timeline,
    network: NetworkModel,
    *,
    name: str,
    world_size: int,
    accelerator: str = "",
    samples: float | None = None,
    lost: float = 0.0,
) -> Prediction:
    """Predicts a step from its timeline and from the costs of its transfers on ``network``.

    ``samples``: all ranks' samples in the step. ``lost``: the fraction of the cores that other processes took. Raises
    SettingError if ``network`` has no cost for a transfer, and WorkloadError if the step takes no time.
    """
    costs = [network.seconds(transfer) for transfer in timeline.transfers]
    launches = len(timeline.launches)
    computing = ROOFLINES if accelerator else Band(1 - MEASURED, 1.0, 1 + MEASURED)

    def step(work: float, sending: float) -> Replayed:
        return replayed(timeline, [cost * sending for cost in costs], computing=work, taken=network.taken)

    likely = step(computing.likely, network.band.likely)
    if not likely.seconds:
        raise WorkloadError(f"{name}: the step computes and sends nothing, so there is no time to predict")
    ends = product((computing.low, computing.high), (network.band.low, network.band.high))
    return Prediction(
        **asdict(likely),
        name=name,
        world_size=world_size,
        network=network.name,
        accelerator=accelerator,
        corners=tuple(step(work, sending) for work, sending in ends),
        scatter=timeline.scatter,
        errors=t_quantile(_SURE, launches - 1) if launches > 1 else _FEW_ERRORS,
        samples=samples,
        lost=lost,
        timeline=timeline,
    )


def typical(timelines: Sequence[Timeline]) -> Timeline:
    """Returns the mean timeline of several launches, and its error; raises SettingError if their transfers differ."""
    first = timelines[0]
    if any(_shape(one) != _shape(first) for one in timelines):
        raise SettingError("launches send different collectives; the step must send the same ones in every launch")
    if len(timelines) == 1:
        return first
    wholes = [one.computing for one in timelines]
    moments = (
        replace(each[0], computed=fmean(moment.computed for moment in each))
        for each in zip(*(one.moments for one in timelines), strict=True)
    )
    return replace(
        first,
        moments=tuple(moments),
        rest=fmean(one.rest for one in timelines),
        scatter=stdev(wholes) / fmean(wholes) / len(wholes) ** 0.5 if fmean(wholes) else 0.0,
        launches=tuple(wholes),
    )


def _shape(timeline: Timeline) -> object:
    return timeline.transfers, [(moment.transfer, moment.waits) for moment in timeline.moments]


def replayed(timeline: Timeline, costs: Sequence[float], *, computing: float = 1.0, taken: float = 0.0) -> Replayed:
    """Predicts the times of a step: a transfer starts when it has been called and the previous transfer has ended.

    All ranks are assumed to be equal. ``costs`` has the seconds of each transfer, and ``computing`` is a factor for the
    times of computing. ``taken`` says how much a transfer slows computing down: 1 if computing stops until the transfer
    ends, because the same core computes and sends; 0 if computing continues at full speed.
    """
    now = sent = 0.0  # the present time of computing, and the end of the last transfer that was started
    ends = [0.0] * len(costs)
    for moment in timeline.moments:
        now = _computed(now, moment.computed * computing, sent, taken)
        if moment.waits:
            now = max(now, ends[moment.transfer])
        else:
            sent = ends[moment.transfer] = max(now, sent) + costs[moment.transfer]
    now = _computed(now, timeline.rest * computing, sent, taken)
    steps = timeline.steps
    return Replayed(
        seconds=max(now, sent) / steps,
        computing=timeline.computing * computing / steps,
        communication=sum(costs) / steps,
    )


def _computed(start: float, work: float, sent: float, taken: float) -> float:
    """Returns the end of ``work`` seconds of computing from ``start``, at a speed of 1 - ``taken`` until ``sent``."""
    beside = max(0.0, sent - start)
    done = beside * (1 - taken)
    return start + work / (1 - taken) if work <= done and taken < 1 else start + beside + work - done
