"""Predicted steps as a table: how long, how much of it is communication, and what a change would gain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from pytest_ddpperf.metrics.health import LOAD
from pytest_ddpperf.reports.table import NOTHING, Column, Quantity, Table, table_of
from pytest_ddpperf.units import format_count, format_percent, signed_percent

if TYPE_CHECKING:
    from typing import TypeAlias

    from pytest_ddpperf.records.predictions import Candidate, Gain, Predicted, Prediction, StrategyAdvice
    from pytest_ddpperf.reports.documents.calls import CandidateData, PredictionData, StepData, StrategyAdviceData

    # Of a run, or of the file that it wrote.
    Step: TypeAlias = Prediction | StepData

_LEGEND = {
    "memory": "the most bytes of tensors of a rank; 10 % of what there is is left for the allocator and NCCL",
    "advice": "by the predicted time for a sample, and for a step where samples are not known",
    "step": "most likely, and in brackets at best and at worst",
    "sample": "the predicted step over the samples of all ranks",
    "exposed": "communication that computing does not hide, as a share of the step",
    "eff.": "the share of the step in which ranks compute: the efficiency of weak scaling beside one rank",
    "gain": "how much less time a sample takes than in the first way; in brackets at worst and at best",
}


def predictions_table(predictions: Sequence[Predicted | PredictionData]) -> Table:
    """One row for each prediction, in the order made."""
    steps = [_predicted(one) for one in predictions]
    networks = dict.fromkeys(step.network for step in steps)
    computing = dict.fromkeys(_computing(step) for step in steps)
    columns: dict[str, Column[Predicted | PredictionData]] = {
        "prediction": lambda one: f"{one.test.partition('::')[2]} {_predicted(one).name}",
        "ranks": lambda one: str(_predicted(one).world_size),
        "network": lambda one: _predicted(one).network if len(networks) > 1 else "",
        "computing": lambda one: _computing(_predicted(one)) if len(computing) > 1 else "",
        "step": _step(_predicted),
        "exposed": Quantity(value=lambda one: _predicted(one).exposed / _predicted(one).seconds, unit="%"),
        "eff.": _efficiency(_predicted),
        "gain\n%": lambda one: _gain(one.gain),
    }
    # What all rows have in common stands in the title.
    where = [*networks] * (len(networks) == 1) + [f"computing of {one}" for one in computing if len(computing) == 1]
    title = f"steps that were predicted, not measured: {', '.join(where)}".removesuffix(": ")
    return _explained(table_of(predictions, columns, every=False, title=title), steps)


def _predicted(one: Predicted | PredictionData) -> Prediction | PredictionData:
    return cast("Prediction | PredictionData", getattr(one, "prediction", one))


def _computing(step: Step) -> str:
    return step.accelerator or "this machine"


def _explained(table: Table, steps: Iterable[Step]) -> Table:
    """The table with the meanings of its columns, and whether others computed while steps were timed."""
    names = {header.partition("\n")[0] for header in table.headers}
    lost = max((step.lost for step in steps), default=0.0)
    busy = f"others used {format_percent(lost)} of the cores while computing was timed: a quiet machine predicts less"
    legend = {name: meaning for name, meaning in _LEGEND.items() if name in names}
    return replace(table, notes=(busy,) if lost > LOAD else (), legend=legend)


def advice_table(advice: StrategyAdvice | StrategyAdviceData) -> Table:
    """One row for each candidate, the best one first; what has no prediction comes last, with the reason."""
    candidates: Sequence[Candidate | CandidateData] = advice.candidates
    predictions = [each.prediction for each in candidates if each.prediction is not None]
    alike = len({each.batch_size for each in candidates}) == 1  # then the step tells as much as a sample

    def sample(each: Candidate | CandidateData) -> float | None:
        step = each.prediction
        return None if alike or step is None or not step.samples else step.seconds / step.samples

    columns: dict[str, Column[Candidate | CandidateData]] = {
        "training": lambda each: each.name,
        "batch": lambda each: "" if each.batch_size is None else str(each.batch_size),
        "memory": Quantity(value=lambda each: each.memory, unit="B"),
        "step": _step(attrgetter("prediction")),
        "sample": Quantity(value=sample, unit="s", apart=True),
        "measured": Quantity(value=lambda each: each.measured, unit="s"),
        "eff.": _efficiency(attrgetter("prediction")),
        "advice": _standing,
    }
    where = f", {predictions[0].network}, computing of {_computing(predictions[0])}" if predictions else ""
    title = f"ways to train on {format_count(advice.world_size, 'rank')}{where}"
    return _explained(table_of(candidates, columns, every=False, title=title), predictions)


def best_line(advice: StrategyAdvice) -> str:
    """The sentence on what to train with; empty if nothing has a prediction."""
    best = advice.best
    if best is None:
        return ""
    settings = "".join(f", {word}={value!r}" for word, value in best.settings.items())
    batch = "" if best.batch_size is None else f", with a batch of {best.batch_size} samples on each rank"
    others = sum(each.standing == "maybe as good" for each in advice.candidates)
    hedge = f"; {format_count(others, 'other')} may be as good" if others else ""
    return f"best: strategy={best.strategy!r}{settings}{batch}{hedge}"


def _standing(candidate: Candidate | CandidateData) -> str:
    return f"{candidate.standing}: {candidate.reason}" if candidate.reason else candidate.standing


def _band(step_of: Callable[[Any], Step | None], unit: str, *fields: str) -> Quantity[Any]:
    """A column of a step's figure with both ends of its band."""

    def text(item: Any, number: Callable[[float], str]) -> str:
        return "{} [{}, {}]".format(*(number(getattr(step_of(item), field)) for field in fields))

    return Quantity(value=lambda item: getattr(step_of(item), fields[0], None), unit=unit, text=text)


def _step(step_of: Callable[[Any], Step | None]) -> Quantity[Any]:
    return _band(step_of, "s", "seconds", "low", "high")


def _efficiency(step_of: Callable[[Any], Step | None]) -> Quantity[Any]:
    return _band(step_of, "%", "efficiency", "efficiency_low", "efficiency_high")


def _gain(gain: Gain | None) -> str:
    if gain is None:
        return NOTHING
    value, low, high = (signed_percent(end) for end in (gain.value, gain.low, gain.high))
    return f"{value} [{low}, {high}]"
