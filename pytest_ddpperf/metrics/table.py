"""The table of metrics; a new one is a function and a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from pytest_ddpperf.metrics.memory import (
    GROWTH_SCATTER,
    GROWTH_TOLERANCE,
    RESIDENT_FLOOR,
    fragmentation,
    memory_growth,
    outside_allocator,
    peak_memory,
)
from pytest_ddpperf.metrics.phases import of_phase, phase_seconds
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Better, Family, Measurement, MetricRules, Scale, Series
from pytest_ddpperf.records.phases import PHASES
from pytest_ddpperf.stats.blocks import expected
from pytest_ddpperf.stats.centers import Outliers
from pytest_ddpperf.stats.intervals import center
from pytest_ddpperf.stats.summaries import quantile, tail, typical

Samples = tuple[float, ...]

STEP_TIME = "step_time"
RESIDENT = "peak_resident"
FINAL_LOSS = "final_loss"

PLAIN = MetricRules()
_TIMED = MetricRules(timed=True, outliers="worse", shared_scatter=True)
_MADE_OF_STEP_TIME = replace(_TIMED, repeats=STEP_TIME, alarms=False)  # alone: its verdict is that of the step time
_BYTES = MetricRules(deviation=0.0, alarms=False)
_DIAGNOSED = MetricRules(diagnosed=True)


@dataclass(frozen=True, kw_only=True)
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
        min_tolerance: the smallest tolerance that makes sense, as a fraction (absolute for differences).
        rules: what is special to it.
        within: what launches know of its scatter; None where they know nothing.
    """

    name: str
    unit: str
    better: Better
    family: Family
    scale: Scale
    samples: Callable[[Measurement], Samples | None]
    gated: bool = True
    min_tolerance: float = 0.0
    rules: MetricRules = PLAIN
    within: Knows | None = None

    def series(self, samples: Samples, within: Within | None = None) -> Series:
        """The series that these samples make; ``within`` is what their launches know of their scatter."""
        within = within or Within((), 0.0)
        value, interval = center(
            samples,
            self.scale,
            outliers=outlying_end(self.rules, self.better),
            expected=expected(within.moved, within.own),
        )
        return Series(
            metric=self.name,
            unit=self.unit,
            better=self.better,
            family=self.family,
            scale=self.scale,
            gated=self.gated,
            min_tolerance=self.min_tolerance,
            samples=samples,
            value=value,
            interval=interval,
            within=within.moved,
            own=within.own,
            rules=self.rules,
        )


def series_of(measurement: Measurement, metrics: Sequence[Metric] | None = None) -> tuple[Series, ...]:
    """The series of a measurement, in the table's order, without the metrics that it does not have."""
    if not measurement.launches:
        return ()
    found = ((metric, metric.samples(measurement)) for metric in (METRICS if metrics is None else metrics))
    return tuple(
        metric.series(samples, None if metric.within is None else metric.within(measurement))
        for metric, samples in found
        if samples is not None
    )


def outliers_of(series: Series) -> Outliers | None:
    """At which end launches of a metric are out of line."""
    return outlying_end(series.rules, series.better)


def outlying_end(rules: MetricRules, better: Better) -> Outliers | None:
    """The end at which launches are out of line, of a metric that improves in that direction."""
    if rules.outliers != "worse":
        return rules.outliers
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


def _step_metric(name: str, unit: str, samples: Callable[[Measurement], Samples | None], **columns: Any) -> Metric:
    """A row of a time or a rate, compared by quotients."""
    better: Better = "lower" if unit == "s" else "higher"
    return Metric(name=name, unit=unit, better=better, family="absolute", scale="ratio", samples=samples, **columns)


def _bytes_metric(name: str, samples: Callable[[Measurement], Samples | None], **columns: Any) -> Metric:
    """A row of an amount of memory, compared by quotients."""
    defaults = {"family": "absolute", "scale": "ratio", "rules": _BYTES}
    return Metric(name=name, unit="B", better="lower", samples=samples, **{**defaults, **columns})


def _share_metric(name: str, samples: Callable[[Measurement], Samples | None], **columns: Any) -> Metric:
    """A row of a share, which may be near 0: compared by subtraction."""
    defaults = {"unit": "1", "family": "relative", "scale": "difference", "gated": False}
    return Metric(name=name, better="lower", samples=samples, **{**defaults, **columns})


METRICS: tuple[Metric, ...] = (
    _step_metric(STEP_TIME, "s", step_time, within=of_steps, rules=_TIMED),
    Metric(
        name="step_time_tail",
        unit="1",
        better="lower",
        family="relative",
        scale="ratio",
        samples=step_time_tail,
        within=of_tails,
        # What makes a whole run slower cancels out in a quotient of two times of one launch.
        rules=replace(_TIMED, shared_scatter=False, deviation=0.5),
    ),
    # What a core does in a second differs by the hour, so it is gated beside a reference of the same minutes alone.
    _step_metric(
        "cpu_time",
        "s",
        cpu_time,
        gated=False,
        within=of_cpu,
        rules=replace(_TIMED, paired_only=True, stands_in_for=STEP_TIME),
    ),
    _step_metric("throughput", "samples/s", throughput, within=of_rates, rules=_MADE_OF_STEP_TIME),
    _step_metric("token_throughput", "tokens/s", token_throughput, within=of_rates, rules=_MADE_OF_STEP_TIME),
    # The same number as throughput for a given world size: its verdict would only repeat that one's.
    _step_metric(
        "throughput_per_rank", "samples/s", throughput_per_rank, gated=False, within=of_rates, rules=_MADE_OF_STEP_TIME
    ),
    _share_metric("straggler_skew", straggler_skew, min_tolerance=0.03),
    # Resident memory moves with allocator arenas and page sizes; so does, far less, what CUDA's allocator reserves.
    _bytes_metric(
        RESIDENT, peak_memory(RESIDENT), min_tolerance=0.10, rules=replace(_BYTES, negligible=RESIDENT_FLOOR)
    ),
    _bytes_metric("peak_allocated", peak_memory("peak_allocated")),
    _bytes_metric("peak_reserved", peak_memory("peak_reserved"), min_tolerance=0.05),
    # What takes the two above apart: their verdicts would only repeat those.
    *(
        _bytes_metric(kind, peak_memory(kind), gated=False)
        for kind in ("peak_active", "peak_requested", "peak_inactive_split")
    ),
    _share_metric("fragmentation", fragmentation),
    _bytes_metric("outside_allocator", outside_allocator, gated=False),
    _bytes_metric(
        "memory_growth",  # of a step
        memory_growth,
        scale="difference",
        min_tolerance=GROWTH_TOLERANCE,
        rules=replace(_BYTES, diagnosed=True, single_scatter=GROWTH_SCATTER),
    ),
    # Parts of the step time, which is gated; of a phase that takes microseconds a change says nothing.
    *(
        _share_metric(
            f"phase_{phase}",
            phase_seconds(phase),
            unit="s",
            family="absolute",
            within=of_phase(phase),
            rules=_DIAGNOSED,
        )
        for phase in PHASES
    ),
    # Near 0 where all of it is hidden. It is in the step time, which is gated, and deviates as that does.
    _share_metric(
        EXPOSED, exposed_communication, unit="s", within=of_exposed, rules=replace(_DIAGNOSED, deviates_with=STEP_TIME)
    ),
    _share_metric(OVERHEAD, communication_overhead, within=of_overhead, rules=_DIAGNOSED),
    # A loss can be 0 or negative, and a quotient of two losses near 0 says nothing.
    _share_metric(
        FINAL_LOSS,
        final_loss,
        family="absolute",
        gated=True,
        min_tolerance=0.03,
        rules=MetricRules(deviation=0.0, after_steps=True, alarms=False),
    ),
)
