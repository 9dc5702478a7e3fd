"""Predicted steps as a table: how long, how much of it is communication, and what a change would gain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_ddpperf.analysis.candidates import Candidate, StrategyAdvice
from pytest_ddpperf.analysis.predictions import Gain, Predicted, Prediction
from pytest_ddpperf.reports.table import NOTHING, Table
from pytest_ddpperf.units import Scale, format_count, format_percent, scale, signed_percent

_LEGEND = {
    "memory": "the most bytes of tensors of a rank; 10 % of what there is is left for the allocator and NCCL",
    "advice": "by the predicted time for a sample, and for a step where samples are not known",
    "step": "most likely, and in brackets at best and at worst",
    "exposed": "communication that computing does not hide, as a share of the step",
    "eff.": "the share of the step in which ranks compute: the efficiency of weak scaling beside one rank",
    "gain": "how much less time a sample takes than in the first way; in brackets at worst and at best",
}


def predictions_table(predictions: Sequence[Predicted]) -> Table:
    """One row for each prediction, in the order made."""
    common = scale([one.prediction.seconds for one in predictions], "s")
    columns = [
        ("prediction", [_name(one) for one in predictions]),
        ("ranks", [str(one.prediction.world_size) for one in predictions]),
        ("network", [one.prediction.network for one in predictions]),
        ("computing", [one.prediction.accelerator or "this machine" for one in predictions]),
        (f"step\n{common.unit}", [_step(one.prediction, common) for one in predictions]),
        ("exposed\n%", [format_percent(_exposed(one.prediction)).removesuffix(" %") for one in predictions]),
        ("eff.\n%", [_efficiency(one.prediction) for one in predictions]),
        ("gain\n%", [_gain(one.gain) for one in predictions]),
    ]
    filled = [
        (header, cells)
        for header, cells in columns
        if set(cells) != {NOTHING} and not (header in {"network", "computing"} and len(set(cells)) == 1)
    ]
    return Table(
        title=f"steps that were predicted, not measured: {_where(columns[2][1], columns[3][1])}".removesuffix(": "),
        headers=tuple(header for header, _ in filled),
        rows=tuple(zip(*(cells for _, cells in filled), strict=True)),
        narrower=("eff.", "computing"),
        legend=_meanings(header for header, _ in filled),
    )


def _where(networks: Sequence[str], computing: Sequence[str]) -> str:
    """The network and the accelerator that all rows have in common."""
    common = [networks[0]] if len(set(networks)) == 1 else []
    return ", ".join([*common, *([f"computing of {computing[0]}"] if len(set(computing)) == 1 else [])])


def _meanings(headers: Iterable[str]) -> dict[str, str]:
    """What the columns of a table mean that there are."""
    names = {header.partition("\n")[0] for header in headers}
    return {name: meaning for name, meaning in _LEGEND.items() if name in names}


def advice_table(advice: StrategyAdvice) -> Table:
    """One row for each candidate, the best one first; what does not fit comes last, with the reason."""
    predictions = [each.prediction for each in advice.candidates if each.prediction is not None]
    common = scale([each.seconds for each in predictions], "s")
    sizes = scale([each.memory for each in advice.candidates if each.memory is not None], "B")
    equal = {candidate.name for candidate in advice.equals}

    def verdict(candidate: Candidate) -> str:
        if candidate.prediction is None:
            return f"{'not timed' if candidate.fits else 'does not fit'}: {candidate.reason}"
        if candidate is advice.best:
            return "best"
        return "maybe as good" if candidate.name in equal else "slower"

    columns = [
        ("training", [each.name for each in advice.candidates]),
        ("batch", [NOTHING if each.batch_size is None else str(each.batch_size) for each in advice.candidates]),
        (
            f"memory\n{sizes.unit}",
            [NOTHING if each.memory is None else sizes.number(each.memory) for each in advice.candidates],
        ),
        (
            f"step\n{common.unit}",
            [NOTHING if each.prediction is None else _step(each.prediction, common) for each in advice.candidates],
        ),
        (
            f"measured\n{common.unit}",
            [NOTHING if each.measured is None else common.number(each.measured) for each in advice.candidates],
        ),
        (
            "eff.\n%",
            [NOTHING if each.prediction is None else _efficiency(each.prediction) for each in advice.candidates],
        ),
        ("advice", list(map(verdict, advice.candidates))),
    ]
    filled = [(header, cells) for header, cells in columns if set(cells) != {NOTHING}]
    found = predictions[0] if predictions else None
    where = "" if found is None else f", {found.network}, computing of {found.accelerator or 'this machine'}"
    return Table(
        title=f"ways to train on {format_count(advice.world_size, 'rank')}{where}",
        headers=tuple(header for header, _ in filled),
        rows=tuple(zip(*(cells for _, cells in filled), strict=True)),
        narrower=("eff.",),
        legend=_meanings(header for header, _ in filled),
    )


def _name(one: Predicted) -> str:
    return f"{one.test.partition('::')[2]} {one.prediction.name}"


def _step(found: Prediction, common: Scale) -> str:
    value, low, high = map(common.number, (found.seconds, found.low, found.high))
    return f"{value} [{low}, {high}]"


def _exposed(found: Prediction) -> float:
    return found.exposed / found.seconds


def _efficiency(found: Prediction) -> str:
    ends = (format_percent(end).removesuffix(" %") for end in found.efficiencies)
    return f"{format_percent(found.efficiency).removesuffix(' %')} [{', '.join(ends)}]"


def _gain(gain: Gain | None) -> str:
    if gain is None:
        return NOTHING
    value, low, high = (signed_percent(end) for end in (gain.value, gain.low, gain.high))
    return f"{value} [{low}, {high}]"
