"""The nouns of measuring: frozen data that the parts of the plugin hand to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from statistics import median
from typing import Any, Literal

from pytest_ddpperf.errors import NotTimed
from pytest_ddpperf.records.communication import BlockTimes, CommunicationProfile, MemoryHeadroom
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.health import Health
from pytest_ddpperf.records.phases import PhaseTimes
from pytest_ddpperf.units import format_count, format_value

Better = Literal["lower", "higher"]
Family = Literal["absolute", "relative", "counted"]
Scale = Literal["ratio", "difference", "exact"]
Mode = Literal["strong", "weak"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A confidence interval; ``confidence`` is 0.95 for 95 %."""

    low: float
    high: float
    confidence: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """A standard deviation that was estimated, on the scale of logarithms: 0.01 is 1 %.

    Attributes:
        df: degrees of freedom of the estimate.
    """

    sd: float
    df: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """The facts about machine, software and group that a result depends on.

    Fields that are compared ("keyed") decide which baseline belongs to a run; ``recorded`` holds what is worth
    knowing but does not decide (host, kernel, full versions). No live reading (load, clocks) is ever keyed.
    """

    device: str  # "cpu" or "cuda"
    device_model: str  # the GPU's name; on CPU the same as cpu_model
    device_count: int  # GPUs in the machine; 0 on CPU
    cpu_model: str
    cores: int  # usable by this process
    threads: int  # per rank
    nodes: int
    backend: str  # "gloo" or "nccl"
    world_size: int
    torch: str  # major.minor
    cuda: str | None  # major.minor of the CUDA that torch was built for
    recorded: Mapping[str, str] = field(default_factory=dict)

    @property
    def oversubscribed(self) -> bool:
        """Whether ranks have to share a core or a GPU: their times say little about real hardware."""
        limit = self.cores if self.device == "cpu" else self.device_count
        return self.world_size > limit * self.nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How many steps every launch runs: ``warmup`` untimed, then ``steps`` timed. Fixed before measuring."""

    warmup: int
    steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceMemory:
    """A GPU's memory as one of its ranks saw it after the timed steps, in bytes.

    Attributes:
        device: NVIDIA's id of the GPU, ``GPU-`` and a uuid: ranks that share one have it in common.
        used: by all processes together, as the driver tells.
        reserved: held by the caching allocator of this rank.
    """

    device: str
    used: int
    reserved: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLaunch:
    """What one rank reports of one launch.

    Attributes:
        step_times: seconds of each timed step on this rank, in order, without those that updated nothing; where a
            strategy does something every n steps only, the mean of each n that all did.
        skipped_steps: numbers of the timed steps, from 0, that updated nothing because fp16 gradients overflowed.
        picked: the settings of data loading that ``auto`` came to, and a sentence on them; None where it had not to.
        memory: by kind, see ``instruments.memory.LABELS``: ``peak_resident`` on CPU (peak resident memory above the
            level before the model was built), ``peak_allocated`` and others of the caching allocator on CUDA, in bytes.
        device_memory: what this rank's GPU had in use; None on CPU.
        loss: the last timed step's loss on this rank; None where the step returns none.
        phases: where the time of steps after the timed ones went; None where they were not taken apart.
        communication: steps after those, with and without synchronisation of gradients; None where they were not run.
        no_headroom: why not, where copies of what is trained would not fit into memory; the same on all ranks.
        held: bytes that the process held before and after each of a few steps of a pass of their own; empty where the
            system does not tell.
        samples_per_step: this rank's samples in one step; None where unknown. ``tokens_per_step`` likewise.
        background: whether the rank had processes or threads of its own, which work on while its steps wait.
        taken: bytes of the machine's memory that its process took at most, the import of the user's modules included;
            None where a GPU does the work, where it took turns, or where the system does not tell.
        cpu_time: seconds for which its process had a core in a timed step, all threads together and on average, without
            child processes; None where a GPU does the work, steps overflowed, or the system does not tell.
        blocks: how many of ``step_times`` belong to each block that was timed in turns; empty where it took none.
        cpu_blocks: ``cpu_time`` of each block; empty where there are none, or it is not known.
    """

    rank: int
    step_times: tuple[float, ...]
    memory: Mapping[str, float]
    loss: float | None
    samples_per_step: float | None
    tokens_per_step: float | None
    skipped_steps: tuple[int, ...] = ()
    picked: tuple[str, str] | None = None
    phases: PhaseTimes | None = None
    communication: BlockTimes | None = None
    no_headroom: MemoryHeadroom | None = None
    held: tuple[int, ...] = ()
    device_memory: DeviceMemory | None = None
    background: bool = False
    taken: int | None = None
    cpu_time: float | None = None
    blocks: tuple[int, ...] = ()
    cpu_blocks: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One fresh process group, from start to end: the unit of statistics.

    Attributes:
        round: which round of the run it belongs to; launches of variants in one round are partners.
        seconds: how long the whole launch took, start-up included.
        health: what else went on in the machine meanwhile; None where nobody looked.
        figures: what was computed of it so far, by name; a changed copy begins with none.
    """

    round: int
    ranks: tuple[RankLaunch, ...]
    seconds: float
    health: Health | None = None
    figures: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def step_times(self) -> tuple[float, ...]:
        """Seconds of each step: a step lasts as long as its slowest rank."""
        if "step_times" not in self.figures:
            times = zip(*(rank.step_times for rank in self.ranks), strict=True)
            self.figures["step_times"] = tuple(map(max, times))
        found: tuple[float, ...] = self.figures["step_times"]
        return found


def training_text(strategy: str, recipe: Mapping[str, str]) -> str:
    """A strategy and the settings that change what a step does, in one line: ``ddp precision=bf16``."""
    return " ".join((strategy, *(f"{name}={value}" for name, value in recipe.items())))


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkId:
    """Which benchmark of a test something belongs to.

    Attributes:
        name: tells this benchmark from the others of its test, e.g. ``ddp`` or ``ddp w2``.
        strategy: how the ranks are synchronised, options included; ``custom`` for a step that brings its own.
        mode: how a point of a scaling curve was measured; None for a plain benchmark.
        environment: the machine, the software and the group.
        recipe: the settings that change what a step does, where they are not the defaults: ``{"precision": "bf16"}``.
    """

    name: str
    strategy: str
    mode: Mode | None
    environment: Environment
    recipe: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> BenchmarkId:
        """The benchmark alone, without what was measured or stored of it."""
        return BenchmarkId(**self.identity_fields)

    @property
    def identity_fields(self) -> dict[str, Any]:
        """The fields of the identity by name, for a record of another kind of the same benchmark."""
        return {one.name: getattr(self, one.name) for one in fields(BenchmarkId)}

    @property
    def key(self) -> tuple[str, int]:
        """Name and number of ranks: what tells the benchmarks of one test apart."""
        return self.name, self.world_size

    @property
    def training(self) -> str:
        """Strategy and recipe in one line: what a benchmark is called that was given no name."""
        return training_text(self.strategy, self.recipe)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.environment.world_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement(BenchmarkId):
    """One variant of one benchmark, measured: everything that metrics are computed from.

    Attributes:
        launches: in the order measured; only those that the verdict on times rests on.
        diagnoses: launches that tell where the time goes and whether memory grows; their steps are in no time above.
        findings: remarks that a reader of the numbers needs; ``reports.findings`` has their words.
        series: its metrics; ``measurement["step_time"]`` is one of them.
        counts: what one of its steps does, counted on all ranks; None where nothing was counted.
        profile: its communication as the profiler sees it; None where it was not profiled.
        over: the name of the variant, measured side by side, that its speedup is held against; None for none.
        turns: whether its steps were timed in turns with those of other launches, and so last a little longer.
    """

    plan: Plan
    launches: tuple[Launch, ...]
    findings: tuple[Finding, ...] = ()
    series: tuple[Series, ...] = ()
    over: str | None = None
    counts: Counts | None = None
    profile: CommunicationProfile | None = None
    turns: bool = False
    diagnoses: tuple[Launch, ...] = ()

    @property
    def every(self) -> tuple[Launch, ...]:
        """All launches that tell something: those timed, and the diagnosed ones."""
        return (*self.launches, *self.diagnoses)

    @property
    def lost(self) -> float:
        """The share of the usable cores' time that other processes and a hypervisor took; of the launch in the middle.

        0 on GPUs and where the system does not tell.
        """
        seen = [one.health.cpu for one in self.launches if one.health is not None]
        shares = [(cpu.others or 0.0) + (cpu.steal or 0.0) for cpu in seen]
        return median(shares) if shares and self.environment.device == "cpu" else 0.0

    def __repr__(self) -> str:
        """Name, strategy, ranks and the main figure: the rest of it fills pages."""
        named = "" if self.name == self.training else f"{self.training}, "
        return f"<Measurement {self.name}: {named}{format_count(self.world_size, 'rank')}, {self.figure}>"

    @property
    def figure(self) -> str:
        """What it comes to, in a few words: the step time, or what was counted where nothing was timed."""
        step_time = next((series for series in self.series if series.metric == "step_time"), None)
        if step_time is None:
            return "not timed" if self.counts is None else f"{self.counts!r}"
        return (
            f"step_time {format_value(step_time.value, step_time.unit)} in {format_count(len(self.launches), 'launch')}"
        )

    @property
    def effective_batch_size(self) -> float | None:
        """Samples that one optimizer step of the whole group trains on; None where unknown."""
        counts = [rank.samples_per_step for launch in self.launches[:1] for rank in launch.ranks]
        known = [count for count in counts if count is not None]
        return sum(known) if known and len(known) == len(counts) else None

    def __iter__(self) -> Iterator[str]:
        """The names of its metrics."""
        return iter([series.metric for series in self.series])

    def __getitem__(self, metric: str) -> Series:
        """A metric of this measurement, by name.

        Raises:
            KeyError: it has no such metric; the message names those it has.
            NotTimed: this run only counts.
        """
        __tracebackhide__ = True  # what a reader needs is the line of the test
        by_name = {series.metric: series for series in self.series}
        if metric not in by_name and not self.launches and self.counts is not None:
            raise NotTimed(f"{metric} was not measured: --ddpperf-counted-only only counts")
        if metric not in by_name:
            raise KeyError(f"no metric {metric!r}; there are {', '.join(by_name)}")
        return by_name[metric]


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricRules:
    """What is special to a metric, for those that judge and report it. Files do not keep it.

    Attributes:
        timed: whether it is made of timed steps.
        partnered: whether it is a quotient of two benchmarks of one run.
        diagnosed: whether launches that diagnose tell it, after the verdict on times.
        repeats: the metric whose verdict it only repeats; empty for none.
        stands_in_for: the metric in whose place it may be worse, where that remains undecided; empty for none.
        paired_only: whether it is gated only where the reference is measured in the same rounds.
        outliers: at which end launches are out of line: at the worse one, for other load makes times worse, or at both.
        deviation: the share of a run's deviation as a whole that it has; 0 for bytes and seeded losses.
        deviates_with: the metric whose size that scatter is a share of; empty for its own.
        shared_scatter: whether launches of other benchmarks tell how its launches scatter.
        single_scatter: standard deviation of what a single launch tells, where launches are few; None where unknown.
        negligible: the amount below which a difference means nothing.
        after_steps: whether it is comparable only after as many steps.
        alarms: whether its scatter can raise a false alarm, so that it takes a part of the significance level.
    """

    timed: bool = False
    partnered: bool = False
    diagnosed: bool = False
    repeats: str = ""
    stands_in_for: str = ""
    paired_only: bool = False
    outliers: Literal["worse", "both"] | None = None
    deviation: float = 1.0
    deviates_with: str = ""
    shared_scatter: bool = False
    single_scatter: float | None = None
    negligible: float = 0.0
    after_steps: bool = False
    alarms: bool = True

    @property
    def interleaved(self) -> bool:
        """Whether it depends on whether steps took turns with those of other launches."""
        return self.timed or self.partnered


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One metric of one measurement: a sample per launch that tells it, and what they amount to.

    Attributes:
        better: the direction of an improvement.
        scale: ``ratio`` for quantities compared by their quotient, ``difference`` for those compared by subtraction,
            ``exact`` for what has no noise and must be equal.
        gated: whether its verdict counts for the result's.
        slack: the smallest tolerance that makes sense for this metric, as a fraction (or absolute, for differences).
        value: the typical value over launches, in ``unit``.
        interval: where that value lies; None where nothing tells of its scatter.
        within: for each launch how far each block of its steps moves its sample, on the scale of analysis; empty where
            the metric is not made of steps. See ``stats.blocks``.
        own: standard deviation that a launch adds to that, on the same scale.
        rules: what is special to the metric.
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
