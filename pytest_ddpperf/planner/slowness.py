"""Finds causes of a slow network: a slow rank, a slow link, a wrong interface or a wrong backend."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from pytest_ddpperf.planner.hardware import GB, HARDWARE
from pytest_ddpperf.planner.network import largest_bandwidths
from pytest_ddpperf.records.measurement import Environment
from pytest_ddpperf.records.network import CollectiveFit, RankSweep
from pytest_ddpperf.units import format_count, format_percent, significant

SLOW = 0.75
"""A link is slow if usual time / its time is below this bound, which NVIDIA's resiliency extension uses for ranks."""
LATE = 0.5  # share of a call: a rank is named if the others wait for it for longer
MOSTLY = 0.75  # share of the calls or rounds of messages in which the same rank or link has to be slow
ALIKE = 2.0  # the largest ratio of the times of a rank's links for which the rank, and not a link, is called slow
REACHED = 0.5
"""The share of a link's bandwidth below which a network is called slow. H100s reach 0.7 to 0.9 of theirs in all-reduces
of 1 GB (busbw of 318 to 402 GB/s with 2 to 6 of them, published by students of Stanford's CS336)."""
_MEETINGS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})  # each rank waits for all others
_TRIANGLE = 3  # the fewest ranks whose links can be compared


def late_ranks(ranks: Sequence[RankSweep]) -> list[str]:
    """Returns a sentence for each collective that one rank mostly starts late, so that the others wait long.

    A late rank is the last one to hand its work to the backend. The durations of calls cannot show this rank, because a
    slow link also makes calls end at different times.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    for each in zip(*(rank.times for rank in ranks), strict=True):
        if each[0].collective not in _MEETINGS or len(each) == 1:
            continue
        for call in zip(*(zip(one.handed, one.waited, strict=True) for one in each), strict=True):
            last = max(range(len(call)), key=lambda rank: call[rank][0])
            others = (call[rank] for rank in range(len(call)) if rank != last)
            shares = (min(1.0, (call[last][0] - handed) / waited) if waited else 0.0 for handed, waited in others)
            found.setdefault(each[0].collective, []).append((last, statistics.median(shares)))
    named = []
    for collective, calls in found.items():
        rank, times = Counter(rank for rank, _ in calls).most_common(1)[0]
        waited = statistics.median(share for last, share in calls if last == rank)
        if times >= MOSTLY * len(calls) and waited > LATE:
            named.append(
                f"rank {rank} is slow: it comes last to {format_percent(times / len(calls))} of the calls of "
                f"{collective}; the others wait {format_percent(waited)} of their time: check its node, its cores "
                "and its GPU"
            )
    return named


def slow_links(ranks: Sequence[RankSweep]) -> list[str]:
    """Returns a sentence for each slow link; if all links of a rank are slow, one sentence for all of these links.

    A link is slow if even its fastest message takes much longer than messages on the fastest third of the links. A busy
    machine may slow a link for a while, so the link must be slow in most rounds.
    """
    pairs = {
        (rank, other): seconds
        for rank, sweep in enumerate(ranks)
        for other, seconds in sweep.pairs.items()
        if rank < other
    }
    if len(ranks) < _TRIANGLE or len(pairs) < _TRIANGLE:
        return []
    turns = [dict(zip(pairs, turn, strict=True)) for turn in zip(*pairs.values(), strict=True)]
    often = Counter(pair for turn in turns for pair in _slow(turn))
    fastest = _slow({pair: min(seconds) for pair, seconds in pairs.items()})
    slow = {pair: times for pair, times in fastest.items() if often[pair] >= MOSTLY * len(turns)}
    alone = {}
    for rank in range(len(ranks)):
        own = [slow.get(pair, 1.0) for pair in pairs if rank in pair]
        if len(own) > 1 and min(own) > 1.0 and max(own) <= ALIKE * min(own):
            alone[rank] = statistics.median(own)
    found = {f"every link of rank {rank}": times for rank, times in alone.items()} | {
        f"the link of ranks {pair[0]} and {pair[1]}": times
        for pair, times in slow.items()
        if alone.keys().isdisjoint(pair)
    }
    return [
        f"{whose} is slow: a message takes {times:.1f} times the usual link's time; check its cable"
        for whose, times in found.items()
    ]


def _slow(pairs: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """Returns the slow links in ``pairs`` (seconds by pair of ranks), each with its time divided by the usual time."""
    usual = sorted(pairs.values())[(len(pairs) - 1) // 3]  # of three ranks one may be slow, and so two links of three
    return {pair: seconds / usual for pair, seconds in pairs.items() if usual < SLOW * seconds}


def interface_line(environ: Mapping[str, str], speeds: Mapping[str, float | None], backend: str) -> str:
    """Returns a sentence if GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names a slow or inactive interface, else empty.

    ``speeds`` has bits per second of each interface that is up, None if the speed is unknown.
    """
    variable = f"{backend.upper()}_SOCKET_IFNAME"
    named = environ.get(variable, "")
    plain = named.removeprefix("=").partition(",")[0]
    if not plain or plain.startswith("^"):
        return ""
    # NCCL takes a beginning of a name, unless it is preceded by "=".
    by_beginning = backend == "nccl" and not named.startswith("=")
    chosen = next((name for name in speeds if name == plain or (by_beginning and name.startswith(plain))), None)
    if chosen is None:
        return f"{variable}={named} names no interface that is up; name one that ip -brief link shows, or unset it"
    own = speeds[chosen]
    fastest = max(speeds, key=lambda name: speeds[name] or 0.0)
    best = speeds[fastest]
    if own is None or best is None or own >= best:
        return ""
    slower, faster = (f"{speed / GB:g} Gbit/s" for speed in (own, best))
    return f"{variable}={named} is an interface of {slower}, and {fastest} has {faster}; name that one"


def backend_line(environment: Environment, gpus: int) -> str:
    """Returns a sentence if ranks use gloo although the machine has GPUs; else empty."""
    if environment.backend != "gloo" or not gpus:
        return ""
    return f"gloo moves the data of {format_count(gpus, 'GPU')} through the host; give --backend nccl --device cuda"


def reach_line(fit: CollectiveFit, link: str) -> str:
    """Returns a sentence if a collective's bandwidth is far below the bandwidth of its ``link``; else empty."""
    hardware, (_, busbw) = HARDWARE[link], largest_bandwidths(fit)
    share = busbw / hardware.bandwidth
    if share >= REACHED:
        return ""
    return (
        f"{fit.collective} reaches a busbw of {significant(busbw / GB)} GB/s, {format_percent(share)} of "
        f"the {hardware.bandwidth / GB:g} GB/s of {link} ({hardware.source}); large messages usually reach half of "
        "this bandwidth or more: give a larger --max-size, or check the topology with nvidia-smi topo -m"
    )
