"""How much of a step is communication, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.metrics.communication import EXPOSED, OVERHEAD, still_sent
from pytest_ddpperf.reports.phrases import change_text, find
from pytest_ddpperf.reports.table import NOTHING, Table, labels_of, variant_text
from pytest_ddpperf.results import Comparison, Result
from pytest_ddpperf.units import Scale, scale, significant


def communication_table(results: Sequence[Result]) -> Table | None:
    """One row for each benchmark whose communication was measured; None if there is none."""
    labels = labels_of(results)
    found = [(result, exposed) for result in results if (exposed := find(result, EXPOSED)) is not None]
    if not found:
        return None
    common = scale([exposed.series.value for _, exposed in found], "s")
    rows, notes = [], []
    for result, exposed in found:
        rows.append((labels[result.test], variant_text(result), _exposed(exposed, common), _overhead(result)))
        sent = still_sent(result.measurement)
        if sent:
            notes.append(f"{labels[result.test]} {variant_text(result)}: exposed communication is without {sent}")
    return Table(
        title="communication that nothing hides: steps with synchronised gradients less steps without",
        headers=("benchmark", "variant", f"exposed\n{common.unit}", "of a step\n%"),
        rows=tuple(rows),
        notes=tuple(notes),
        left=2,
    )


def exposed_change_text(result: Result) -> str:
    """By how much exposed communication changed, where that is more than chance: its interval is all on one side of 0.

    Returns:
        ``exposed communication +5.10 ms [95 % CI +4.00 ms .. +6.20 ms]``; empty where there is nothing to be said.
    """
    exposed = find(result, EXPOSED)
    interval = None if exposed is None else exposed.change_interval
    if exposed is None or interval is None or interval.low <= 0 <= interval.high:
        return ""
    return f"exposed communication {change_text(exposed)}"


def _exposed(exposed: Comparison, common: Scale) -> str:
    interval = exposed.series.interval
    value = common.number(exposed.series.value)
    return value if interval is None else f"{value} [{common.number(interval.low)}, {common.number(interval.high)}]"


def _overhead(result: Result) -> str:
    overhead = find(result, OVERHEAD)
    return NOTHING if overhead is None else significant(100 * overhead.series.value)
