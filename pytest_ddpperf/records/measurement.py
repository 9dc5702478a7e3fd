"""Frozen records of measurements: a benchmark's identity, its environment, its launches, and its metrics."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from statistics import median
from typing import Any, Literal

from pytest_ddpperf.errors import NotTimed
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import BUSY, GpuHealth, Launch
from pytest_ddpperf.records.phases import CommunicationProfile
from pytest_ddpperf.units import format_count, format_value

Better = Literal["lower", "higher"]
Family = Literal["absolute", "relative", "counted"]
Scale = Literal["ratio", "difference", "exact"]
Mode = Literal["strong", "weak"]
SIMULATED = "fake"  # torch's backend for a single process: its collectives return their input


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A confidence interval; ``confidence`` is 0.95 for 95 %."""

    low: float
    high: float
    confidence: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """The machine, software and process group of a result. All fields but ``recorded`` are part of a baseline's key."""

    device: str  # kind of device the ranks compute on: "cpu" or "cuda"
    device_model: str  # the GPU's name; on CPU the same as cpu_model
    device_count: int  # GPUs in the machine; 0 on CPU
    cpu_model: str  # name of the processor
    cores: int  # that this process may use
    threads: int  # of a rank
    nodes: int  # machines in the group
    backend: str  # of torch.distributed: "gloo", "nccl", or SIMULATED ("fake") if the other ranks do not exist
    world_size: int  # number of ranks
    torch: str  # version of torch, major.minor
    cuda: str | None  # version, major.minor, of the CUDA that torch was built for; None for none
    gpu_setup: str | None = None  # how GPUs are linked and limited, as in GpuFacts; None on CPU, and if unknown
    recorded: Mapping[str, str] = field(default_factory=dict)  # more facts: host, kernel, full versions

    @property
    def simulated(self) -> bool:
        """Returns whether a single rank ran in a simulated group, so that steps were counted and not timed."""
        return self.backend == SIMULATED

    @property
    def oversubscribed(self) -> bool:
        """Returns whether ranks or threads share a core or a GPU, so that times say little about real hardware."""
        if self.device == "cpu":
            return not self.simulated and self.world_size * self.threads > self.cores * self.nodes
        return self.world_size > self.device_count * self.nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The numbers of warm-up and timed steps of every launch, fixed before measuring."""

    warmup: int  # untimed steps at the start
    steps: int  # timed steps


LIMIT = "memory_limit"
UNNAMED = frozenset({"env", LIMIT})  # keys of a recipe that are no part of a benchmark's name


def training_text(strategy: str, recipe: Mapping[str, str], without: Collection[str] = ()) -> str:
    """Returns a strategy and the settings of a training in one line, such as ``ddp precision=bf16``."""
    return " ".join((strategy, *(f"{name}={value}" for name, value in recipe.items() if name not in without)))


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkId:
    """The identity of a benchmark: its name, strategy, settings, environment and number of ranks.

    Attributes:
        name: the benchmark's name within its test, such as ``ddp`` or ``ddp w2``.
        strategy: strategy with its options; ``custom`` for a step whose own code is parallel.
        mode: ``weak`` or ``strong`` for a point of a scaling curve; None for another benchmark.
        environment: the machine, the software and the group.
        recipe: settings of the training that are not defaults, by name.
        world_size: number of ranks.
    """

    name: str
    strategy: str
    mode: Mode | None
    environment: Environment
    recipe: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity_fields(self) -> dict[str, Any]:
        """The fields of the identity by name, to make another record of the same benchmark."""
        return {column.name: getattr(self, column.name) for column in fields(BenchmarkId)}

    @property
    def key(self) -> tuple[str, int]:
        """Name and number of ranks, which distinguish the benchmarks of one test."""
        return self.name, self.world_size

    @property
    def plain_name(self) -> str:
        """The name without options: ``ddp`` of ``ddp[bucket_cap_mb=5] precision=bf16``."""
        return re.sub(r"\[[^\[\]]*\]", "", self.name.removesuffix(training_text("", self.recipe, UNNAMED)))

    @property
    def training(self) -> str:
        """Strategy and settings in one line: the default name of a benchmark."""
        return training_text(self.strategy, self.recipe, UNNAMED)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.environment.world_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement(BenchmarkId):
    """The measurement of one variant of one benchmark: the data for all metrics.

    Attributes:
        plan: the number of steps of each launch.
        launches: timed launches, in the order measured.
        fresh_from: number of launches before a metric looked worse; only the later ones can confirm the worsening.
        diagnoses: launches after the timed ones, which measure phases, communication and growth of memory.
        findings: notes on the numbers; ``reports.findings`` has their sentences.
        series: the metrics; ``measurement["step_time"]`` is one of them.
        counts: counts of a step on all ranks; None if nothing was counted.
        profile: communication in the profiler's records; None if no launch was profiled.
        over: name of the variant that the speedup is relative to; None if there is no speedup.
        turns: whether launches were interleaved with others, a few steps each; steps are then longer.
    """

    plan: Plan
    launches: tuple[Launch, ...]
    fresh_from: int = 0
    findings: tuple[Finding, ...] = ()
    series: tuple[Series, ...] = ()
    over: str | None = None
    counts: Counts | None = None
    profile: CommunicationProfile | None = None
    turns: bool = False
    diagnoses: tuple[Launch, ...] = ()

    @property
    def fresh(self) -> tuple[Launch, ...]:
        """The launches after a metric looked worse, which have to confirm it; all launches if none looked worse."""
        return self.launches[self.fresh_from :]

    @property
    def every(self) -> tuple[Launch, ...]:
        """All launches: first the timed ones, then those that measure phases and memory growth."""
        return (*self.launches, *self.diagnoses)

    @property
    def unfit(self) -> str:
        """The reason why the benchmark does not fit into memory; empty if it fits."""
        return str(next((one.facts["reason"] for one in self.findings if one.code == "does_not_fit"), ""))

    @property
    def lost(self) -> float:
        """The fraction of the cores that other processes took on the busiest node, median over launches; 0 on GPUs."""
        return (self._lost or 0.0) if self.environment.device == "cpu" else 0.0

    @property
    def _lost(self) -> float | None:
        seen = [[(cpu.others, cpu.steal or 0.0) for cpu in launch.processors.values()] for launch in self.launches]
        known = [[others + steal for others, steal in of_nodes if others is not None] for of_nodes in seen]
        return median(map(max, filter(None, known))) if any(known) else None

    @property
    def busy(self) -> bool:
        """Returns True if other processes used over ``BUSY`` of the cores, a GPU was disturbed, or this is unknown."""
        if self.environment.device == "cpu" or not self.launches:
            return bool(self.launches) and (self._lost is None or self._lost > BUSY)
        return not self._gpus or any(gpu.disturbed for gpus in self._gpus for gpu in gpus)

    @property
    def clock(self) -> float | None:
        """The clock of the slowest GPU in Hz, the median over launches; None on the CPU, or if unknown."""
        known = [[gpu.sm_clock for gpu in gpus if gpu.sm_clock is not None] for gpus in self._gpus]
        return median(map(min, filter(None, known))) if any(known) else None

    @property
    def _gpus(self) -> list[tuple[GpuHealth, ...]]:
        """The state of the GPUs in each launch; empty if a launch has no readings."""
        read = [launch.health.gpus for launch in self.launches if launch.health is not None]
        return read if len(read) == len(self.launches) and all(read) else []

    def __repr__(self) -> str:
        """Returns name, strategy, ranks and the main figure; the full record would fill pages."""
        training = "" if self.name == self.training else f"{self.training}, "
        return f"<Measurement {self.name}: {training}{format_count(self.world_size, 'rank')}, {self.figure}>"

    @property
    def untimed(self) -> bool:
        """Returns whether the benchmark was only counted, because the session's budget left no time for launches."""
        return any(finding.code == "no_time_to_measure" for finding in self.findings)

    @property
    def figure(self) -> str:
        """The step time in a few words, or the counts if nothing was timed."""
        step_time = next((series for series in self.series if series.metric == "step_time"), None)
        if self.unfit:
            return "does not fit into memory"
        if step_time is None:
            return "not timed" if self.counts is None else f"{self.counts!r}"
        return f"step_time {format_value(step_time.value, 's')} in {format_count(len(self.launches), 'launch')}"

    @property
    def effective_batch_size(self) -> float | None:
        """The number of samples that one optimizer step of the whole group trains on; None if unknown."""
        counts = [rank.samples_per_step for launch in self.launches[:1] for rank in launch.ranks]
        return None if not counts or None in counts else sum(filter(None, counts))

    def __iter__(self) -> Iterator[str]:
        return iter([series.metric for series in self.series])

    def __getitem__(self, metric: str) -> Series:
        """Returns a metric of this measurement, by name.

        Raises:
            KeyError: the measurement has no such metric; the message names its metrics.
            NotTimed: this run only counts, or had no time left to measure.
        """
        __tracebackhide__ = True  # readers need the line of their test
        by_name = {series.metric: series for series in self.series}
        if metric in by_name:
            return by_name[metric]
        if self.unfit:
            raise KeyError(f"no metric {metric!r}, because {self.name} does not fit into memory: {self.unfit}")
        if not self.launches and self.counts is not None:
            why = "--ddpperf-budget had no time left" if self.untimed else "--ddpperf-counts=only measures only counts"
            raise NotTimed(f"{metric} was not measured: {why}")
        raise KeyError(f"no metric {metric!r} was measured; give one of {', '.join(by_name)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricRules:
    """Special rules for judging and reporting a metric. Files do not store them.

    Attributes:
        timed: whether the metric is computed from timed steps.
        partnered: whether it is a quotient of two benchmarks of one run.
        diagnosed: whether it is measured in launches after the verdict on times.
        repeats_step_time: whether its verdict only repeats the verdict on the step time.
        stands_in: whether it can fail a test only if the step time is undecided, as the CPU time can.
        drifts: whether it changes with the machine's speed, as times and rates do, unlike bytes, counts and losses.
        usual_scatter: usual standard deviation between launches, for runs with few launches; None if unknown.
        negligible: the amount below which a difference is ignored.
        after_steps: whether values are comparable only after the same number of steps.
        weight: its share of the significance level, relative to others that can fail a test; 0 if it has no noise.
        alarm_only: whether an undecided verdict on it is ignored if a timed metric of the benchmark passes.
    """

    timed: bool = False
    partnered: bool = False
    diagnosed: bool = False
    repeats_step_time: bool = False
    stands_in: bool = False
    drifts: bool = True
    usual_scatter: float | None = None
    negligible: float = 0.0
    after_steps: bool = False
    weight: float = 1.0
    alarm_only: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One metric of one measurement: a sample for each launch, and a value with its confidence interval.

    Attributes:
        metric: name of the metric.
        unit: unit of its values.
        better: the direction of an improvement.
        scale: ``ratio`` compares by quotient, ``difference`` by subtraction, ``exact`` (no noise) for equality.
        gated: whether it can fail a test.
        min_tolerance: the smallest useful tolerance, as a fraction (absolute for differences).
        samples: one number for each launch.
        value: the value over all launches, in ``unit``.
        interval: confidence interval of ``value``; None if the scatter is unknown.
        within: for each launch, the jackknife influence of each block of steps on the launch's sample (for ratios, on
            the logarithm); see ``influences`` in ``stats.launches``. Empty if samples do not come from blocks of steps.
        own: the part of the standard deviation between launches that the scatter between blocks does not explain.
        rules: special rules of this metric.
    """

    metric: str
    unit: str
    better: Better
    family: Family
    scale: Scale
    gated: bool
    min_tolerance: float
    samples: tuple[float, ...]
    value: float
    interval: Interval | None
    within: tuple[tuple[float, ...], ...] = ()
    own: float = 0.0
    rules: MetricRules = field(default=MetricRules(), compare=False)

    @property
    def drifts(self) -> bool:
        """Returns whether the metric changes with the machine's speed, as times do, unlike counts, bytes and losses."""
        return self.scale != "exact" and self.unit != "B" and self.rules.drifts
