"""The profile of a group from those of its ranks: overlap, transfer against wait, bandwidth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from pytest_ddpperf.records.communication import Bandwidth, Collective, CommunicationProfile, RankProfile

Instance = tuple[Collective, ...]  # one collective, on each rank

_GATHERING = frozenset({"all_gather", "gather"})  # a rank puts in its part of what is gathered


def saw_work(ranks: Sequence[RankProfile]) -> bool:
    """Whether the profiler saw work on each rank; on CUDA it sees none without CUPTI, and its zeros are no times."""
    return all(any(step.computed or step.busy for step in rank.steps) for rank in ranks)


def merged(ranks: Sequence[RankProfile]) -> CommunicationProfile:
    """The profile of a group, from those of its ranks, in order, with equally many steps.

    Transfer and wait are told apart as in PyTorch's TensorBoard plugin. The rank that comes last to a collective sees
    it shortest: that time is the transfer, and the rest of the other ranks' time is waiting. For that it has to be
    known which ranks met in the collective.
    """
    steps = [step for rank in ranks for step in rank.steps]
    sent = [collective for step in steps for collective in step.collectives]
    # A collective may have been among some of the ranks only, and no profile tells which ranks.
    unplaced = any(rank.subgroups for rank in ranks) and any(collective.ranks != len(ranks) for collective in sent)
    instances = None if unplaced else _instances(ranks)
    busy, overlapped = fmean(step.busy for step in steps), fmean(step.overlapped for step in steps)
    computed = sum(step.computed - step.overlapped for step in steps)
    between = sum(step.seconds - step.busy - step.computed + step.overlapped for step in steps)
    number = len(ranks[0].steps)
    transfers = [min(collective.seconds for collective in instance) for instance in instances or ()]
    waits = [
        fmean(collective.seconds for collective in instance) - least
        for instance, least in zip(instances or (), transfers, strict=True)
    ]
    return CommunicationProfile(
        step=fmean(step.seconds for step in steps),
        busy=busy,
        overlapped=overlapped,
        # As much of the busy time as may be the host between two operators, in the proportion of times without sending.
        gaps=min(overlapped * between / computed, busy - overlapped) if computed > 0 else 0.0,
        transfer=None if instances is None else sum(transfers) / number,
        wait=None if instances is None else sum(waits) / number,
        slowest=_slowest(instances or ()),
        bandwidths=_bandwidths(instances or (), len(ranks)),
        window=ranks[0].window,
        unplaced=unplaced,
    )


def bus_factor(kind: str, ranks: int) -> float:
    """The factor from a collective's size over its time to the load of the links (nccl-tests, doc/PERFORMANCE.md)."""
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"}:
        return (ranks - 1) / ranks
    return 1.0


def _instances(ranks: Sequence[RankProfile]) -> list[Instance] | None:
    """The collectives of all steps, each with what it was on every rank; None if ranks differ in them.

    Several may be under way at once, and ranks need not begin them in the same order. So the first of a kind and size
    in a step is paired with the first of the same ones on the other ranks, and so on.
    """
    instances: list[Instance] = []
    for steps in zip(*(rank.steps for rank in ranks), strict=True):
        per_rank = [sorted(step.collectives, key=_alike) for step in steps]
        if len({tuple(map(_alike, collectives)) for collectives in per_rank}) > 1:
            return None
        instances += zip(*per_rank, strict=True)
    return instances


def _alike(collective: Collective) -> tuple[str, float]:
    """Returns what is the same on all ranks of a collective."""
    return collective.kind, -1.0 if collective.nbytes is None else collective.nbytes


def _slowest(instances: Sequence[Instance]) -> tuple[int, float] | None:
    """The rank that came last to most collectives, and to what share of them."""
    if not instances or len(instances[0]) == 1:
        return None
    last = Counter(min(range(len(ranks)), key=lambda rank: ranks[rank].seconds) for ranks in instances)
    rank, times = last.most_common(1)[0]
    return rank, times / len(instances)


def _bandwidths(instances: Sequence[Instance], ranks: int) -> tuple[Bandwidth, ...]:
    """The bandwidth of each kind: the sizes of all ranks' parts together over all transfers of a group of ``ranks``."""
    found = []
    for kind in dict.fromkeys(instance[0].kind for instance in instances):
        own = [instance for instance in instances if instance[0].kind == kind]
        sizes = [collective.nbytes for collective, *_ in own]
        known = [size for size in sizes if size is not None]
        seconds = sum(min(collective.seconds for collective in instance) for instance in own)
        whole = sum(known) * (ranks if kind in _GATHERING else 1)
        if len(known) == len(sizes) and seconds > 0 and whole > 0:  # a barrier has none
            found.append(Bandwidth(kind=kind, algorithm=whole / seconds, bus=whole * bus_factor(kind, ranks) / seconds))
    return tuple(found)
