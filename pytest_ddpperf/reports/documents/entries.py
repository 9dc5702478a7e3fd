"""The results document: the objects of its JSON, with their fields.

A field without a comment means the same as the attribute of the same name in ``records``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from pytest_ddpperf.baselines.jsonfile import Confidence, Date, MetricName, Moment, Natural, NotNegative, Positive
from pytest_ddpperf.records import predictions, results
from pytest_ddpperf.records.finding import Diagnosis
from pytest_ddpperf.records.launch import Health, TimeSpent
from pytest_ddpperf.records.measurement import Better, Environment, Family, Mode, Plan, Scale
from pytest_ddpperf.records.phases import CommunicationProfile, MemoryUse, SectionSummary
from pytest_ddpperf.records.rhythm import Components
from pytest_ddpperf.records.verbs import Convergence, Search
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.intervals import CommonChange

_Steps = Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]


class JsonEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):  # a tree has no circles
    """The base class of the JSON objects in a file of results."""


class IntervalEntry(JsonEntry, frozen=True):
    """A confidence interval."""

    low: float | None  # lower end; null if it is not finite
    high: float | None  # upper end; null if it is not finite
    confidence: Confidence  # confidence level: 0.95 for 95 %


class SiteEntry(JsonEntry, frozen=True, kw_only=True, omit_defaults=True):
    """A line of code that causes a part of a count."""

    part: str = ""
    file: str = ""
    line: int
    function: str = ""
    source: str = ""
    backward: bool = False
    value: float
    strategy: str = ""
    through: str = ""
    caller: str = ""
    caller_source: str = ""


class CountsEntry(JsonEntry, frozen=True, kw_only=True, omit_defaults=True):
    """The counts of one step, and the parts of each count."""

    totals: Mapping[str, float] = {}
    details: Mapping[str, Mapping[str, float]] = {}
    unstable: Mapping[str, str] = {}
    by_rank: Mapping[str, tuple[float, ...]] = {}
    details_by_rank: Mapping[str, Mapping[str, tuple[float, ...]]] = {}
    sites: Mapping[str, tuple[SiteEntry, ...]] = {}
    steps: Positive
    varying: Mapping[str, Mapping[str, Components]] = {}


class AgainstEntry(JsonEntry, frozen=True):
    """The reference of a run with --ddpperf-against or --ddpperf-against-python."""

    revision: str
    commit: str | None
    launches: Natural
    modules: dict[str, dict[str, str | None]]  # by module of the project, the file here and there; null for none
    python: str | None
    environment: Environment | None  # of that side; null if it cannot run the benchmark
    packages: dict[str, dict[str, str | None]]  # the versions that differ, by name, there and here; null for none


class BaselineEntry(JsonEntry, frozen=True):
    """The baseline record with which a benchmark is compared."""

    date: Date
    commit: str | None
    dirty: bool
    environment_key: str  # of the environment that it was measured in
    counted: results.Provenance | None  # when and of what its counts were saved, if not with the rest; else null


class MetricEntry(JsonEntry, frozen=True, kw_only=True, omit_defaults=True):
    """The judgement on one metric. Times are in seconds, sizes in bytes, and shares are fractions."""

    unit: str = ""  # SI base unit: s, B, samples/s, or 1 for plain ratios
    better: Better | None = None  # the direction of an improvement; null for counts, of which less is better
    family: Family | None = None  # absolute: of the machine. relative: to a partner of the run. Null for counts
    scale: Scale = ""  # type: ignore[assignment]  # how changes are meant: as fractions, as differences in the unit, or exact
    gated: bool
    value: float | None = None  # the value over all launches; null if it is not finite
    interval: IntervalEntry | None = None
    samples: tuple[float | None, ...] = ()  # one value for each launch that has the metric; empty for counts
    baseline: float | None = None
    base_samples: tuple[float | None, ...] = msgspec.field(name="baseline_samples", default=())
    change: float | None = None
    change_interval: IntervalEntry | None = None
    standard_error: NotNegative | None = None
    df: NotNegative | None = None  # degrees of freedom of the standard error; null for no end
    paired: bool = False
    worse_in: Natural | None = None
    min_tolerance: NotNegative | None = None  # the smallest that makes sense; null for counts
    tolerance: NotNegative | None = None  # the change that the test accepts; null for no limit, and for counts
    margin: NotNegative | None = None
    mde: NotNegative | None = None
    bound: float | None = None
    interval_alpha: NotNegative | None = None
    bound_alpha: NotNegative | None = None
    verdict: Verdict
    note: str = ""  # why the verdict is what it is, if the numbers do not say it


class BenchmarkEntry(JsonEntry, frozen=True):
    """A benchmark that was measured."""

    test: str
    name: str
    strategy: str
    recipe: Mapping[str, str]
    world_size: Positive
    environment_key: str  # stands for its environment, and names the folder of its baseline
    health: tuple[Health | None, ...]  # what else went on in the machine, for each launch; null if nobody looked


class ResultEntry(BenchmarkEntry, frozen=True, kw_only=True):
    """One judged benchmark."""

    mode: Mode | None
    over: str | None
    effective_batch_size: float | None
    verdict: Verdict
    failure: str
    metrics: dict[MetricName, MetricEntry]  # by name, snake_case; empty for a broken benchmark
    plan: Plan  # steps of each launch, fixed before measuring; 0 for a benchmark that broke before that
    turns: bool
    launches: Natural  # number of launches that the verdict rests on: each a fresh process group and one sample
    step_times: tuple[_Steps, ...]  # seconds of each timed step of each launch, on its slowest rank
    seconds: NotNegative
    time: TimeSpent | None  # seconds of the call that measured it, by purpose; null if unknown
    against: AgainstEntry | None  # the other side of a run against another revision; null without one
    paired_with: AgainstEntry | None  # the commit of the stored baseline, if times were measured side by side with it
    unpaired: str
    baseline: BaselineEntry | None
    origin: str  # what the benchmark is compared with, or why with nothing, in words
    counts: CountsEntry | None
    still_sent: str
    synchronised_step: float | None = None
    profile: CommunicationProfile | None
    diagnosis: Diagnosis | None
    sections: tuple[SectionSummary, ...]
    memory_by_rank: Mapping[str, tuple[float, ...]]
    memory_by_phase: Mapping[str, MemoryUse]
    findings: tuple[str, ...]  # notes that a reader of the numbers needs, a sentence each


class RateEntry(JsonEntry, frozen=True):
    """The fraction of runs with an event, and its interval."""

    found: Natural
    of: Positive
    value: NotNegative | None
    interval: IntervalEntry | None


class CalibratedEntry(BenchmarkEntry, frozen=True):
    """A benchmark of a calibration: candidate and reference have the same code."""

    alarms: RateEntry = msgspec.field(name="false_alarms")
    green: RateEntry
    bound: float | None
    mde: NotNegative | None
    gross: NotNegative


class StepEntry(JsonEntry, frozen=True):
    """A predicted step, in seconds."""

    world_size: Positive
    network: str
    accelerator: str
    seconds: NotNegative
    low: NotNegative
    high: NotNegative
    samples: NotNegative | None
    lost: NotNegative
    computing: NotNegative
    communication: NotNegative
    exposed: float
    efficiency: NotNegative
    efficiency_low: NotNegative
    efficiency_high: NotNegative


class PredictionEntry(StepEntry, frozen=True):
    """A step that a call of predict or what_if has predicted."""

    test: str  # pytest node id
    name: str
    gain: predictions.Gain | None = None  # over the first variant of the same call; null for the first one


class CandidateEntry(JsonEntry, frozen=True):
    """A candidate of advise: a strategy with settings."""

    name: str
    strategy: str
    batch_size: Positive | None
    memory: NotNegative | None
    fits: bool
    reason: str
    prediction: StepEntry | None
    measured: NotNegative | None
    standing: predictions.Standing


class StrategyAdviceEntry(JsonEntry, frozen=True):
    """Advice on strategy, precision and batch size for training."""

    test: str
    world_size: Positive
    memory: NotNegative | None
    candidates: tuple[CandidateEntry, ...]


class OverallEntry(JsonEntry, frozen=True):
    """The entry on all benchmarks of a run: numbers of verdicts, and the step time's change that all tests share."""

    verdicts: dict[Verdict, Natural]  # how many benchmarks have each verdict
    common_change: CommonChange | None  # that tests measured side by side have; null for fewer than three


class RunFacts(JsonEntry, frozen=True, kw_only=True):
    """The facts of a run, without its benchmarks."""

    environment: Environment | None  # of the largest process group of the run; null if nothing was measured
    date: Moment | None  # when the run ended; ISO 8601, UTC
    commit: str | None  # full hash of the commit that was checked out; null outside of a git repository
    commit_date: Moment | None  # of the commit; ISO 8601, UTC. Null if unknown
    branch: str | None  # that is checked out, or that the CI job runs for; null if unknown
    dirty: bool  # whether tracked files, those of the baselines apart, differed from the commit
    interrupted: str | None  # why the run ended before all its tests had run; null if it did not
    batch_sizes: tuple[Search, ...]  # one entry for each search for the largest batch that fits
    convergences: tuple[Convergence, ...]  # one entry for each call of converge
    advice: tuple[StrategyAdviceEntry, ...]  # one entry for each call of advise
    predictions: tuple[PredictionEntry, ...]  # one entry for each step that was predicted
    unmeasured: dict[str, str] = {}  # by test that could not be measured, the reason; written since 2026-11-30


class ResultsFile(RunFacts, frozen=True, kw_only=True):
    """The file of --ddpperf-report=json:FILE: every benchmark of a run with its measurement and judgement."""

    schema: Literal["pytest-ddpperf/results/3"]  # name and version of this format
    environments: dict[str, Environment]  # by key, the environment of each benchmark; the first if several share a key
    overall: OverallEntry  # all benchmarks together
    results: tuple[ResultEntry, ...]  # one entry for each benchmark, in the order measured
    calibration: tuple[CalibratedEntry, ...]  # one entry for each benchmark that was measured beside itself


class Run(RunFacts, frozen=True, kw_only=True):
    """A run that was read from a results document, with its benchmarks and their verdicts."""

    results: tuple[results.Result, ...]
    common_change: CommonChange | None
