"""The table of metrics; a new metric needs a function that computes samples, and a row in ``METRICS``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import truediv
from statistics import median
from typing import Any

from pytest_ddpperf.metrics import communication, figures, launch_figures, memory
from pytest_ddpperf.metrics.communication import EXPOSED, OVERHEAD, communication_overhead, exposed_communication
from pytest_ddpperf.metrics.launch_figures import Knows, Samples, Within, complete, of_launches, of_rates, of_steps
from pytest_ddpperf.metrics.phases import of_phase, phase_seconds
from pytest_ddpperf.records.counts import COUNTS, Counts
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Better, Family, Measurement, MetricRules, Scale, Series
from pytest_ddpperf.records.phases import PHASES
from pytest_ddpperf.stats.intervals import ANY

Sampler = Callable[[Measurement], "Samples | None"]

STEP_TIME = "step_time"
RESIDENT = "peak_resident"
FINAL_LOSS = "final_loss"

PLAIN = MetricRules()
_COUNTED = MetricRules(alarm_only=True)
_TIMED = MetricRules(timed=True)
_CPU_TIME = replace(_TIMED, stands_in=True, alarm_only=True)
_STEP_TIME = replace(_TIMED, weight=3.0)  # more weight than CPU time, because few slowdowns are in that alone
# Computed from the step time alone, so they have its verdict.
_MADE_OF_STEP_TIME = replace(_STEP_TIME, repeats_step_time=True)
_BYTES = MetricRules(drifts=False, weight=0.0)
_LOSS = MetricRules(drifts=False, after_steps=True, weight=0.0)
_OF_LOSS: dict[str, Any] = {"family": "absolute", "min_tolerance": 0.03, "rules": _LOSS, "bounds": ANY}
_EXACT: dict[str, Any] = {"scale": "exact", "min_tolerance": 0.0, "interval": None}
_OF_COUNTS: dict[str, Any] = {"better": "lower", "family": "counted", "rules": _COUNTED, **_EXACT}
_DIAGNOSED = MetricRules(diagnosed=True)
_COLUMNS = ("unit", "better", "family", "scale", "gated", "min_tolerance", "rules", "bounds")  # the fields of a series


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric: its name, its comparison and its computation.

    Attributes:
        name: its name in results and baselines, in snake_case.
        unit: unit of the values: an SI base unit, ``B``, a rate such as ``samples/s``, or ``1``.
        better: the direction of an improvement.
        family: ``absolute`` if values depend on the machine, ``relative`` for shares and for quotients of benchmarks.
        scale: ``ratio`` compares by quotient, ``difference`` by subtraction.
        samples: function that returns one number for each launch, or None if no launch has it.
        gated: whether it can fail a test.
        min_tolerance: the smallest useful tolerance, as a fraction (absolute for differences).
        rules: special rules for judging this metric.
        within: function that returns the scatter within launches; None if the metric has none.
        bounds: the range of possible values; noisy samples may lie outside of it.
    """

    name: str
    unit: str
    better: Better
    family: Family
    scale: Scale
    samples: Sampler
    gated: bool = True
    min_tolerance: float = 0.0
    rules: MetricRules = PLAIN
    within: Knows | None = None
    bounds: tuple[float, float] = ANY

    def series(self, samples: Samples, within: Within | None = None) -> Series:
        """Returns the series of these samples; ``within`` is their scatter within launches, None if it is unknown."""
        columns = {name: getattr(self, name) for name in _COLUMNS}
        return launch_figures.series_from(samples, within, metric=self.name, **columns)


def series_of(measurement: Measurement, added: Sequence[Metric] = ()) -> tuple[Series, ...]:
    """Returns the series of all metrics in the table and of the ``added`` metrics; omits metrics without samples."""
    if not measurement.launches:
        return ()
    return tuple(
        metric.series(samples, None if metric.within is None else metric.within(measurement))
        for metric in (*METRICS, *added)
        if (samples := metric.samples(measurement)) is not None
    )


def step_time(measurement: Measurement) -> Samples:
    """Returns the mean seconds of a timed step for each launch; the slowest rank decides how long a step takes."""
    return tuple(map(launch_figures.mean_step, measurement.launches))


def sum_of(figure: Callable[[RankLaunch], float | None]) -> Sampler:
    """Returns a function that sums ``figure`` over the ranks of each launch; its result is None if a figure is None."""

    def totals(measurement: Measurement) -> Samples | None:
        launches = complete(complete(map(figure, launch.ranks)) for launch in measurement.launches)
        return None if launches is None else tuple(map(math.fsum, launches))

    return totals


def rate_of(count: Callable[[RankLaunch], float | None]) -> Sampler:
    """Returns a function that computes a rate for each launch: ``count`` summed over the ranks / the step time."""

    def rates(measurement: Measurement) -> Samples | None:
        totals = sum_of(count)(measurement)
        return None if totals is None else tuple(map(truediv, totals, step_time(measurement)))

    return rates


cpu_time = of_launches(launch_figures.busiest_cpu)
throughput = rate_of(lambda rank: rank.samples_per_step)
token_throughput = rate_of(lambda rank: rank.tokens_per_step)


@of_launches
def straggler_skew(launch: Launch) -> float | None:
    """Returns max / median - 1 of the ranks' median step times: 0 if all ranks are equally fast. None for one rank."""
    times = [median(rank.step_times) for rank in launch.ranks]
    return max(times) / median(times) - 1 if len(times) > 1 else None


def per_rank(of_group: Sampler) -> Sampler:
    """Returns a function that divides the values of ``of_group`` by the number of ranks."""

    def shares(measurement: Measurement) -> Samples | None:
        totals = of_group(measurement)
        return None if totals is None else tuple(total / measurement.world_size for total in totals)

    return shares


def counted_series(counts: Counts) -> tuple[Series, ...]:
    """Returns a series with one exact value for each metric that was counted, in the order of ``COUNTS``."""
    return tuple(
        Series(metric=metric, unit=row.unit, gated=row.gated, samples=(value,), value=value, **_OF_COUNTS)
        for metric, row in COUNTS.items()
        if (value := counts.totals.get(metric)) is not None
    )


def _step_metric(name: str, unit: str, samples: Sampler, **columns: Any) -> Metric:
    """Returns the table's row for a time (unit s) or a rate, which is compared by ratio."""
    better: Better = "lower" if unit == "s" else "higher"
    return Metric(name=name, unit=unit, better=better, family="absolute", scale="ratio", samples=samples, **columns)


def _bytes_metric(name: str, samples: Sampler, **columns: Any) -> Metric:
    """Returns the table's row for a metric in bytes, which is compared by ratio."""
    defaults = {"family": "absolute", "scale": "ratio", "rules": _BYTES}
    return Metric(name=name, unit="B", better="lower", samples=samples, **{**defaults, **columns})


def _share_metric(name: str, samples: Sampler, **columns: Any) -> Metric:
    """Returns the table's row for a fraction, which is compared by difference because it may be near 0."""
    defaults = {"unit": "1", "better": "lower", "family": "relative", "scale": "difference", "gated": False}
    return Metric(name=name, samples=samples, **{**defaults, "bounds": (0.0, math.inf), **columns})


METRICS: tuple[Metric, ...] = (
    _step_metric(STEP_TIME, "s", step_time, within=of_steps, rules=_STEP_TIME),
    # The usual step: compared with the mean of all steps, it shows how much of the mean is in long steps.
    _step_metric("step_time_median", "s", figures.step_time_median, gated=False, rules=_MADE_OF_STEP_TIME),
    # Waiting for a core lengthens a step, but uses CPU time only if the rank spins. So CPU time shows additional work
    # even if step times scatter. A core's speed differs by the hour, so it is gated only with a reference of the same
    # minutes.
    _step_metric("cpu_time", "s", cpu_time, gated=False, within=launch_figures.of_cpu, rules=_CPU_TIME),
    _step_metric("throughput", "samples/s", throughput, within=of_rates, rules=_MADE_OF_STEP_TIME),
    _step_metric("token_throughput", "tokens/s", token_throughput, within=of_rates, rules=_MADE_OF_STEP_TIME),
    # The same as throughput for a given world size: its verdict would only repeat throughput's.
    _step_metric(
        "throughput_per_rank", "samples/s", per_rank(throughput), gated=False, within=of_rates, rules=_MADE_OF_STEP_TIME
    ),
    _step_metric("flops_rate", "FLOP/s", figures.flops_rate, gated=False, within=of_rates, rules=_MADE_OF_STEP_TIME),
    _step_metric("mfu", "1", figures.mfu, gated=False, within=of_rates, rules=_MADE_OF_STEP_TIME),
    # Single steps; the metrics above gate the launch as a whole.
    _step_metric("step_time_min", "s", figures.step_time_min, gated=False, rules=_MADE_OF_STEP_TIME),
    _step_metric("step_time_max", "s", figures.step_time_max, gated=False, rules=_MADE_OF_STEP_TIME),
    _step_metric("epoch_time", "s", figures.epoch_time, gated=False, within=of_steps, rules=_MADE_OF_STEP_TIME),
    _step_metric("time_to_first_step", "s", figures.time_to_first_step, gated=False),
    _step_metric("compile_time", "s", figures.compile_time, gated=False),
    _share_metric("step_time_scatter", figures.step_time_scatter, rules=_TIMED),
    _share_metric("straggler_skew", straggler_skew, min_tolerance=0.03),
    # Resident memory varies with allocator arenas and page sizes; memory reserved by CUDA's allocator varies less.
    _bytes_metric(
        RESIDENT,
        memory.peak_memory(RESIDENT),
        min_tolerance=0.10,
        rules=replace(_BYTES, negligible=memory.RESIDENT_FLOOR, usual_scatter=memory.RESIDENT_SCATTER),
    ),
    _bytes_metric("peak_allocated", memory.peak_memory("peak_allocated")),
    _bytes_metric("peak_reserved", memory.peak_memory("peak_reserved"), min_tolerance=0.05),
    # These explain the two metrics above; their verdicts would only repeat those two.
    *(
        _bytes_metric(kind, memory.peak_memory(kind), gated=False)
        for kind in ("peak_active", "peak_requested", "peak_inactive_split")
    ),
    _share_metric("fragmentation", memory.fragmentation, bounds=(0.0, 1.0)),
    _bytes_metric("outside_allocator", memory.outside_allocator, gated=False),
    _bytes_metric("mean_allocated", memory.mean_allocated, gated=False, rules=replace(_BYTES, diagnosed=True)),
    _share_metric("gpu_utilisation", figures.gpu_utilisation, better="higher", bounds=(0.0, 1.0)),
    _share_metric("energy_per_step", figures.energy_per_step, unit="J", family="absolute", scale="ratio"),
    _share_metric("cpu_energy_per_step", figures.cpu_energy_per_step, unit="J", family="absolute", scale="ratio"),
    _bytes_metric(
        "memory_growth",  # of a step
        memory.memory_growth,
        scale="difference",
        min_tolerance=memory.GROWTH_TOLERANCE,
        rules=replace(_BYTES, diagnosed=True, usual_scatter=memory.GROWTH_SCATTER),
    ),
    # Parts of the step time, which is gated; a change of a phase that takes microseconds means nothing.
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
    # Near 0 if computation hides all communication. Also part of the step time, which is gated.
    _share_metric(EXPOSED, exposed_communication, unit="s", within=communication.of_exposed, rules=_DIAGNOSED),
    _share_metric(
        OVERHEAD, communication_overhead, within=communication.of_overhead, rules=_DIAGNOSED, bounds=(0.0, 1.0)
    ),
    _share_metric("compute_to_communication", figures.compute_to_communication, better="higher", scale="ratio"),
    # A loss can be 0 or negative, and a quotient of two losses near 0 says nothing.
    _share_metric(FINAL_LOSS, per_rank(sum_of(lambda rank: rank.loss)), gated=True, **_OF_LOSS),
    _share_metric("mean_loss", per_rank(sum_of(lambda rank: rank.mean_loss)), **_OF_LOSS),
)
_RULES = {**dict.fromkeys(COUNTS, _COUNTED), **{metric.name: metric.rules for metric in METRICS}}


def rules_of(metric: str) -> MetricRules:
    """Returns the judging rules of a metric; the default rules if the metric is not in the table."""
    return _RULES.get(metric, PLAIN)
