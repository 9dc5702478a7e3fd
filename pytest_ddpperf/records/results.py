"""Records of judging: the content of a baseline, and the comparison of a measurement with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar, TypeAlias

from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Diagnosis, Finding
from pytest_ddpperf.records.launch import LongSteps, TimeSpent
from pytest_ddpperf.records.measurement import BenchmarkId, Interval, Measurement, Plan, Series
from pytest_ddpperf.records.phases import MemoryUse, SectionSummary
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.units import format_change, format_count


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """The date of a measurement, and the version of the measured code."""

    date: str  # ISO 8601
    commit: str | None  # full hash; None if unknown
    dirty: bool = False  # whether tracked files differed from the commit
    code: str | None = None  # as in BaselineRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineRecord(BenchmarkId):
    """The record of one benchmark in a baseline file: the measured figures, and their origin."""

    plan: Plan
    series: tuple[Series, ...]
    commit: str | None
    date: str  # ISO 8601, day
    counts: Counts | None = None
    dirty: bool = False  # whether tracked files differed from the commit
    counted: Provenance | None = None  # of the counts, if another run made them
    turns: bool = False  # as in Measurement
    over: str | None = None  # as in Measurement
    lost: float = 0.0  # as in Measurement
    busy: bool = False  # as in Measurement
    clock: float | None = None  # as in Measurement
    code: str | None = None  # a digest of the project's code that was measured; None if git does not report it
    typical: bool = False  # whether step times are those of typical steps, as in files of version 2

    @property
    def timed(self) -> bool:
        """Returns whether the record has metrics other than counts."""
        return any(series.scale != "exact" for series in self.series)

    @property
    def counts_from(self) -> Provenance:
        """The date at which the counts were taken, and the version of the counted code."""
        return self.counted or Provenance(date=self.date, commit=self.commit, dirty=self.dirty)


def record_of(measured: Measurement, provenance: Provenance) -> BaselineRecord:
    """Returns a measurement as the record that later measurements are compared with."""
    kept = ("plan", "series", "counts", "turns", "over", "lost", "busy", "clock")
    facts = {name: getattr(measured, name) for name in kept}
    return BaselineRecord(**measured.identity_fields, **facts, **asdict(provenance))


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredBaseline:
    """The stored record with which a benchmark is compared, or the reason why there is none.

    Counts may be compared with a record of any machine, times only with a record of the same environment.
    """

    paired: ClassVar[bool] = False
    # Judges times; None if there is no baseline. If ``differs`` is not empty, this is the nearest record of another
    # environment or training, which is shown and judges nothing.
    record: BaselineRecord | None
    origin: str  # the environment key, or why there is no baseline
    differs: tuple[str, ...] = ()  # facts of environment and training in which the record differs: torch 2.11 -> 2.13
    recorded_differ: tuple[str, ...] = ()  # other facts that differ but decide nothing: NCCL 2.27.5 -> 2.28.9
    counted: BaselineRecord | None = None  # the record whose counts are compared with the candidate's counts
    counted_differs: tuple[str, ...] = ()  # the facts that make the counts incomparable
    kernels_differ: tuple[str, ...] = ()  # facts that make those counts incomparable that depend on torch's kernels
    alike: tuple[str, ...] = ()  # without a record: names of the same test's records that differ only in options
    pair: PairedRevision | None = None  # the baseline's commit, measured in the candidate's rounds; it judges times
    unpaired: str = ""  # why the baseline's commit is not measured in these rounds, and the cure


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedRevision:
    """The reference measurement: the same benchmark with another revision, in the same rounds as the candidate."""

    paired: ClassVar[bool] = True
    differs: ClassVar[tuple[str, ...]] = ()  # both sides run on one machine, now
    recorded_differ: ClassVar[tuple[str, ...]] = ()
    counted_differs: tuple[str, ...] = ()  # as in StoredBaseline, if that side runs in another environment
    kernels_differ: tuple[str, ...] = ()
    revision: str  # in words: 3f2a1c0 (main)
    commit: str | None  # full hash; None for a folder that is no git checkout
    record: BaselineRecord | None = None  # None if that revision cannot run the benchmark
    launches: int = 0  # of that revision, on which the verdict is based; 0 if it cannot run the benchmark
    long_steps: LongSteps | None = None  # of that revision
    lacking: str = ""  # why it has no record
    # Files of the project that candidate and reference imported, by module; None if a side did not import it.
    modules: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    candidate_launches: int = 0
    python: str | None = None  # the interpreter of its ranks, as the user gave it; None for this process's interpreter
    packages: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)  # that differ: (there, here)

    @property
    def named(self) -> str:
        """The revision's name for reports: ``revision 3f2a1c0 (main)``, ``this checkout under new/bin/python``."""
        words = self.revision if self.revision == "this checkout" else f"revision {self.revision}"
        return words if self.python is None else f"{words} under {self.python}"

    @property
    def counted(self) -> BaselineRecord | None:
        """The reference's record, whose counts are compared with the candidate's counts."""
        return self.record

    @property
    def origin(self) -> str:
        """The revision and how it was measured, as text."""
        if self.record is None:
            return f"{self.named} cannot run it"
        launches = f"{self.candidate_launches}+{self.launches} launches" if self.candidate_launches else "counted only"
        return f"{self.named}, side by side, {launches}"


Reference: TypeAlias = "StoredBaseline | PairedRevision"
"""The baseline or the other revision with which a candidate is compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The judgement on one metric.

    Attributes:
        series: the candidate's series.
        gated: whether it can fail a test.
        baseline: the value of the reference; None if the reference has no value.
        change: relative change for ratio scales (0.132 is +13.2 %), absolute for differences; None without baseline.
        change_interval: interval of the change, with 95 % confidence for all interim verdicts together.
        standard_error: standard error of the change, or of the change's logarithm if all samples are above 0.
        tolerance: the change that the test accepts.
        margin: the worsening that a verdict ``unchanged`` rules out; None if the verdict does not depend on scatter.
        mde: minimal detectable effect: the smallest worsening that this run finds with 95 % probability, if it uses all
            the available time for a metric that looks worse.
        bound: the smallest worsening that this run excludes, one-sided with 95 % confidence; None if unknown.
        interval_alpha: two-sided error probability of ``change_interval``, for this verdict alone.
        bound_alpha: one-sided error probability of ``bound``, for this verdict; None if an earlier one set ``bound``.
        verdict: verdict on this metric alone.
        note: the reason for the verdict, if the numbers do not show it; else None.
        difference: the change of a count that is not comparable (the note says why); else None.
        suspicious: whether it looks so much worse that new launches must confirm the regression.
        promising: whether it looks so much better than another revision that more launches must confirm this.
        enough: estimated number of launches that would decide a suspected or undecided metric; None if no number would,
            or if it is unknown.
        df: degrees of freedom of the standard error.
        base_samples: one number for each launch of ``baseline``; for another revision, from the same rounds in the same
            order as the samples of ``series``.
        worse_in: number of the candidate's samples that were worse than the reference's sample of the same round (if
            ``paired``) or than the reference's median; None for fewer than two samples, or without a comparison.
        paired: whether candidate and reference were measured in the same rounds.
    """

    series: Series
    tolerance: float
    verdict: Verdict
    gated: bool
    baseline: float | None = None
    change: float | None = None
    change_interval: Interval | None = None
    standard_error: float | None = None
    mde: float | None = None
    note: Finding | None = None
    difference: Finding | None = None
    suspicious: bool = False
    promising: bool = False
    enough: int | None = None
    df: float = math.inf
    base_samples: tuple[float, ...] = ()
    margin: float | None = None
    bound: float | None = None
    interval_alpha: float | None = None
    bound_alpha: float | None = None
    worse_in: int | None = None
    paired: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StepAnalysis:
    """Figures of a benchmark's step from its launches, in addition to its metrics."""

    diagnosis: Diagnosis | None = None  # what limits the step, with advice; None if no step was diagnosed
    sections: tuple[SectionSummary, ...] = ()  # that the user named; averages over ranks, launches and steps
    # By kind, each rank's memory, averaged over launches; in bytes, except alloc_retries and ooms.
    memory_by_rank: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    memory_by_phase: Mapping[str, MemoryUse] = field(default_factory=dict)  # the largest over ranks and launches
    still_sent: str = ""  # what steps still send if they skip the averaging of gradients
    synchronised_step: float | None = None  # seconds while exposed communication was measured; None if it was not


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The judged benchmark: a row of the summary and an entry of the JSON file.

    Attributes:
        test: pytest node id.
        name: name of the variant within its test.
        measurement: the candidate's measurement.
        comparisons: one for each metric; ``result["step_time"]`` is one of them.
        verdict: verdict on the whole benchmark.
        reference: the reference of the comparison: a stored baseline or another revision.
        findings: notes on the verdict.
        seconds: time to measure this benchmark and all benchmarks in the same rounds.
        spent: seconds by purpose of the call that measured the benchmark; None if unknown.
        attempt: 1 for the first run of the test, 2 if the test ran again, and so on.
        failure: why its test failed, a line for each reason; empty if the test passed.
        step: figures of the benchmark's step.
    """

    test: str
    measurement: Measurement
    comparisons: tuple[Comparison, ...]
    verdict: Verdict
    reference: Reference
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0
    spent: TimeSpent | None = None
    attempt: int = 1
    failure: str = ""
    step: StepAnalysis = StepAnalysis()

    @property
    def red(self) -> bool:
        """Returns whether reports show the benchmark first: its test failed, or its verdict is regressed or broken."""
        return bool(self.failure) or self.verdict in {Verdict.REGRESSED, Verdict.BROKEN}

    @property
    def severity(self) -> int:
        """A number that is 0 for the best verdict and higher for worse ones; highest if the verdict failed a test."""
        return self.verdict.severity + len(Verdict) * bool(self.failure)

    @property
    def paired(self) -> PairedRevision | None:
        """The revision measured in the same rounds as the benchmark; None if a stored baseline is the reference."""
        return self.reference if isinstance(self.reference, PairedRevision) else None

    @property
    def pair(self) -> PairedRevision | None:
        """The other revision, or the baseline's commit, if measured in the same rounds as the benchmark; else None."""
        return self.reference if isinstance(self.reference, PairedRevision) else self.reference.pair

    @property
    def baseline(self) -> BaselineRecord | None:
        """The stored record that reports show. If nothing was timed, the record may come from another machine."""
        stored = self.reference
        if isinstance(stored, PairedRevision):
            return None
        comparable = stored.record is not None and not stored.differs
        return stored.record if comparable or self.measurement.launches or stored.counted is None else stored.counted

    def __repr__(self) -> str:
        """Returns verdict, benchmark and the main figure; the full record would fill pages."""
        measured = self.measurement
        changes = [c.change for c in self.comparisons if c.series.metric == "step_time" and c.change is not None]
        change = f" ({format_change(changes[0])})" if changes else ""
        ranks = format_count(measured.world_size, "rank")
        return f"<Result {self.verdict.value}: {self.test} {self.name}, {ranks}, {measured.figure}{change}>"

    @property
    def name(self) -> str:
        """The variant's name within its test."""
        return self.measurement.name

    def __getitem__(self, metric: str) -> Comparison:
        """Returns the comparison of a metric; raises KeyError if this benchmark has no such metric."""
        return {comparison.series.metric: comparison for comparison in self.comparisons}[metric]
