"""The trend document: ``ddpperf trend --json`` writes it."""

from __future__ import annotations

from typing import Annotated, Literal

from typing_extensions import TypedDict

from pytest_ddpperf.records.measurement import Better, Mode, Scale
from pytest_ddpperf.reports.documents.kinds import Natural, Positive, about


class TrendIntervalData(TypedDict):
    """A confidence interval."""

    low: float
    high: float
    confidence: float


class RunData(TypedDict):
    """The code that was measured."""

    commit: Annotated[str | None, about("Full hash; null outside of a git repository.")]
    dirty: Annotated[bool, about("Whether tracked files differed from the commit.")]
    date: Annotated[str, about("Of the commit, else of the run; ISO 8601, UTC.")]


class PointData(TypedDict):
    """The runs of one commit."""

    commit: Annotated[str | None, about("Full hash; null outside of a git repository.")]
    dirty: Annotated[bool, about("Whether tracked files differed from the commit.")]
    date: Annotated[str, about("Of the commit, else of the run; ISO 8601, UTC.")]
    branch: str | None
    recorded: Annotated[str, about("When the first of its runs was recorded; ISO 8601, UTC.")]
    runs: Positive
    value: Annotated[float, about("Of several runs their mean, geometric for ratios.")]
    interval: Annotated[TrendIntervalData | None, about("That of the launches of a single run.")]
    level: Annotated[float, about("The value without noise, as fitted.")]
    change: Annotated[float | None, about("Of the value against the level before; null for the first point.")]


class ChangeData(TypedDict):
    """A change that lasts."""

    kind: Literal["step", "creep"]
    worse: bool
    size: float
    interval: TrendIntervalData
    before: Annotated[RunData, about("The last commit of the old level.")]
    after: Annotated[RunData, about("The first commit of the new level.")]
    earliest: Annotated[RunData, about("A step lies after this commit with 95 % confidence.")]
    latest: Annotated[RunData, about("And not after this one.")]
    evidence: Annotated[
        float | None,
        about(
            "By how much a change of the other kind fits worse, as twice a logarithm of likelihood; null for "
            "counts, which have no noise."
        ),
    ]


class TrendData(TypedDict):
    """One variant of a benchmark on one kind of machine."""

    test: Annotated[str, about("pytest node id.")]
    name: Annotated[str, about("Of the variant within its test.")]
    strategy: str
    mode: Annotated[Mode | None, about("Of a point of a scaling curve.")]
    recipe: Annotated[dict[str, str], about("The settings that are not the defaults.")]
    world_size: Positive
    environment_key: str
    steps: Annotated[
        Natural | None,
        about(
            "After how many steps, warm-up included, a final_loss is; null for other metrics, and where that was "
            "not recorded."
        ),
    ]
    beside: Annotated[
        bool,
        about(
            "Whether steps were timed in turns with those of other launches, and so last a little longer; false for"
            " counts, which do not depend on it."
        ),
    ]
    unit: str
    better: Better
    scale: Annotated[Scale, about("Changes are relative for ratios, else absolute.")]
    points: Annotated[list[PointData], about("One for each commit, in order.")]
    changes: Annotated[list[ChangeData], about("In order.")]
    outliers: Annotated[
        list[Natural], about("Numbers, from 0, of the points that are out of line with their neighbours.")
    ]


class TrendsData(TypedDict):
    """What ddpperf trend --json writes: a metric over commits, and where it changed."""

    schema: Annotated[Literal["pytest-ddpperf/trend/1"], about("Name and version of this format.")]
    metric: Annotated[str, about("What all trends are of.")]
    trends: Annotated[
        list[TrendData],
        about("Of a test: one for each variant, number of ranks and environment; of all tests: those that changed."),
    ]
