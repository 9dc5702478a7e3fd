"""Trainings by several strategies in the results document."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from pytest_ddpperf.records.convergence import Agreement
from pytest_ddpperf.reports.document import Document, IntervalData, Natural, NotNegative, Positive, about


class CurveData(Document):
    """One training; its values are means over the ranks."""

    steps: list[Positive] = about("The optimizer steps before each point.")
    values: dict[str, list[float | None]] = about(
        "By quantity, a number for each point: loss, the mean over the steps since the point before, and what is "
        "evaluated; null for what is not finite."
    )


class FinalValueData(Document):
    """A figure over launches."""

    value: float | None = about("The mean over launches; null if it is not finite.")
    interval: IntervalData | None = about("Where it lies; null if too few launches tell it.")
    samples: list[float | None] = about("Of each launch.")


class TrainingsData(Document):
    """The trainings by one strategy."""

    name: str = about("Of the strategy.")
    curves: list[CurveData] = about("A curve for each launch.")
    finals: dict[str, FinalValueData] = about("By quantity, where trainings ended.")
    lost: list[str] = about("What was not finite, a line for each launch in which a training ended so.")


class StandingData(Document):
    """How the end of a strategy's trainings stands to that of the first strategy's, launch by launch."""

    name: str = about("Of the strategy.")
    quantity: str = about("loss, or the name of the metric.")
    worse: FinalValueData = about(
        "By how much it is worse, as a share of the first strategy's value; null if a training was lost."
    )
    apart: NotNegative | None = about("The largest difference in a launch, in the quantity's unit.")
    allowed: NotNegative | None = about(
        "The largest such difference that rounding explains; null if the strategy's gradients are not exact."
    )
    tolerance: NotNegative = about("The share by which it may be worse.")
    agreement: Agreement = about(
        "The verdict. equal: but for rounding. within tolerance: not worse by more than the tolerance. differs: by "
        "more than rounding explains, though gradients are exact. worse: by more than the tolerance, beyond chance."
    )


class ConvergenceData(Document):
    """Trainings by several strategies, from the same weights on the same batches."""

    test: str = about("pytest node id.")
    world_size: Positive = about("Number of ranks.")
    metric: str = about("The quantity that is held besides the loss; loss where nothing is evaluated.")
    launches: Natural = about("Each trains by all strategies.", lambda found: len(found.strategies[0].curves))
    strategies: Annotated[list[TrainingsData], Meta(min_length=2)] = about(
        "In the order given; the others are held to the first one."
    )
    kept: list[StandingData] = about("How each of the others stands to the first one, a row for each quantity.")
