"""The figures of a benchmark that a diagnosis rests on, taken from its measurement."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean, median

from pytest_ddpperf.metrics.communication import communication_overhead, still_sent
from pytest_ddpperf.metrics.figures import precision_of_products
from pytest_ddpperf.metrics.launch_figures import complete, long_steps_of, mean_step, phases_of
from pytest_ddpperf.parsers import byte_count
from pytest_ddpperf.records.launch import Launch, MachineRates
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.phases import BACKWARD, DATA_WAIT, GRADIENT_SYNC, OTHER, PHASES
from pytest_ddpperf.strategies.table import STRATEGIES

_WAITS = 0.10  # of a step: if ranks wait less than this outside of backward, they wait inside of it, which is not timed
# Names of operators whose time follows from their FLOPs: aten.addmm, aten.convolution_backward, aten.mkldnn_rnn_layer.
_PRODUCTS = re.compile(r"mm|mv|dot|conv|attention|linear|rnn|encoder_layer")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowRank:
    """The slow rank of a step, for which all other ranks wait."""

    rank: int
    own: float  # seconds of its step without waits for other ranks
    others: float  # the same for the typical other rank
    phase: str  # the phase in which it is slower by most


@dataclass(frozen=True, kw_only=True, slots=True)
class StepEvidence:
    """The figures that a diagnosis uses; seconds are of one step."""

    step: float  # the whole step
    data: float  # the wait for data that delays all ranks
    communication: float  # exposed communication, as far as it was measured
    unmeasured: bool  # whether steps may also wait for other collectives, such as those in backward
    outside: float  # the time outside of all phases that have a name
    slow: SlowRank | None  # the rank that the others wait for; None if ranks are alike
    cpu: float | None  # CPU seconds of the average rank; None on GPUs, and if the system does not report them
    flops: float  # on the rank with the most
    operators: float  # calls of operators on the rank with the most; 0 if nothing was counted
    moved: float  # bytes that operators other than matrix products read and write
    rates: MachineRates | None  # speeds of ranks in micro-benchmarks, on average; None if these were not run
    sent: float  # bytes that a rank puts into collectives
    collectives: float  # calls of them
    lost: float  # share of the cores that other processes took
    memory: float | None  # the largest peak of a rank as a share of what it may use; None if no limit is known


def evidence_of(measurement: Measurement) -> StepEvidence | None:
    """Returns the figures of a measurement; None if no launch timed steps, or none measured phases."""
    launches = [launch for launch in measurement.every if phases_of(launch) is not None]
    if not measurement.launches or not launches:
        return None
    step = median(map(mean_step, measurement.launches))
    shares = _shares(measurement, launches)
    # Of products in the precision of the step's; the CPU knows one.
    asked = measurement.recipe.get("precision", "fp32")
    of_step = measurement.environment.device == "cpu" or precision_of_products(measurement) == asked
    rates = _rates(launches) if of_step else None
    slow = _slow_rank(launches, step) or _rank_with_most_work(measurement, launches, step, rates)
    in_backward = slow is None and not sends_after_backward(measurement)  # ranks may wait there for another's data
    waited = fmean(min(rank[DATA_WAIT] + rank[BACKWARD] * in_backward for rank in ranks) for ranks in shares)
    communication, whole = _communication(measurement, shares, step)
    cpu_times = complete(rank.cpu_time for launch in measurement.launches for rank in launch.ranks)
    totals: Mapping[str, float] = {} if measurement.counts is None else measurement.counts.totals
    moved = {} if measurement.counts is None else measurement.counts.details.get("operator_bytes", {})
    return StepEvidence(
        step=step,
        data=step * min(longest_data_wait(measurement), waited),
        communication=communication,
        unmeasured=not whole and totals.get("collective_calls", 0.0) > 0,
        outside=step * fmean(rank[OTHER] for ranks in shares for rank in ranks),
        slow=slow,
        cpu=fmean(cpu_times) if cpu_times else None,
        flops=totals.get("flops", 0.0),
        operators=totals.get("operators", 0.0),
        moved=math.fsum(nbytes for name, nbytes in moved.items() if not _PRODUCTS.search(name)),
        rates=rates,
        sent=totals.get("collective_bytes", 0.0),
        collectives=totals.get("collective_calls", 0.0),
        lost=measurement.lost,
        memory=_memory(measurement),
    )


def _shares(measurement: Measurement, launches: Sequence[Launch]) -> list[list[dict[str, float]]]:
    """Returns each phase's fraction of the step time, for each launch and each rank."""
    typical = median if long_steps_of(measurement).period is None else math.fsum
    found: list[list[dict[str, float]]] = []
    for launch in launches:
        found.append([])
        for phases in phases_of(launch) or ():
            seconds = {phase: typical(phases.seconds[phase]) for phase in PHASES}
            whole = math.fsum(seconds.values())
            found[-1].append({phase: value / whole if whole else 0.0 for phase, value in seconds.items()})
    return found


def _communication(
    measurement: Measurement, phase_shares: Sequence[Sequence[Mapping[str, float]]], step: float
) -> tuple[float, bool]:
    """Returns a step's seconds of exposed communication, and whether they are known for all of its collectives."""
    if measurement.world_size == 1:
        return 0.0, True
    overheads = communication_overhead(measurement)
    if overheads is not None:
        return step * max(0.0, median(overheads)), not still_sent(measurement)
    profile = measurement.profile
    if profile is not None:
        return step * max(0.0, profile.exposed - (profile.wait or 0.0)) / profile.step, True
    outside = step * fmean(min(rank[GRADIENT_SYNC] for rank in ranks) for ranks in phase_shares)
    return outside, sends_after_backward(measurement)


def longest_data_wait(measurement: Measurement) -> float:
    """Returns the largest fraction of the step time in which a rank waits for data; 0 if it is unknown."""
    shares = _shares(measurement, [launch for launch in measurement.every if phases_of(launch) is not None])
    return fmean(max(rank[DATA_WAIT] for rank in ranks) for ranks in shares) if shares else 0.0


def sends_after_backward(measurement: Measurement) -> bool:
    """Returns whether the strategy is known to send gradients only after backward has ended."""
    row = STRATEGIES.get(strategy_name(measurement))
    return row is not None and row.after_backward


def strategy_name(measurement: Measurement) -> str:
    """Returns the strategy's name without its options."""
    return measurement.strategy.partition("[")[0]


def _slow_rank(launches: Sequence[Launch], step: float) -> SlowRank | None:
    """Returns the rank that works, rather than waits, for the longest part of ``step`` seconds; None if unknown."""
    own = [seconds for seconds in map(_own_steps, launches) if seconds is not None]
    if not own or len(own[0][0]) < 2:  # noqa: PLR2004  a rank alone waits for none
        return None
    means = [fmean(seconds[rank] / whole for seconds, whole in own) for rank in range(len(own[0][0]))]
    rank = max(range(len(means)), key=means.__getitem__)
    others = median(means[:rank] + means[rank + 1 :])
    return SlowRank(rank=rank, own=step * means[rank], others=step * others, phase=_slow_phase(launches, rank))


def _own_steps(launch: Launch) -> tuple[list[float], float] | None:
    """Returns each rank's step time without waits for other ranks, and the group's step time; None if unknown."""
    blocks = complete(rank.communication for rank in launch.ranks)
    if blocks is not None:
        whole = median(tuple(map(max, zip(*(rank.synchronised for rank in blocks), strict=True))))
        return [median(rank.unsynchronised) for rank in blocks], whole
    phases = phases_of(launch)
    if phases is None:
        return None
    waits = [median(rank.seconds[GRADIENT_SYNC]) for rank in phases]
    steps = [median(rank.step_times) for rank in phases]
    if max(waits) < _WAITS * max(steps):
        return None  # ranks wait inside of backward, which no phase shows
    return [step - wait for step, wait in zip(steps, waits, strict=True)], max(steps)


def _rank_with_most_work(
    measurement: Measurement, launches: Sequence[Launch], step: float, rates: MachineRates | None
) -> SlowRank | None:
    """Returns the rank with the most FLOPs, for which the others wait; None if ranks have equal or unknown FLOPs."""
    counts = measurement.counts
    if rates is None or counts is None or "flops" in counts.differing or not counts.totals.get("collective_calls"):
        return None
    flops = counts.by_rank.get("flops", ())
    if len(flops) < 2:  # noqa: PLR2004  ranks that differ
        return None
    rank = max(range(len(flops)), key=flops.__getitem__)
    more = (flops[rank] - median(flops[:rank] + flops[rank + 1 :])) / rates.products
    return SlowRank(rank=rank, own=step, others=max(0.0, step - more), phase=_slow_phase(launches, rank))


def _slow_phase(launches: Sequence[Launch], rank: int) -> str:
    """Returns the phase in which a rank is slowest compared with the median of the other ranks."""
    more = dict.fromkeys((phase for phase in PHASES if phase != GRADIENT_SYNC), 0.0)
    for launch in launches:
        seconds = [{phase: median(own.seconds[phase]) for phase in more} for own in phases_of(launch) or ()]
        for phase in more:
            more[phase] += seconds[rank][phase] - median(own[phase] for i, own in enumerate(seconds) if i != rank)
    return max(more, key=more.__getitem__)


def _rates(launches: Sequence[Launch]) -> MachineRates | None:
    known = [rank.rates for launch in launches for rank in launch.ranks if rank.rates is not None]
    means = {each.name: fmean(getattr(rates, each.name) for rates in known) for each in fields(MachineRates) if known}
    return MachineRates(**means) if known else None


def memory_limit(measurement: Measurement) -> float | None:
    """Returns the bytes that a rank may use: the test's limit, else the GPU's memory; None if both are unknown."""
    limit = measurement.recipe.get("memory_limit")
    totals = [
        rank.device_memory.total for launch in measurement.launches for rank in launch.ranks if rank.device_memory
    ]
    return min(totals, default=None) if limit is None else byte_count(limit)


def _memory(measurement: Measurement) -> float | None:
    """Returns the largest fraction of its memory limit that any rank used; None if no limit is known."""
    limit = measurement.recipe.get("memory_limit")
    ranks = [rank for launch in measurement.launches for rank in launch.ranks]
    if limit is None:
        return max((held.used / held.total for rank in ranks if (held := rank.device_memory) is not None), default=None)
    peaks = [rank.memory.get("peak_allocated", rank.memory.get("peak_resident")) for rank in ranks]
    return max((peak / byte_count(limit) for peak in peaks if peak is not None), default=None)
