"""What calls other than check made, as tables: searches for the largest batch, trainings to the end, calibrations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pytest_ddpperf.judge.calibration import Calibrated
from pytest_ddpperf.records.batch_size import BatchSize, Search
from pytest_ddpperf.records.convergence import LOSS, Convergence, Standing, Trainings
from pytest_ddpperf.reports.names import names_of
from pytest_ddpperf.reports.phrases import environment_text, interval_header, with_interval
from pytest_ddpperf.reports.predictions import advice_table, predictions_table
from pytest_ddpperf.reports.table import NOTHING, Quantity, Table, table_of
from pytest_ddpperf.units import signed_percent, significant

if TYPE_CHECKING:
    from pytest_ddpperf.records.predictions import Predicted, StrategyAdvice
    from pytest_ddpperf.reports.documents.calls import BatchSizeData, PredictionData, StrategyAdviceData

_MEANINGS_OF_CONVERGENCE = {
    "worse": "than the first strategy, in the same launches; below 0 if it is better",
    "equal": "the same but for rounding, which is known from the first strategy with weights moved by it",
    "within tolerance": "not worse by more than the tolerance, for sure; gradients are not exact, or buffers differ",
    "inconclusive": "it may be worse by more than the tolerance: more launches or steps tell",
    "differs": "by more than rounding explains, of strategies that declare exact gradients",
}
_MEANINGS_OF_CALIBRATION = {
    "red": "runs in which unchanged code was called slower",
    "green": "runs that were unchanged or ok",
    "at most": "the slowdown that a run rules out, the median",
    "finds": "the smallest slowdown that a run finds in 95 of 100 cases, the median",
    "gross": "a value of ddpperf_gross that suits: half as much again as two runs were apart at most",
}


def call_tables(
    searches: Sequence[Search | BatchSizeData],
    convergences: Sequence[Convergence],
    predictions: Sequence[Predicted | PredictionData],
    advice: Sequence[StrategyAdvice | StrategyAdviceData],
) -> dict[str, list[Table]]:
    """The tables of what these calls made, by what a part of a report with them is called."""
    advised = [(one.test.partition("::")[2], advice_table(one)) for one in advice]
    return {
        "batch sizes": [batch_size_table(searches)] if searches else [],
        "convergence": [convergence_table(convergences)] if convergences else [],
        "predictions": [predictions_table(predictions)] if predictions else [],
        "advice": [replace(table, title=f"{test}: {table.title}") for test, table in advised],
    }


def batch_size_table(searches: Sequence[Search | BatchSizeData]) -> Table:
    """One row for each search: what fits, what does not, what it takes and what was tried."""
    found = [(search, cast("BatchSize", getattr(search, "found", search))) for search in searches]
    return table_of(
        found,
        {
            "search": lambda each: f"{each[0].test.partition('::')[2]} {each[0].training}",
            "ranks": lambda each: str(getattr(each[0], "environment", cast("Any", each[0])).world_size),
            "fits": lambda each: str(each[1].size),
            "does not": lambda each: str(
                min((trial.size for trial in each[1].tried if not trial.fits), default="the limit")
            ),
            "peak": Quantity(value=lambda each: each[1].peak, unit="B"),
            "of": Quantity(value=lambda each: each[0].memory_limit, unit="B"),
            "tried": lambda each: ", ".join(str(trial.size) for trial in each[1].tried),
        },
        title="the largest batch of a rank, by its number of samples",
    )


def convergence_table(convergences: Sequence[Convergence]) -> Table:
    """One row for each strategy: the last loss, the last metric, by how much each is worse, and what that means."""
    trainings = [(found, one) for found in convergences for one in found.strategies]
    finals = [final for _, one in trainings for final in one.finals.values()]
    kept = [row.worse for found in convergences for row in found.kept]

    def metric(found: Convergence, one: Trainings) -> str:
        return "" if found.metric == LOSS else f"{found.metric} {_number(one.finals[found.metric].value)}"

    def worse(found: Convergence, one: Trainings, quantity: str) -> str:
        row = _standings(found, one).get(quantity)
        if row is None or not math.isfinite(row.worse.value):
            return NOTHING
        return with_interval(signed_percent, row.worse.value, row.worse.interval)

    return table_of(
        trainings,
        {
            "training": lambda each: f"{each[0].test.partition('::')[2]} {each[1].name}",
            "ranks": lambda each: str(each[0].world_size),
            "steps": lambda each: str(each[1].curves[0].steps[-1]),
            "launches": lambda each: str(len(each[1].curves)),
            interval_header("loss", (final.interval for final in finals)): lambda each: with_interval(
                _number, each[1].finals[LOSS].value, each[1].finals[LOSS].interval
            ),
            "metric": lambda each: metric(*each),
            interval_header("loss worse\n%", (row.interval for row in kept)): lambda each: worse(*each, LOSS),
            "metric worse\n%": lambda each: "" if each[0].metric == LOSS else worse(*each, each[0].metric),
            "tolerance": Quantity(
                value=lambda each: max((row.tolerance for row in _standings(*each).values()), default=None), unit="%"
            ),
            "quality": lambda each: _quality([row.agreement for row in _standings(*each).values()]),
        },
        every=False,
        title="trainings from the same weights on the same batches, mean over ranks and launches",
        legend=_MEANINGS_OF_CONVERGENCE,
    )


def _standings(found: Convergence, one: Trainings) -> dict[str, Standing]:
    """How the end of the trainings stands to that of the first strategy, by quantity."""
    return {row.quantity: row for row in found.kept if row.name == one.name}


def _number(value: float) -> str:
    return significant(value) if math.isfinite(value) else "not finite"


def _quality(agreements: Sequence[str]) -> str:
    """The least that the quantities of a strategy agree in."""
    order = ("worse", "differs", "inconclusive", "within tolerance", "equal")
    return next((each for each in order if each in agreements), "first")


def calibration_table(calibrated: Sequence[Calibrated]) -> Table:
    """One row for each benchmark that was measured side by side with itself: what its verdicts are worth here."""
    machines = dict.fromkeys(environment_text(benchmark.measurement.environment) for benchmark in calibrated)
    alarms = sum(benchmark.alarms.found for benchmark in calibrated)
    runs = sum(benchmark.alarms.of for benchmark in calibrated)
    return table_of(
        zip(names_of(calibrated), calibrated, strict=True),
        {
            "benchmark": lambda named: named[0],
            "ranks": lambda named: str(named[1].measurement.world_size),
            "step time": Quantity(value=lambda named: named[1].measurement["step_time"].value, unit="s"),
            "red": lambda named: f"{named[1].alarms.found} of {named[1].alarms.of}",
            "green": lambda named: f"{named[1].green.found} of {named[1].green.of}",
            "at most": Quantity(value=lambda named: named[1].bound, unit="%"),
            "finds": Quantity(value=lambda named: named[1].mde, unit="%"),
            "gross": lambda named: f"{named[1].gross:g}",
        },
        title="; ".join(machines),
        notes=(f"{alarms} of {runs} comparisons of unchanged code with itself were red",),
        legend=_MEANINGS_OF_CALIBRATION,
    )
