"""Trainings by several strategies as a table: where each ended, and how that stands to the first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_ddpperf.records.convergence import LOSS, Convergence, Standing, Trainings
from pytest_ddpperf.reports.phrases import interval_header, with_interval
from pytest_ddpperf.reports.table import NOTHING, Table
from pytest_ddpperf.units import signed_percent, significant

_LEGEND = {
    "worse": "than the first strategy, in the same launches; below 0 if it is better",
    "equal": "the same but for rounding, which is known from the first strategy with weights moved by it",
    "within tolerance": "not worse by more than the tolerance, for sure; gradients are not exact, or buffers differ",
    "inconclusive": "it may be worse by more than the tolerance: more launches or steps tell",
    "differs": "by more than rounding explains, of strategies that declare exact gradients",
}


def convergence_table(convergences: Sequence[Convergence]) -> Table:
    """One row for each strategy: the last loss, the last metric, by how much each is worse, and what that means."""
    finals = [final for each in convergences for one in each.strategies for final in one.finals.values()]
    kept = [row.worse for each in convergences for row in each.kept]
    return Table(
        title="trainings from the same weights on the same batches, mean over ranks and launches",
        headers=(
            "training",
            "ranks",
            "steps",
            "launches",
            interval_header("loss", (final.interval for final in finals)),
            "metric",
            interval_header("loss worse\n%", (worse.interval for worse in kept)),
            "metric worse\n%",
            "quality",
        ),
        rows=tuple(_row(each, one) for each in convergences for one in each.strategies),
        legend=_LEGEND,
    )


def _row(found: Convergence, one: Trainings) -> tuple[str, ...]:
    kept = {row.quantity: row for row in found.kept if row.name == one.name}
    metric = found.metric if found.metric != LOSS else None
    loss = one.finals[LOSS]
    return (
        f"{found.test.partition('::')[2]} {one.name}",
        str(found.world_size),
        str(one.curves[0].steps[-1]),
        str(len(one.curves)),
        with_interval(_number, loss.value, loss.interval),
        NOTHING if metric is None else f"{metric} {_number(one.finals[metric].value)}",
        _worse(kept.get(LOSS)),
        _worse(kept.get(metric or "")),
        _quality([row.agreement for row in kept.values()]),
    )


def _number(value: float) -> str:
    return significant(value) if math.isfinite(value) else "not finite"


def _worse(kept: Standing | None) -> str:
    if kept is None or not math.isfinite(kept.worse.value):
        return NOTHING
    return with_interval(signed_percent, kept.worse.value, kept.worse.interval)


def _quality(agreements: Sequence[str]) -> str:
    """The least that the quantities of a strategy agree in."""
    order = ("worse", "differs", "inconclusive", "within tolerance", "equal")
    return next((each for each in order if each in agreements), "first")
