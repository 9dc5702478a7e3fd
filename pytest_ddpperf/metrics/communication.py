"""The communication of a step: the time that it adds and, from profiles, its overlap, waiting and bandwidth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from pytest_ddpperf.metrics.launch_figures import Samples, Within, complete, once
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.phases import Bandwidth, Collective, CommunicationProfile, RankProfile
from pytest_ddpperf.stats.launches import MIN_BLOCKS, OWN_IN_TURNS, influences

EXPOSED = "exposed_communication"
OVERHEAD = "communication_overhead"
Instance = tuple[Collective, ...]  # one collective, on each rank

_GATHERING = frozenset({"all_gather", "gather"})  # each rank contributes a part of the result


def exposed_communication(measurement: Measurement) -> Samples | None:
    """Returns the seconds by which averaging gradients makes a step longer, for each launch that measured this.

    This is the mean step that averages gradients (synchronised) minus the mean step that does not. Blocks of both kinds
    alternate in one launch, so a slow moment slows both. A step lasts as long as on its slowest rank. If nothing is
    sent, the difference is noise around 0.
    """
    return _samples(measurement, lambda step, alone: step - alone)


def communication_overhead(measurement: Measurement) -> Samples | None:
    """Returns exposed communication as a share of a synchronised step, by launch; None if no launch measured it."""
    return _samples(measurement, lambda step, alone: 1 - alone / step)


def of_exposed(measurement: Measurement) -> Within:
    """Returns the scatter of ``exposed_communication`` within each launch, in seconds."""
    own = OWN_IN_TURNS * (synchronised_step(measurement) or 0.0)
    return _within(measurement, lambda step, alone: step - alone, own)


def of_overhead(measurement: Measurement) -> Within:
    """Returns the scatter of ``communication_overhead`` within each launch, as a share of a step."""
    return _within(measurement, lambda step, alone: 1 - alone / step, OWN_IN_TURNS)


def synchronised_step(measurement: Measurement) -> float | None:
    """Returns the mean seconds of a step that averages gradients, over launches; None if no launch measured it."""
    steps = _samples(measurement, lambda step, _: step)
    return None if steps is None else fmean(steps)


def still_sent(measurement: Measurement) -> str:
    """Returns a text on the data that ranks still sent in steps without averaging of gradients; empty if none."""
    found = (rank.communication for launch in measurement.every for rank in launch.ranks[:1])
    return next((blocks.still_sent for blocks in found if blocks is not None), "")


def no_memory_headroom(measurement: Measurement) -> Finding | None:
    """Reports that exposed communication is unknown, because copies of the training state did not fit in memory."""
    lacking = [lack for launch in measurement.every if (lack := launch.ranks[0].no_headroom) is not None]
    if not lacking:
        return None
    needed, free = lacking[0].needed, lacking[0].free
    return Finding("no_memory_headroom", {"launches": len(lacking), "needed": needed, "free": free})


def synchronisation_kept(measurement: Measurement) -> Finding | None:
    """Reports that exposed communication was not measured, because the user's step cannot skip averaging gradients."""
    reason = next((launch.ranks[0].kept for launch in measurement.every if launch.ranks[0].kept), None)
    return None if reason is None else Finding("synchronisation_kept", {"reason": reason})


def _samples(measurement: Measurement, figure: Callable[[float, float], float]) -> Samples | None:
    """Returns ``figure(a, b)`` by launch; a, b: mean step with and without averaging of gradients. None if unknown."""
    return tuple(figure(*steps[0]) for steps in map(_steps, measurement.every) if steps) or None


def _within(measurement: Measurement, figure: Callable[[float, float], float], own: float) -> Within:
    """Returns the scatter of ``figure`` within launches, over pairs of a block with averaging and a block without."""
    launches = (without for _, *without in filter(None, map(_steps, measurement.every)) if without)
    return Within(tuple(influences([figure(*steps) for steps in without]) for without in launches), own)


@once
def _steps(launch: Launch) -> list[tuple[float, float]]:
    """Returns pairs of mean step times, with and without averaging of gradients; none if these were not measured.

    The first pair is over all blocks of steps. Each further pair omits one block of each kind, for the jackknife.
    """
    known = complete(rank.communication for rank in launch.ranks)
    if known is None:
        return []
    number = min(rank.pairs for rank in known)

    def kept(times: tuple[float, ...], pair: int) -> tuple[float, ...]:
        size = len(times) // max(1, number)
        return times if pair < 0 else (*times[: pair * size], *times[(pair + 1) * size :])

    def mean(ranks: Iterable[tuple[float, ...]], pair: int) -> float:  # a step lasts as long as on its slowest rank
        return fmean(map(max, zip(*(kept(times, pair) for times in ranks), strict=True)))

    return [
        (mean((rank.synchronised for rank in known), pair), mean((rank.unsynchronised for rank in known), pair))
        for pair in range(-1, number if number >= MIN_BLOCKS else 0)
    ]


def saw_work(ranks: Sequence[RankProfile]) -> bool:
    """Returns whether the profiler saw work on each rank. On CUDA it sees no work if CUPTI is missing."""
    return all(any(step.computed or step.busy for step in rank.steps) for rank in ranks)


def merged(ranks: Sequence[RankProfile]) -> CommunicationProfile:
    """Merges the profiles of a group's ranks, which are in rank order and have the same number of steps.

    As in PyTorch's TensorBoard plugin, the shortest time of a collective on any rank is the transfer. On other ranks,
    the rest of the time is waiting. Transfer and wait are None if it is unknown which ranks met in a collective.
    """
    steps = [step for rank in ranks for step in rank.steps]
    sent = [collective for step in steps for collective in step.collectives]
    # A collective may involve only some of the ranks, and no profile says which ranks.
    unplaced = any(rank.subgroups for rank in ranks) and any(collective.ranks != len(ranks) for collective in sent)
    instances = None if unplaced else _instances(ranks)
    busy, overlapped = fmean(step.busy for step in steps), fmean(step.overlapped for step in steps)
    computed = sum(step.computed - step.overlapped for step in steps)
    between = sum(step.seconds - step.busy - step.computed + step.overlapped for step in steps)
    number = len(ranks[0].steps)
    seconds = [[collective.seconds for collective in instance] for instance in instances or ()]
    transfers, waits = list(map(min, seconds)), [fmean(each) - min(each) for each in seconds]
    return CommunicationProfile(
        step=fmean(step.seconds for step in steps),
        busy=busy,
        overlapped=overlapped,
        # Busy time that may be the host's gaps between operators, in the ratio of gaps to computing elsewhere.
        gaps=min(overlapped * between / computed, busy - overlapped) if computed > 0 else 0.0,
        transfer=None if instances is None else sum(transfers) / number,
        wait=None if instances is None else sum(waits) / number,
        slowest=_slowest(instances or ()),
        bandwidths=_bandwidths(instances or (), len(ranks)),
        window=ranks[0].window,
        unplaced=unplaced,
    )


def bus_factor(kind: str, ranks: int) -> float:
    """Returns the ratio of busbw to algbw for a collective such as ``all_reduce`` (nccl-tests, doc/PERFORMANCE.md)."""
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"}:
        return (ranks - 1) / ranks
    return 1.0


def _instances(ranks: Sequence[RankProfile]) -> list[Instance] | None:
    """Pairs the collectives of all ranks, step by step; returns None if the ranks call different collectives.

    Several collectives may run at once, and ranks may start them in different orders. So the first all-reduce of 4 MiB
    in a step is paired with the first one of 4 MiB on each other rank, and so on.
    """
    instances: list[Instance] = []
    for steps in zip(*(rank.steps for rank in ranks), strict=True):
        per_rank = [sorted(step.collectives, key=_alike) for step in steps]
        if len({tuple(map(_alike, collectives)) for collectives in per_rank}) > 1:
            return None
        instances += zip(*per_rank, strict=True)
    return instances


def _alike(collective: Collective) -> tuple[str, float]:
    """Returns the name (such as ``all_reduce``) and bytes of a collective, which are equal on all of its ranks."""
    return collective.kind, -1.0 if collective.nbytes is None else collective.nbytes


def _slowest(instances: Sequence[Instance]) -> tuple[int, float] | None:
    """Returns the rank that most often enters a collective last, and the fraction of collectives it enters last."""
    if not instances or len(instances[0]) == 1:
        return None
    last = Counter(min(range(len(ranks)), key=lambda rank: ranks[rank].seconds) for ranks in instances)
    rank, times = last.most_common(1)[0]
    return rank, times / len(instances)


def _bandwidths(instances: Sequence[Instance], ranks: int) -> tuple[Bandwidth, ...]:
    """Returns the bandwidth of each kind of collective: the bytes of all calls divided by their transfer time."""
    found = []
    for kind in dict.fromkeys(instance[0].kind for instance in instances):
        own = [instance for instance in instances if instance[0].kind == kind]
        sizes = [collective.nbytes for collective, *_ in own]
        known = [size for size in sizes if size is not None]
        seconds = sum(min(collective.seconds for collective in instance) for instance in own)
        whole = sum(known) * (ranks if kind in _GATHERING else 1)
        if len(known) == len(sizes) and seconds > 0 and whole > 0:  # a barrier has no size
            found.append(Bandwidth(kind=kind, algorithm=whole / seconds, bus=whole * bus_factor(kind, ranks) / seconds))
    return tuple(found)
