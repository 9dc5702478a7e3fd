"""Where the time of steps went, as a table: shares of the step by phase, and the user's own sections."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.metrics.phases import SectionSummary, sections_of
from pytest_ddpperf.phases import PHASES
from pytest_ddpperf.reports.phrases import find
from pytest_ddpperf.reports.table import NOTHING, Table, labels_of, variant_text
from pytest_ddpperf.results import Result
from pytest_ddpperf.units import format_count, format_value, significant

_MEMORY = {"heap": "heap", "allocated": "CUDA memory"}


def phase_table(results: Sequence[Result]) -> Table | None:
    """One row for each benchmark whose steps were taken apart; None if there is none."""
    labels = labels_of(results)
    rows, notes = [], []
    for result in results:
        phases = [find(result, f"phase_{phase}") for phase in PHASES]
        seconds = [0.0 if phase is None else phase.series.value for phase in phases]
        if not sum(seconds):
            continue
        shares = [f"{100 * one / sum(seconds):.0f}" if one else NOTHING for one in seconds]
        rows.append((labels[result.test], variant_text(result), *shares))
        name = f"{labels[result.test]} {variant_text(result)}"
        notes += [f"{name}, {section_text(section)}" for section in sections_of(result.measurement)]
    if not rows:
        return None
    return Table(
        title="shares of a step in %, of the average rank, in steps of their own",
        headers=("benchmark", "variant", *(phase.replace("_", " ") for phase in PHASES)),
        rows=tuple(rows),
        notes=tuple(notes),
        left=2,
        right=0,
    )


def section_text(section: SectionSummary) -> str:
    """A section in one line: ``encode: 2 entries a step, 1.50 ms each, 30.0 % of the step, +4.00 MiB of heap``."""
    whole = section.count == round(section.count)
    count = format_count(round(section.count), "entry") if whole else f"{significant(section.count)} entries"
    each = format_value(section.mean, "s")
    text = f"{section.path}: {count} a step, {each} each, {100 * section.share:.1f} % of the step"
    memory = section.memory
    return text if memory is None else f"{text}, {memory.change / 2**20:+.2f} MiB of {_MEMORY[memory.kind]}"
