"""A benchmark in a results document, measured and judged."""

from __future__ import annotations

from typing import Annotated

from typing_extensions import TypedDict

from pytest_ddpperf.records.measurement import Better, Family, Mode, Scale
from pytest_ddpperf.reports.documents.kinds import (
    Date,
    IntervalData,
    MetricName,
    Natural,
    NotNegative,
    Positive,
    VerdictWord,
    about,
)
from pytest_ddpperf.reports.documents.machine import LaunchesHealth
from pytest_ddpperf.reports.documents.step import CountsData, MemoryUseData, ProfileData, SectionData


class PlanData(TypedDict):
    """Steps of each launch, fixed before measuring."""

    warmup: Annotated[Natural, about("Untimed steps at the start.")]
    steps: Annotated[Natural, about("Timed steps.")]


class ModuleData(TypedDict):
    """The files that the ranks of each side imported a module from."""

    here: Annotated[str | None, about("Of this checkout; null where it was not imported.")]
    there: Annotated[str | None, about("Of the other one; null where it was not imported.")]


class AgainstData(TypedDict):
    """The other side of a run with --ddpperf-against."""

    revision: Annotated[str, about("The revision in words: 3f2a1c0 (main).")]
    commit: Annotated[str | None, about("Its full hash; null for a folder that is no git checkout.")]
    launches: Annotated[
        Natural,
        about("Number of launches of that side that the verdict rests on; 0 where it cannot run the benchmark."),
    ]
    modules: Annotated[
        dict[str, ModuleData], about("By module of the project, the file that the ranks of each side imported.")
    ]


class ProvenanceData(TypedDict):
    """When and at what commit something was saved."""

    date: Annotated[Date, about("The day.")]
    commit: Annotated[str | None, about("The commit; null where unknown.")]
    dirty: Annotated[bool, about("Whether tracked files differed from that commit.")]


class BaselineData(TypedDict):
    """The record compared with."""

    environment_key: Annotated[str, about("The environment it was measured in.")]
    date: Annotated[Date, about("The day it was saved.")]
    commit: Annotated[str | None, about("The commit it was saved at; null where unknown.")]
    dirty: Annotated[bool, about("Whether tracked files differed from that commit.")]
    counted: Annotated[
        ProvenanceData | None,
        about("When and at what commit its counts were saved, where not with the rest; else null."),
    ]


class MetricData(TypedDict):
    """One metric, judged. Times are in seconds, sizes in bytes, shares are fractions."""

    unit: Annotated[str, about("SI base unit: s, B, samples/s, or 1 for plain ratios.")]
    better: Annotated[Better, about("The direction of an improvement.")]
    family: Annotated[
        Family,
        about(
            "absolute: depends on the machine. relative: to a partner of the same run. counted: without noise, the "
            "same on every machine."
        ),
    ]
    scale: Annotated[
        Scale,
        about(
            "How change, change_interval, tolerance, margin and mde are meant: as fractions of the baseline, or as "
            "differences in the unit; exact ones must be equal."
        ),
    ]
    gated: Annotated[bool, about("Whether this verdict counts for the benchmark's.")]
    value: Annotated[float | None, about("Typical value over the launches; null where it is not finite.")]
    interval: Annotated[IntervalData | None, about("Where the value lies; null with fewer than two launches.")]
    samples: Annotated[
        list[float | None], about("One value for each launch that tells the metric: all, or the first ones.")
    ]
    baseline: Annotated[float | None, about("The baseline's value.")]
    baseline_samples: Annotated[
        list[float | None],
        about(
            "One value for each launch of the baseline that tells it; beside another revision, of the same rounds "
            "and in the same order as samples. Empty without a baseline, and for counts."
        ),
    ]
    change: Annotated[float | None, about("From baseline to value: 0.132 is +13.2 % where scale is ratio.")]
    change_interval: Annotated[IntervalData | None, about("Where the change lies.")]
    tolerance: Annotated[NotNegative | None, about("The change that the test accepts; null where there is no limit.")]
    margin: Annotated[
        NotNegative | None,
        about(
            "The worsening that an unchanged metric was shown not to reach: five thirds of the tolerance; null "
            "where nothing was compared, and for counts."
        ),
    ]
    mde: Annotated[
        NotNegative | None,
        about(
            "Minimal detectable effect: the smallest worsening that this run would have found with 95 % probability."
        ),
    ]
    verdict: VerdictWord
    note: Annotated[str, about("Why the verdict is what it is, where the numbers do not say it; may be empty.")]


class ResultData(TypedDict):
    """One benchmark."""

    test: Annotated[str, about("pytest node id.")]
    name: Annotated[str, about("Tells the benchmarks of one test apart.")]
    strategy: Annotated[
        str, about("How training is made parallel, options included; custom for a step that brings its own.")
    ]
    recipe: Annotated[
        dict[str, str], about("The settings that change what a step does, where they are not the defaults.")
    ]
    mode: Annotated[Mode | None, about("How a point of a scaling curve was measured; null for a plain benchmark.")]
    over: Annotated[
        str | None, about("Name of the benchmark, measured side by side, that speedup is held against; null for none.")
    ]
    world_size: Annotated[Positive, about("Number of ranks.")]
    effective_batch_size: Annotated[
        float | None, about("Samples that one optimizer step of all ranks trains on; null where unknown.")
    ]
    environment_key: Annotated[
        str, about("Stands for the environment of this benchmark; names the folder of its baseline.")
    ]
    verdict: VerdictWord
    metrics: Annotated[dict[MetricName, MetricData], about("By name, snake_case; empty for a broken benchmark.")]
    plan: Annotated[
        PlanData, about("Steps of each launch, fixed before measuring; 0 for a benchmark that broke before that.")
    ]
    turns: Annotated[
        bool, about("Whether its steps were timed in turns with those of other launches, and so last a little longer.")
    ]
    launches: Annotated[
        Natural, about("Number of launches that the verdict rests on: each a fresh process group and one sample.")
    ]
    seconds: Annotated[
        NotNegative,
        about(
            "Seconds of measuring until the verdict, of all benchmarks that were measured side by side with this "
            "one; 0 where nothing was timed."
        ),
    ]
    against: Annotated[AgainstData | None, about("The other side of a run with --ddpperf-against; null without.")]
    baseline: Annotated[BaselineData | None, about("The record compared with; null for none.")]
    origin: Annotated[str, about("Where the baseline comes from, or in words why there is none.")]
    counts: Annotated[
        CountsData | None,
        about("What one step does, counted: what the counted metrics are made of; null where nothing was counted."),
    ]
    still_sent: Annotated[
        str,
        about(
            "What steps that averaged no gradients sent all the same: exposed communication is without it; empty "
            "for nothing."
        ),
    ]
    profile: Annotated[
        ProfileData | None,
        about(
            "Communication of a step as the profiler sees it, averages over steps and ranks, in seconds; null "
            "without --ddpperf-profile."
        ),
    ]
    sections: Annotated[
        list[SectionData],
        about(
            "The parts of a step that the user named, averaged over ranks, launches and the faster three quarters "
            "of steps."
        ),
    ]
    memory_by_rank: Annotated[
        dict[str, list[float]],
        about("By kind of memory: each rank's, averaged over launches; bytes, but for alloc_retries and ooms."),
    ]
    memory_by_phase: Annotated[
        dict[str, MemoryUseData],
        about(
            "By phase: what it did to the memory of a rank in one step; the largest figures over ranks and launches."
        ),
    ]
    health: LaunchesHealth
    findings: Annotated[list[str], about("Remarks that a reader of the numbers needs, a sentence each.")]
