"""The table of metrics; a new one is a function and a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pytest_ddpperf.metrics.blocks import Knows, Within, of_cpu, of_rates, of_steps, of_tails
from pytest_ddpperf.metrics.communication import (
    EXPOSED,
    OVERHEAD,
    communication_overhead,
    exposed_communication,
    of_exposed,
    of_overhead,
)
from pytest_ddpperf.metrics.launches import of_all, once, typical_step
from pytest_ddpperf.metrics.memory import GROWTH_SLACK, fragmentation, memory_growth, outside_allocator, peak_memory
from pytest_ddpperf.metrics.phases import of_phase, phase_seconds
from pytest_ddpperf.records.measurement import Better, Family, Launch, Measurement, Scale, Series
from pytest_ddpperf.records.phases import PHASES
from pytest_ddpperf.stats.blocks import expected
from pytest_ddpperf.stats.centers import Outliers
from pytest_ddpperf.stats.intervals import center
from pytest_ddpperf.stats.summaries import quantile, tail, typical

Samples = tuple[float, ...]

STEP_TIME = "step_time"
FINAL_LOSS = "final_loss"
RESIDENT = "peak_resident"
TAIL = "step_time_tail"
CPU_TIME = "cpu_time"
GROWTH = "memory_growth"
BESIDE = frozenset({CPU_TIME})  # may be gated side by side alone: what a core does in a second differs by the hour
TIMED = frozenset({STEP_TIME, TAIL, CPU_TIME, "throughput", "token_throughput", "throughput_per_rank"})
PARTNERED = frozenset({"speedup", "scaling_efficiency"})  # of one step time to another, of partners in a round
BY_TURNS = TIMED | PARTNERED  # that depend on whether steps took turns with those of other launches
BY_DIAGNOSES = frozenset({GROWTH, EXPOSED, OVERHEAD, *(f"phase_{phase}" for phase in PHASES)})
REPEATED = frozenset({"throughput", "token_throughput"})  # made of the step time alone: their verdict is its verdict


@dataclass(frozen=True)
class Metric:
    """One metric: how it is named, compared and computed.

    Attributes:
        name: in snake_case; what results and baselines call it.
        unit: an SI base unit, ``B``, a rate of them, or ``1``.
        better: the direction of an improvement.
        family: ``absolute`` for what belongs to one machine, ``relative`` for what partners of one run make up.
        scale: compared by quotient or by subtraction.
        samples: one number for each launch that has it; None where none has.
        gated: whether its verdict counts for the result's.
        slack: the smallest tolerance that makes sense, as a fraction (absolute for differences).
        within: what launches know of its scatter; None where they know nothing.
    """

    name: str
    unit: str
    better: Better
    family: Family
    scale: Scale
    samples: Callable[[Measurement], Samples | None]
    gated: bool = True
    slack: float = 0.0
    within: Knows | None = None

    def series(self, samples: Samples, within: Within | None = None) -> Series:
        """The series that these samples make; ``within`` is what their launches know of their scatter."""
        within = within or Within((), 0.0)
        value, interval = center(
            samples,
            self.scale,
            outliers=_outliers(self.name, self.better),
            expected=expected(within.moved, within.own),
        )
        return Series(
            metric=self.name,
            unit=self.unit,
            better=self.better,
            family=self.family,
            scale=self.scale,
            gated=self.gated,
            slack=self.slack,
            samples=samples,
            value=value,
            interval=interval,
            within=within.moved,
            own=within.own,
        )


def series_of(measurement: Measurement, metrics: Sequence[Metric] | None = None) -> tuple[Series, ...]:
    """The series of a measurement, in the table's order, without the metrics that it does not have.

    Args:
        measurement: with any number of launches; without launches there are no series.
        metrics: the table (default: ``METRICS``).
    """
    if not measurement.launches:
        return ()
    found = ((metric, metric.samples(measurement)) for metric in (METRICS if metrics is None else metrics))
    return tuple(
        metric.series(samples, None if metric.within is None else metric.within(measurement))
        for metric, samples in found
        if samples is not None
    )


def outliers_of(series: Series) -> Outliers | None:
    """At which end launches of a metric are out of line: of times, where other load made them worse.

    Of a quotient of two of them, at both.
    """
    return _outliers(series.metric, series.better)


def _outliers(metric: str, better: Better) -> Outliers | None:
    if metric in PARTNERED:
        return "both"
    if metric not in TIMED:
        return None
    return "high" if better == "lower" else "low"


def step_time(measurement: Measurement) -> Samples:
    """Seconds of a typical step; a step lasts as long as its slowest rank."""
    return tuple(map(typical_step, measurement.launches))


def step_time_tail(measurement: Measurement) -> Samples:
    """What the typical step is blind to, such as a pause in every tenth step; see ``tail``."""
    return tuple(map(_tail, measurement.launches))


@once
def _tail(launch: Launch) -> float:
    return tail(launch.step_times)


def cpu_time(measurement: Measurement) -> Samples | None:
    """Core-seconds of an average step, of the busiest rank's process.

    Other load that makes ranks wait for a core lengthens steps and, unless they wait by spinning, not this. So it tells
    of more work where step times tell nothing; of more waiting it tells nothing itself.
    """
    return of_all(_cpu_time, measurement)


def throughput(measurement: Measurement) -> Samples | None:
    """Samples per second of the whole group: those of all ranks in one step over the typical step time."""
    return _rate(measurement, _samples)


def token_throughput(measurement: Measurement) -> Samples | None:
    """Tokens per second of the whole group."""
    return _rate(measurement, _tokens)


def throughput_per_rank(measurement: Measurement) -> Samples | None:
    """Samples per second, divided by the number of ranks."""
    rates = throughput(measurement)
    return None if rates is None else tuple(rate / measurement.world_size for rate in rates)


def straggler_skew(measurement: Measurement) -> Samples | None:
    """How much longer the slowest rank's own typical step is than the median rank's: max / median - 1."""
    if measurement.world_size == 1:
        return None
    return tuple(map(_skew, measurement.launches))


def final_loss(measurement: Measurement) -> Samples | None:
    """The last timed step's loss, averaged over the ranks."""
    totals = of_all(_loss, measurement)
    return None if totals is None else tuple(total / measurement.world_size for total in totals)


@once
def _cpu_time(launch: Launch) -> float | None:
    times = [rank.cpu_time for rank in launch.ranks if rank.cpu_time is not None]
    return max(times) if len(times) == len(launch.ranks) else None


@once
def _skew(launch: Launch) -> float:
    times = [typical(rank.step_times) for rank in launch.ranks]
    return max(times) / quantile(times, 0.5) - 1


def _rate(measurement: Measurement, count: Callable[[Launch], float | None]) -> Samples | None:
    """Counts per step turned into counts per second."""
    counts = of_all(count, measurement)
    if counts is None:
        return None
    return tuple(count / seconds for count, seconds in zip(counts, step_time(measurement), strict=True))


@once
def _samples(launch: Launch) -> float | None:
    return _total(rank.samples_per_step for rank in launch.ranks)


@once
def _tokens(launch: Launch) -> float | None:
    return _total(rank.tokens_per_step for rank in launch.ranks)


@once
def _loss(launch: Launch) -> float | None:
    return _total(rank.loss for rank in launch.ranks)


def _total(values: Iterable[float | None]) -> float | None:
    """The sum over ranks; None where a rank does not know its value."""
    given = list(values)
    known = [value for value in given if value is not None]
    return math.fsum(known) if len(known) == len(given) else None


METRICS: tuple[Metric, ...] = (
    Metric(STEP_TIME, "s", "lower", "absolute", "ratio", step_time, within=of_steps),
    Metric(TAIL, "1", "lower", "relative", "ratio", step_time_tail, within=of_tails),
    Metric(CPU_TIME, "s", "lower", "absolute", "ratio", cpu_time, gated=False, within=of_cpu),  # see BESIDE
    Metric("throughput", "samples/s", "higher", "absolute", "ratio", throughput, within=of_rates),
    Metric("token_throughput", "tokens/s", "higher", "absolute", "ratio", token_throughput, within=of_rates),
    # The same number as throughput for a given world size: its verdict would only repeat that one's.
    Metric(
        "throughput_per_rank",
        "samples/s",
        "higher",
        "absolute",
        "ratio",
        throughput_per_rank,
        gated=False,
        within=of_rates,
    ),
    Metric("straggler_skew", "1", "lower", "relative", "difference", straggler_skew, gated=False, slack=0.03),
    # Resident memory moves with allocator arenas and page sizes; so does, far less, what CUDA's allocator reserves.
    Metric(RESIDENT, "B", "lower", "absolute", "ratio", peak_memory(RESIDENT), slack=0.10),
    Metric("peak_allocated", "B", "lower", "absolute", "ratio", peak_memory("peak_allocated")),
    Metric("peak_reserved", "B", "lower", "absolute", "ratio", peak_memory("peak_reserved"), slack=0.05),
    # What takes the two above apart: their verdicts would only repeat those.
    *(
        Metric(kind, "B", "lower", "absolute", "ratio", peak_memory(kind), gated=False)
        for kind in ("peak_active", "peak_requested", "peak_inactive_split")
    ),
    Metric("fragmentation", "1", "lower", "relative", "difference", fragmentation, gated=False),
    Metric("outside_allocator", "B", "lower", "absolute", "ratio", outside_allocator, gated=False),
    Metric(GROWTH, "B", "lower", "absolute", "difference", memory_growth, slack=GROWTH_SLACK),  # of a step
    # Parts of the step time, which is gated; of a phase that takes microseconds a change says nothing.
    *(
        Metric(
            f"phase_{phase}",
            "s",
            "lower",
            "absolute",
            "difference",
            phase_seconds(phase),
            gated=False,
            within=of_phase(phase),
        )
        for phase in PHASES
    ),
    # Near 0 where all of it is hidden: compared by subtraction. It is in the step time, which is gated.
    Metric(EXPOSED, "s", "lower", "relative", "difference", exposed_communication, gated=False, within=of_exposed),
    Metric(OVERHEAD, "1", "lower", "relative", "difference", communication_overhead, gated=False, within=of_overhead),
    # A loss can be 0 or negative, and a quotient of two losses near 0 says nothing: compared by subtraction.
    Metric(FINAL_LOSS, "1", "lower", "absolute", "difference", final_loss, slack=0.03),
)
