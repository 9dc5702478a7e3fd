"""Tables of find_batch_size, converge, calibrate, predict, what_if and advise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.judge.calibration import Calibrated
from pytest_ddpperf.metrics.findings import LOAD
from pytest_ddpperf.records.verbs import LOSS, Convergence, Search, Standing, Trainings
from pytest_ddpperf.reports import table as tables
from pytest_ddpperf.reports.lines import with_names
from pytest_ddpperf.reports.phrases import environment_text
from pytest_ddpperf.units import format_count, format_percent, signed_percent, significant

if TYPE_CHECKING:
    from pytest_ddpperf.records.predictions import Predicted, StrategyAdvice
    from pytest_ddpperf.reports.documents.entries import PredictionEntry, StrategyAdviceEntry

_QUALITIES = ("equal", "within tolerance", "inconclusive", "differs", "worse")  # the worst one is shown
_EFFICIENCY = ("efficiency", "efficiency_low", "efficiency_high")
_MEANINGS_OF_CONVERGENCE = {
    "worse": "how much worse the last value is than with the first strategy, in the same launches; below 0 is better",
    "equal": "the values differ no more than if rounding errors change the first strategy's initial weights",
    "within tolerance": "if gradients are inexact, or buffers of ranks differ: the whole interval is in the tolerance",
    "inconclusive": "may be worse by more than the tolerance: use more launches or steps",
    "differs": "the values differ by more than rounding explains, although both strategies declare exact gradients",
}
_MEANINGS_OF_CALIBRATION = {
    "red": 'runs of the unchanged code with the verdict "regressed" (false alarms)',
    "green": 'runs with a verdict that passes, such as "unchanged" or "ok"',
    "at most": "the slowdown that a run rules out (median of the runs)",
    "finds": "the smallest slowdown that a run finds with a probability of 95 % (median of the runs)",
    "gross": "a suitable value of ddpperf_gross: 1.5 times the largest difference between two runs",
}
_MEANINGS_OF_PREDICTIONS = {
    "memory": "the most bytes of tensors on a rank; 10 % of the memory is kept free for the allocator and NCCL",
    "advice": "the ranking by the predicted time of a sample, or of a step if the number of samples is unknown",
    "step": "the most likely time; in brackets the best and the worst case",
    "sample": "the predicted time of a step divided by the samples of all ranks",
    "exposed": "communication that computing does not hide, as a share of the step",
    "eff.": "the share of the step in which ranks compute, which is the efficiency of weak scaling from one rank",
    "gain": "how much less time a sample takes than with the first variant; in brackets the worst and the best case",
}


def call_tables(
    searches: Sequence[Search],
    convergences: Sequence[Convergence],
    predictions: Sequence[Predicted | PredictionEntry],
    advice: Sequence[StrategyAdvice | StrategyAdviceEntry],
    calibrated: Sequence[Calibrated] = (),
) -> dict[str, list[tables.Table]]:
    """Returns the tables that show these results, by title of the report's section."""
    advised = [(one.test.partition("::")[2], advice_table(one)) for one in advice]
    return {
        "batch sizes": [batch_size_table(searches)] if searches else [],
        "convergence": [convergence_table(convergences)] if convergences else [],
        "predictions": [predictions_table(predictions)] if predictions else [],
        "advice": [replace(table, title=f"{test}: {table.title}") for test, table in advised],
        "calibration": [calibration_table(calibrated)] if calibrated else [],
    }


def batch_size_table(searches: Sequence[Search]) -> tables.Table:
    """Returns a table with a row for each search of a batch size: sizes that fit, sizes that do not, peak memory."""
    return tables.table_of(
        searches,
        {
            "search": lambda each: f"{each.test.partition('::')[2]} {each.training}",
            "ranks": lambda each: str(each.world_size),
            "fits": lambda each: str(each.size),
            "does not": lambda each: str(
                min((trial.size for trial in each.tried if not trial.fits), default="the limit")
            ),
            "peak": tables.Quantity(value=lambda each: each.peak, unit="B"),
            "of": tables.Quantity(value=lambda each: each.memory_limit, unit="B"),
            "tried": lambda each: ", ".join(str(trial.size) for trial in each.tried),
        },
        title="the largest batch of a rank, by its number of samples",
    )


def convergence_table(convergences: Sequence[Convergence]) -> tables.Table:
    """Returns a table with a row for each strategy: last loss and metric, change from the first strategy, verdict."""
    trainings = [(found, one) for found in convergences for one in found.strategies]
    finals = [final for _, one in trainings for final in one.finals.values()]
    kept = [row.worse for found in convergences for row in found.kept]

    def metric(found: Convergence, one: Trainings) -> str:
        return "" if found.metric == LOSS else f"{found.metric} {_number(one.finals[found.metric].value)}"

    def worse(found: Convergence, one: Trainings, quantity: str) -> str:
        row = _standings(found, one).get(quantity)
        if row is None or not math.isfinite(row.worse.value):
            return tables.NOTHING
        return tables.with_interval(signed_percent, row.worse.value, row.worse.interval)

    return tables.table_of(
        trainings,
        {
            "training": lambda each: f"{each[0].test.partition('::')[2]} {each[1].name}",
            "ranks": lambda each: str(each[0].world_size),
            "steps": lambda each: str(each[1].curves[0].steps[-1]),
            "launches": lambda each: str(len(each[1].curves)),
            tables.interval_header("loss", (final.interval for final in finals)): lambda each: tables.with_interval(
                _number, each[1].finals[LOSS].value, each[1].finals[LOSS].interval
            ),
            "metric": lambda each: metric(*each),
            tables.interval_header("loss worse\n%", (row.interval for row in kept)): lambda each: worse(*each, LOSS),
            "metric worse\n%": lambda each: "" if each[0].metric == LOSS else worse(*each, each[0].metric),
            "tolerance": tables.Quantity(
                value=lambda each: max((row.tolerance for row in _standings(*each).values()), default=None), unit="%"
            ),
            "quality": lambda each: max(
                (row.agreement for row in _standings(*each).values()), key=_QUALITIES.index, default="first"
            ),
        },
        every=False,
        title="trainings from the same weights on the same batches, mean over ranks and launches",
        legend=_MEANINGS_OF_CONVERGENCE,
    )


def _standings(found: Convergence, one: Trainings) -> dict[str, Standing]:
    """Returns, by quantity (loss or metric), how a strategy's last values differ from the first strategy's."""
    return {row.quantity: row for row in found.kept if row.name == one.name}


def _number(value: float) -> str:
    return significant(value) if math.isfinite(value) else "not finite"


def calibration_table(calibrated: Sequence[Calibrated]) -> tables.Table:
    """Returns a table of benchmarks that were compared with themselves: false alarms, and detectable slowdowns."""
    machines = dict.fromkeys(environment_text(benchmark.measurement.environment) for benchmark in calibrated)
    alarms = sum(benchmark.alarms.found for benchmark in calibrated)
    runs = sum(benchmark.alarms.of for benchmark in calibrated)
    return tables.table_of(
        with_names(calibrated),
        {
            "benchmark": lambda named: named[0],
            "ranks": lambda named: str(named[1].measurement.world_size),
            "step time": tables.Quantity(value=lambda named: named[1].measurement["step_time"].value, unit="s"),
            "red": lambda named: f"{named[1].alarms.found} of {named[1].alarms.of}",
            "green": lambda named: f"{named[1].green.found} of {named[1].green.of}",
            "at most": tables.Quantity(value=lambda named: named[1].bound, unit="%"),
            "finds": tables.Quantity(value=lambda named: named[1].mde, unit="%"),
            "gross": lambda named: f"{named[1].gross:g}",
        },
        title="; ".join(machines),
        notes=(f"{alarms} of {runs} comparisons of unchanged code with itself were red",),
        legend=_MEANINGS_OF_CALIBRATION,
    )


def predictions_table(predictions: Sequence[Predicted | PredictionEntry]) -> tables.Table:
    """Returns a table with a row for each predicted step, in the order of the calls."""
    found: list[tuple[Any, Any]] = [(one, getattr(one, "prediction", one)) for one in predictions]  # or of a file
    steps = [step for _, step in found]
    networks = dict.fromkeys(step.network for step in steps)
    computing = dict.fromkeys(map(_computing, steps))
    columns: dict[str, tables.Column[tuple[Any, Any]]] = {
        "prediction": lambda each: f"{each[0].test.partition('::')[2]} {each[1].name}",
        "ranks": lambda each: str(each[1].world_size),
        "network": lambda each: each[1].network if len(networks) > 1 else "",
        "computing": lambda each: _computing(each[1]) if len(computing) > 1 else "",
        "step": _band(itemgetter(1), "s", "seconds", "low", "high"),
        "exposed": tables.Quantity(value=lambda each: each[1].exposed / each[1].seconds, unit="%"),
        "eff.": _band(itemgetter(1), "%", *_EFFICIENCY),
        "gain\n%": lambda each: (
            "" if (gain := each[0].gain) is None else tables.with_interval(signed_percent, gain.value, gain)
        ),
    }
    # What all rows have in common stands in the title.
    where = [*networks] * (len(networks) == 1) + [f"computing of {one}" for one in computing if len(computing) == 1]
    title = f"steps that were predicted, not measured: {', '.join(where)}".removesuffix(": ")
    return _explained(tables.table_of(found, columns, every=False, title=title), steps)


def _computing(step: Any) -> str:
    return step.accelerator or "this machine"


def _explained(table: tables.Table, steps: Iterable[Any]) -> tables.Table:
    """Adds the meanings of the columns to a table, and a note if other processes took cores while steps were timed."""
    lost = max((step.lost for step in steps), default=0.0)
    busy = f"other processes used {format_percent(lost)} of the cores during the timing: a quiet machine is faster"
    return tables.with_meanings(replace(table, notes=(busy,) if lost > LOAD else ()), _MEANINGS_OF_PREDICTIONS)


def advice_table(advice: StrategyAdvice | StrategyAdviceEntry) -> tables.Table:
    """Returns a table with a row for each candidate, the best one first; candidates without a prediction come last."""
    candidates: Sequence[Any] = advice.candidates
    predictions = [each.prediction for each in candidates if each.prediction is not None]
    alike = len({each.batch_size for each in candidates}) == 1  # then the step says as much as a sample

    def of_sample(step: Any) -> float | None:
        return None if alike or step is None or not step.samples else step.seconds / step.samples

    columns: dict[str, tables.Column[Any]] = {
        "training": lambda each: each.name,
        "batch": lambda each: "" if each.batch_size is None else str(each.batch_size),
        "memory": tables.Quantity(value=lambda each: each.memory, unit="B"),
        "step": _band(attrgetter("prediction"), "s", "seconds", "low", "high"),
        "sample": tables.Quantity(value=lambda each: of_sample(each.prediction), unit="s", alone=True),
        "measured": tables.Quantity(value=lambda each: each.measured, unit="s"),
        "eff.": _band(attrgetter("prediction"), "%", *_EFFICIENCY),
        "advice": lambda each: f"{each.standing}: {each.reason}".removesuffix(": "),
    }
    where = f", {predictions[0].network}, computing of {_computing(predictions[0])}" if predictions else ""
    title = f"variants on {format_count(advice.world_size, 'rank')}{where}"
    return _explained(tables.table_of(candidates, columns, every=False, title=title), predictions)


def best_line(advice: StrategyAdvice) -> str:
    """Returns the sentence that recommends the best candidate; empty if no candidate has a prediction."""
    best = advice.best
    if best is None:
        return ""
    settings = "".join(f", {word}={value!r}" for word, value in best.settings.items())
    batch = "" if best.batch_size is None else f", with a batch of {best.batch_size} samples on each rank"
    others = sum(each.standing == "maybe as good" for each in advice.candidates)
    hedge = f"; {format_count(others, 'other')} may be as good" if others else ""
    return f"best: strategy={best.strategy!r}{settings}{batch}{hedge}"


def _band(step_of: Callable[[Any], Any], unit: str, *fields: str) -> tables.Quantity[Any]:
    """Returns a column that shows a predicted value and its band; ``fields`` names the value and both ends."""

    def text(item: Any, number: Callable[[float], str]) -> str:
        return "{} [{}, {}]".format(*(number(getattr(step_of(item), field)) for field in fields))

    return tables.Quantity(value=lambda item: getattr(step_of(item), fields[0], None), unit=unit, text=text)
