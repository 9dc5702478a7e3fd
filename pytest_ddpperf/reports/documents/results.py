"""The results document: ``--ddpperf-json`` writes it."""

from __future__ import annotations

from typing import Annotated, Literal

from typing_extensions import TypedDict

from pytest_ddpperf.reports.documents.benchmark import ResultData
from pytest_ddpperf.reports.documents.kinds import IntervalData, Natural, NotNegative, Positive, about
from pytest_ddpperf.reports.documents.machine import EnvironmentData, LaunchesHealth


class TrialData(TypedDict):
    """A batch size that was tried."""

    size: Annotated[Positive, about("The batch size.")]
    fits: Annotated[bool, about("Whether every rank could train with it.")]
    peak: Annotated[
        NotNegative | None, about("The most bytes that a rank used; null where one ran out of memory, or cannot tell.")
    ]


class BatchSizeData(TypedDict):
    """A search for the largest batch that fits into memory."""

    test: Annotated[str, about("pytest node id.")]
    training: Annotated[str, about("Strategy and settings in one line.")]
    world_size: Annotated[Positive, about("Number of ranks.")]
    environment_key: Annotated[str, about("Stands for the environment of the search.")]
    size: Annotated[Positive, about("The largest batch size of a rank that fits.")]
    peak: Annotated[NotNegative | None, about("The most bytes that a rank used with it; null where it cannot tell.")]
    limit: Annotated[Positive | None, about("The largest size that was to be tried; null for no limit.")]
    memory_limit: Annotated[Positive | None, about("Bytes that each rank might use; null for what the device has.")]
    tried: Annotated[list[TrialData], about("What was tried, in order.", min_length=1)]


class SpreadData(TypedDict):
    """A standard deviation on the scale of logarithms: 0.01 is 1 %."""

    sd: Annotated[NotNegative | None, about("The standard deviation.")]
    df: Annotated[Natural, about("Degrees of freedom of the estimate.")]


class RateData(TypedDict):
    """A share of comparisons."""

    found: Annotated[Natural, about("Comparisons in which it happened.")]
    of: Annotated[Positive, about("Comparisons.")]
    independent: Annotated[Positive, about("How many of them have no run in common: what the interval rests on.")]
    value: Annotated[NotNegative | None, about("The share.")]
    interval: Annotated[IntervalData | None, about("Clopper and Pearson's.")]


class RecommendedData(TypedDict):
    """Settings that the benchmark wants, given its noise."""

    launches: Annotated[Positive, about("Launches before the first verdict.")]
    steps: Annotated[Positive, about("Timed steps of a launch.")]
    tolerance: Annotated[NotNegative, about("The worsening to accept.")]
    max_time: Annotated[NotNegative | None, about("Seconds of measuring; null where the present setting is enough.")]


class CalibratedData(TypedDict):
    """A benchmark that was held against itself."""

    test: Annotated[str, about("pytest node id.")]
    name: Annotated[str, about("Tells the benchmarks of one test apart.")]
    strategy: Annotated[
        str, about("How training is made parallel, options included; custom for a step that brings its own.")
    ]
    recipe: Annotated[
        dict[str, str], about("The settings that change what a step does, where they are not the defaults.")
    ]
    world_size: Annotated[Positive, about("Number of ranks.")]
    environment_key: Annotated[
        str, about("Stands for the environment of this benchmark; names the folder of its baseline.")
    ]
    step_time: Annotated[list[list[float | None]], about("Seconds of a typical step, by run and launch.")]
    steps: Annotated[Positive, about("Timed steps of each launch.")]
    seconds: Annotated[NotNegative | None, about("From the start of the first run to that of the last.")]
    within: Annotated[SpreadData, about("How far the steps of a launch lie apart.")]
    between_launches: Annotated[SpreadData, about("How far the typical steps of a run's launches lie apart.")]
    between_runs: Annotated[SpreadData, about("How far runs deviate beyond what their launches explain.")]
    noise_floor: Annotated[
        NotNegative | None,
        about("The relative change that one run in 20 of the same code exceeds: no tolerance below it has a meaning."),
    ]
    mde: Annotated[
        NotNegative | None, about("Minimal detectable effect of the step time in a comparison of two runs; the median.")
    ]
    false_alarms: Annotated[RateData, about("Runs that were called slower than another run of the same code.")]
    inconclusive: Annotated[RateData, about("Runs of which it could not be told.")]
    recommended: Annotated[RecommendedData, about("Settings that the benchmark wants, given this noise.")]
    health: LaunchesHealth
    findings: Annotated[list[str], about("Remarks that a reader of the numbers needs, a sentence each.")]


class ResultsData(TypedDict):
    """What --ddpperf-json writes: every benchmark of a run, measured and judged."""

    schema: Annotated[Literal["pytest-ddpperf/results/1"], about("Name and version of this format.")]
    environment: Annotated[
        EnvironmentData | None,
        about("The environment of the largest process group of the run; null if nothing was measured."),
    ]
    commit: Annotated[
        str | None, about("Full hash of the commit that was checked out; null outside of a git repository.")
    ]
    dirty: Annotated[bool, about("Whether tracked files, those of the baselines apart, differed from the commit.")]
    results: Annotated[list[ResultData], about("One entry for each benchmark, in the order measured.")]
    batch_sizes: Annotated[
        list[BatchSizeData], about("One entry for each search for the largest batch that fits, in the order made.")
    ]
    calibration: Annotated[
        list[CalibratedData],
        about(
            "One entry for each benchmark that --ddpperf-calibrate held against itself, in the order measured; "
            "empty otherwise."
        ),
    ]
