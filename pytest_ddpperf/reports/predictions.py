"""Predicted steps as a table: how long, how much of it is communication, and what a change would gain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_ddpperf.metrics.health import LOAD
from pytest_ddpperf.reports.table import NOTHING, Table, filled_columns
from pytest_ddpperf.units import Scale, format_count, format_percent, scale, signed_percent

if TYPE_CHECKING:
    from typing import TypeAlias

    from pytest_ddpperf.records.predictions import Candidate, Gain, Prediction, StrategyAdvice
    from pytest_ddpperf.reports.documents.calls import CandidateData, PredictionData, StepData, StrategyAdviceData

    # Of a run, or of the file that it wrote.
    Step: TypeAlias = Prediction | StepData
    Named: TypeAlias = tuple[str, Prediction | PredictionData, Gain | None]  # test, step, gain

_LEGEND = {
    "memory": "the most bytes of tensors of a rank; 10 % of what there is is left for the allocator and NCCL",
    "advice": "by the predicted time for a sample, and for a step where samples are not known",
    "step": "most likely, and in brackets at best and at worst",
    "sample": "the predicted step over the samples of all ranks",
    "exposed": "communication that computing does not hide, as a share of the step",
    "eff.": "the share of the step in which ranks compute: the efficiency of weak scaling beside one rank",
    "gain": "how much less time a sample takes than in the first way; in brackets at worst and at best",
}


def predictions_table(predictions: Sequence[Named]) -> Table:
    """One row for each prediction, in the order made."""
    steps = [step for _, step, _ in predictions]
    common = scale([step.seconds for step in steps], "s")
    columns = {
        "prediction": [f"{test.partition('::')[2]} {step.name}" for test, step, _ in predictions],
        "ranks": [str(step.world_size) for step in steps],
        "network": [step.network for step in steps],
        "computing": [step.accelerator or "this machine" for step in steps],
        f"step\n{common.unit}": [_step(step, common) for step in steps],
        "exposed\n%": [format_percent(step.exposed / step.seconds).removesuffix(" %") for step in steps],
        "eff.\n%": [_efficiency(step) for step in steps],
        "gain\n%": [_gain(gain) for _, _, gain in predictions],
    }
    # What all rows have in common stands in the title.
    where = [
        f"{words}{columns.pop(header)[0]}"
        for header, words in (("network", ""), ("computing", "computing of "))
        if len(set(columns[header])) == 1
    ]
    return _table(f"steps that were predicted, not measured: {', '.join(where)}".removesuffix(": "), columns, steps)


def _table(title: str, columns: Mapping[str, Sequence[str]], steps: Iterable[Step]) -> Table:
    """The columns that have anything, with their meanings, and whether others computed while steps were timed."""
    headers, rows = filled_columns(columns)
    names = {header.partition("\n")[0] for header in headers}
    lost = max((step.lost for step in steps), default=0.0)
    busy = f"others used {format_percent(lost)} of the cores while computing was timed: a quiet machine predicts less"
    return Table(
        title=title,
        headers=headers,
        rows=rows,
        notes=(busy,) if lost > LOAD else (),
        legend={name: meaning for name, meaning in _LEGEND.items() if name in names},
    )


def advice_table(advice: StrategyAdvice | StrategyAdviceData) -> Table:
    """One row for each candidate, the best one first; what has no prediction comes last, with the reason."""
    predictions = [each.prediction for each in advice.candidates if each.prediction is not None]
    common = scale([each.seconds for each in predictions], "s")
    samples = _sample_seconds(advice)
    of_sample = scale([each for each in samples if each is not None], "s")
    sizes = scale([each.memory for each in advice.candidates if each.memory is not None], "B")
    found_steps = [each.prediction for each in advice.candidates]
    columns = {
        "training": [each.name for each in advice.candidates],
        "batch": ["" if each.batch_size is None else str(each.batch_size) for each in advice.candidates],
        f"memory\n{sizes.unit}": [
            "" if each.memory is None else sizes.number(each.memory) for each in advice.candidates
        ],
        f"step\n{common.unit}": ["" if step is None else _step(step, common) for step in found_steps],
        f"sample\n{of_sample.unit}": ["" if each is None else of_sample.number(each) for each in samples],
        f"measured\n{common.unit}": [
            "" if each.measured is None else common.number(each.measured) for each in advice.candidates
        ],
        "eff.\n%": ["" if step is None else _efficiency(step) for step in found_steps],
        "advice": [_standing(each) for each in advice.candidates],
    }
    found = predictions[0] if predictions else None
    where = "" if found is None else f", {found.network}, computing of {found.accelerator or 'this machine'}"
    return _table(f"ways to train on {format_count(advice.world_size, 'rank')}{where}", columns, predictions)


def _sample_seconds(advice: StrategyAdvice | StrategyAdviceData) -> list[float | None]:
    """What a sample of the whole group takes; None if the step tells as much, because batches are of one size."""
    if len({each.batch_size for each in advice.candidates}) == 1:
        return [None] * len(advice.candidates)
    found = [each.prediction for each in advice.candidates]
    return [None if each is None or not each.samples else each.seconds / each.samples for each in found]


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


def _step(found: Step, common: Scale) -> str:
    value, low, high = map(common.number, (found.seconds, found.low, found.high))
    return f"{value} [{low}, {high}]"


def _efficiency(found: Step) -> str:
    ends = (found.efficiency, found.efficiency_low, found.efficiency_high)
    value, low, high = (format_percent(end).removesuffix(" %") for end in ends)
    return f"{value} [{low}, {high}]"


def _gain(gain: Gain | None) -> str:
    if gain is None:
        return NOTHING
    value, low, high = (signed_percent(end) for end in (gain.value, gain.low, gain.high))
    return f"{value} [{low}, {high}]"
