"""The results document: ``--ddpperf-report=json:FILE`` writes it."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from pytest_ddpperf.against.git import Checkout
from pytest_ddpperf.analysis.diagnosis import diagnosis_of
from pytest_ddpperf.baselines.document import Document, MetricName, Moment, Natural, NotNegative, Positive, about
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.baselines.jsonfile import uncollected
from pytest_ddpperf.judge.calibration import Calibrated
from pytest_ddpperf.metrics.communication import still_sent
from pytest_ddpperf.metrics.memory import memory_by_rank
from pytest_ddpperf.metrics.phases import SectionSummary, memory_of_phases, sections_of
from pytest_ddpperf.records.convergence import Convergence
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.launch import TimeSpent
from pytest_ddpperf.records.measurement import Better, Environment, Family, Interval, Mode, Plan, Scale, Series
from pytest_ddpperf.records.phases import MemoryUse
from pytest_ddpperf.records.results import Comparison, Result, StoredBaseline
from pytest_ddpperf.reports.documents import calls, parts
from pytest_ddpperf.reports.findings import words_of_note
from pytest_ddpperf.reports.overall import overall
from pytest_ddpperf.reports.phrases import findings
from pytest_ddpperf.stats.suites import CommonChange

if TYPE_CHECKING:
    from pytest_ddpperf.reports.outputs import Outputs

VerdictWord = Annotated[
    Literal[
        "improved", "unchanged", "ok", "new", "does_not_fit", "incompatible", "inconclusive", "regressed", "broken"
    ],
    Meta(
        description="What the comparison with the baseline says. ok: it is not worse by more than the resolution. "
        "inconclusive: this run could not tell. new: there is no baseline. does_not_fit: a rank ran out of memory, and "
        "what was compared with it was measured. incompatible: the baseline is of another environment. broken: it "
        "could not be measured."
    ),
]


_UNKNOWN = {"commit": None, "branch": None, "dirty": False, "commit_date": None}  # code outside of a repository


@uncollected
def results_document(
    made: Outputs, code: Checkout | None, *, date: str | None = None, interrupted: str | None = None
) -> dict[str, Any]:
    """Returns what a run has made, each in the order made, and the code that was run.

    ``interrupted``: why the run ended before all its tests had run; None if it did not. ``date``: when it ended.
    """
    benchmarks: list[Result | Calibrated] = [*made.results, *made.calibrated]
    environments = [benchmark.measurement.environment for benchmark in benchmarks]
    return ResultsData.filled_from(
        SimpleNamespace(
            schema="pytest-ddpperf/results/2",
            # Benchmarks of one run differ in their number of ranks: the largest group stands for the run.
            environment=max(environments, key=lambda environment: environment.world_size, default=None),
            environments={environment_key(environment): environment for environment in reversed(environments)},
            date=date,
            **(_UNKNOWN if code is None else asdict(code)),
            made=made,
            overall=overall(made.results),
            interrupted=interrupted,
        )
    )


class MetricData(Document, inside="series", of=[Comparison, Series], sparse=True):
    """One metric, judged. Times are in seconds, sizes in bytes, shares are fractions."""

    unit: str = about("SI base unit: s, B, samples/s, or 1 for plain ratios.")
    better: Better | None = about(
        "The direction of an improvement; null for counts, of which less is better.",
        lambda judged: None if judged.series.scale == "exact" else judged.series.better,
    )
    family: Family | None = about(
        "absolute: depends on the machine. relative: to a partner of the same run. Null for counts.",
        lambda judged: None if judged.series.scale == "exact" else judged.series.family,
    )
    scale: Scale = about(
        "How change, change_interval, tolerance, margin, mde and bound are meant: as fractions of the baseline, or as "
        "differences in the unit; exact ones must be equal."
    )
    gated: bool = about(always=True)
    value: float | None = about("The value over all launches; null if it is not finite.")
    interval: Interval | None
    samples: list[float | None] = about(
        "One value for each launch that tells the metric: all, or the first ones. Empty for counts.",
        lambda judged: () if judged.series.scale == "exact" else judged.series.samples,
    )
    baseline: float | None
    baseline_samples: list[float | None] = about(source="base_samples")
    change: float | None
    change_interval: Interval | None
    standard_error: NotNegative | None
    df: NotNegative | None = about("Degrees of freedom of the standard error; null for no end.")
    paired: bool
    worse_in: Natural | None
    min_tolerance: NotNegative | None = about(
        "The smallest tolerance that makes sense: a fraction, or where scale is difference an amount; null for counts.",
        lambda judged: None if judged.series.scale == "exact" else judged.series.min_tolerance,
    )
    tolerance: NotNegative | None = about(
        "The change that the test accepts; null if there is no limit, and for counts, which have to be equal.",
        lambda judged: None if judged.series.scale == "exact" else judged.tolerance,
    )
    margin: NotNegative | None
    mde: NotNegative | None
    bound: float | None
    interval_alpha: NotNegative | None
    bound_alpha: NotNegative | None
    verdict: VerdictWord
    note: str = about(
        "Why the verdict is what it is, where the numbers do not say it; may be empty.",
        lambda judged: "; ".join(filter(None, map(words_of_note, (judged.note, judged.difference)))),
    )


class ResultData(parts.BenchmarkData, of=[StoredBaseline]):
    """One benchmark."""

    mode: Mode | None
    over: str | None
    effective_batch_size: float | None
    verdict: VerdictWord
    failure: str
    metrics: dict[MetricName, MetricData] = about(
        "By name, snake_case; empty for a broken benchmark.",
        lambda result: {comparison.series.metric: comparison for comparison in result.comparisons},
    )
    plan: Plan = about("Steps of each launch, fixed before measuring; 0 for a benchmark that broke before that.")
    turns: bool
    launches: Natural = about(
        "Number of launches that the verdict rests on: each a fresh process group and one sample.",
        lambda result: len(result.measurement.launches),
    )
    step_times: list[list[float]] = about(
        "Seconds of each timed step of each launch, in order, each as long as on its slowest rank; the mean of every n "
        "steps where only n together do the same again, and without steps that fp16 overflows left out.",
        lambda result: [launch.step_times for launch in result.measurement.launches],
    )
    seconds: NotNegative
    time: TimeSpent | None = about(source="spent")
    against: parts.AgainstData | None = about(source="paired")
    paired_with: parts.AgainstData | None = about(
        "The commit of the stored baseline, if times were measured side by side with it; null elsewhere.",
        lambda result: None if result.paired is not None else result.pair,
    )
    unpaired: str = about(source=lambda result: getattr(result.reference, "unpaired", ""))
    baseline: parts.BaselineData | None
    origin: str = about("What the benchmark is compared with, or why with nothing, in words.", "reference.origin")
    counts: Counts | None
    still_sent: str = about(
        "What steps that averaged no gradients sent all the same: exposed communication is without it; empty for "
        "nothing.",
        lambda result: still_sent(result.measurement),
    )
    profile: parts.ProfileData | None
    diagnosis: parts.DiagnosisData | None = about(
        "What its step is bound by, and what would make it faster; null if no step was taken apart.",
        lambda result: diagnosis_of(result.measurement),
    )
    sections: list[SectionSummary] = about(
        "The parts of a step that the user named, averaged over ranks, launches and steps.",
        lambda result: sections_of(result.measurement),
    )
    memory_by_rank: dict[str, list[float]] = about(
        "By kind of memory: each rank's, averaged over launches; bytes, but for alloc_retries and ooms.",
        lambda result: memory_by_rank(result.measurement),
    )
    memory_by_phase: dict[str, MemoryUse] = about(
        "By phase: what it did to the memory of a rank in one step; the largest figures over ranks and launches.",
        lambda result: memory_of_phases(result.measurement),
    )
    findings: list[str] = about("Notes that a reader of the numbers needs, a sentence each.", findings)


class CommonChangeData(Document, of=[CommonChange]):
    """The change of the step time that tests have in common, one figure a test. It gates nothing."""

    tests: Positive
    change: float
    interval: Interval
    slower: bool


class OverallData(Document):
    """All benchmarks of the run together."""

    verdicts: dict[VerdictWord, Natural] = about("How many benchmarks have each verdict.")
    common_change: CommonChangeData | None = about(
        "The change of the step time that tests measured side by side have in common; null for fewer than three."
    )


class ResultsData(Document, inside="made"):
    """What --ddpperf-report=json:FILE writes: every benchmark of a run, measured and judged."""

    schema: Literal["pytest-ddpperf/results/2"] = about("Name and version of this format.")
    environment: Environment | None = about(
        "The environment of the largest process group of the run; null if nothing was measured."
    )
    environments: dict[str, Environment] = about(
        "By environment key, the environment of each benchmark; of several with one key the first."
    )
    date: Moment | None = about("When the run ended; ISO 8601, UTC.")
    commit: str | None = about("Full hash of the commit that was checked out; null outside of a git repository.")
    commit_date: Moment | None = about("Of the commit; ISO 8601, UTC. Null where unknown.")
    branch: str | None = about("That is checked out, or that the CI job runs for; null if unknown.")
    dirty: bool = about("Whether tracked files, those of the baselines apart, differed from the commit.")
    interrupted: str | None = about("Why the run ended before all its tests had run; null if it did not.")
    overall: OverallData = about("All benchmarks together.")
    results: list[ResultData] = about("One entry for each benchmark, in the order measured.")
    batch_sizes: list[calls.BatchSizeData] = about(
        "One entry for each search for the largest batch that fits, in the order made.", "searches"
    )
    calibration: list[calls.CalibratedData] = about(
        "One entry for each benchmark that ddpperf calibrate measured beside itself, in the order measured.",
        "calibrated",
    )
    convergences: list[Convergence] = about(
        "One entry for each call of converge, which trains by several strategies, in the order made."
    )
    advice: list[calls.StrategyAdviceData] = about("One entry for each call of advise, in the order made.")
    predictions: list[calls.PredictionData] = about("One entry for each step that was predicted, in the order made.")
