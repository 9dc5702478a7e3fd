"""What the profiles of all ranks amount to: overlap, transfer against wait, bandwidth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from pytest_ddpperf.records.communication import Bandwidth, Collective, CommunicationProfile, ProfiledStep, RankProfile

Instance = tuple[Collective, ...]  # one collective, on each rank

_GATHERING = frozenset({"all_gather", "gather"})  # a rank puts in its part of what is gathered


def merged(ranks: Sequence[RankProfile]) -> CommunicationProfile:
    """The profile of a group, from those of its ranks, in order, with equally many steps.

    Transfer and wait are told apart as in PyTorch's TensorBoard plugin: a collective is as long as on the rank where it
    was shortest, the rank that came last, and the others waited for that one for the rest of theirs. For that it has to
    be known which ranks met in it.
    """
    steps = [step for rank in ranks for step in rank.steps]
    unplaced = _unplaced(ranks)
    instances = None if unplaced else _instances(ranks)
    busy, overlapped = fmean(step.busy for step in steps), fmean(step.overlapped for step in steps)
    number = len(ranks[0].steps)
    transfers = [min(one.seconds for one in instance) for instance in instances or ()]
    waits = [
        fmean(one.seconds for one in instance) - least
        for instance, least in zip(instances or (), transfers, strict=True)
    ]
    return CommunicationProfile(
        step=fmean(step.seconds for step in steps),
        busy=busy,
        overlapped=overlapped,
        gaps=_gaps(steps, overlapped, busy),
        transfer=None if instances is None else sum(transfers) / number,
        wait=None if instances is None else sum(waits) / number,
        slowest=_slowest(instances or ()),
        bandwidths=_bandwidths(instances or (), len(ranks)),
        window=ranks[0].window,
        unplaced=unplaced,
    )


def bus_factor(kind: str, ranks: int) -> float:
    """By what a size over a time is multiplied to give the load of the links (nccl-tests, doc/PERFORMANCE.md)."""
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"}:
        return (ranks - 1) / ranks
    return 1.0


def _gaps(steps: Sequence[ProfiledStep], overlapped: float, busy: float) -> float:
    """How much of the busy time may be the host between two operators, were it there as it is where nothing is sent.

    There, computed : gaps is known; while something is sent, computed is known, and gaps cannot be told from waiting.
    """
    computed = sum(step.computed - step.overlapped for step in steps)
    between = sum(step.seconds - step.busy - step.computed + step.overlapped for step in steps)
    return min(overlapped * between / computed, busy - overlapped) if computed > 0 else 0.0


def _unplaced(ranks: Sequence[RankProfile]) -> bool:
    """Whether a collective may have been among some of the ranks only: which ones, no profile tells.

    Where there are no groups but the world's, it was among all; else the number of ranks in its group has to say so,
    which gloo's spans never do.
    """
    sent = (one for rank in ranks for step in rank.steps for one in step.collectives)
    return any(rank.subgroups for rank in ranks) and any(one.ranks != len(ranks) for one in sent)


def _instances(ranks: Sequence[RankProfile]) -> list[Instance] | None:
    """The collectives of all steps, each with what it was on every rank; None where ranks differ in them.

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


def _alike(one: Collective) -> tuple[str, float]:
    """What is the same on all ranks of one collective."""
    return one.kind, -1.0 if one.nbytes is None else one.nbytes


def _slowest(instances: Sequence[Instance]) -> tuple[int, float] | None:
    if not instances or len(instances[0]) == 1:
        return None
    last = Counter(min(range(len(one)), key=lambda rank: one[rank].seconds) for one in instances)
    rank, times = last.most_common(1)[0]
    return rank, times / len(instances)


def _bandwidths(instances: Sequence[Instance], ranks: int) -> tuple[Bandwidth, ...]:
    """For each kind, all sizes over all transfers. The size is of the whole: of all ranks' parts together.

    Args:
        instances: of all steps.
        ranks: of the group, for all of them.
    """
    found = []
    for kind in dict.fromkeys(instance[0].kind for instance in instances):
        own = [instance for instance in instances if instance[0].kind == kind]
        sizes = [one.nbytes for one, *_ in own]
        known = [size for size in sizes if size is not None]
        seconds = sum(min(one.seconds for one in instance) for instance in own)
        whole = sum(known) * (ranks if kind in _GATHERING else 1)
        if len(known) == len(sizes) and seconds > 0 and whole > 0:  # a barrier has none
            found.append(Bandwidth(kind=kind, algorithm=whole / seconds, bus=whole * bus_factor(kind, ranks) / seconds))
    return tuple(found)
