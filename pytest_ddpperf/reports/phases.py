"""Where the time of steps went: a table of shares by phase and the user's own sections; which parts changed."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.metrics.communication import EXPOSED
from pytest_ddpperf.metrics.phases import SectionSummary, sections_of
from pytest_ddpperf.records.phases import PHASES
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.reports.phrases import change_text, find, words_of
from pytest_ddpperf.reports.table import NOTHING, Table, labels_of, variant_text
from pytest_ddpperf.units import format_count, format_value, significant

PARTS = {EXPOSED: "exposed communication", **{f"phase_{phase}": phase.replace("_", " ") for phase in PHASES}}
"""The metrics that take a step apart, in words. Exposed communication is inside the phases."""

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


def parts_text(result: Result) -> str:
    """Which parts of a step changed together with its time, and which did not, as far as their intervals tell.

    A part has changed where the interval of its change is all on one side of 0, and the change is more than the
    tolerance of the step time comes to; the one that changed most comes first. It is unchanged where its whole interval
    is within that. Of any other part neither can be said, and parts that take less than that on both sides are no news.
    """
    step = find(result, "step_time")
    if step is None or step.baseline is None:
        return ""
    limit = step.tolerance * step.baseline
    found = {words: find(result, metric) for metric, words in PARTS.items()}
    parts = {words: part for words, part in found.items() if part is not None and _is_news(part, limit)}
    moved = {words: part for words, part in parts.items() if _has_changed(part, limit)}
    largest_first = sorted(moved.items(), key=lambda one: -abs(one[1].change or 0.0))
    changed = [f"{words} {change_text(part)}" for words, part in largest_first]
    unchanged = [words for words, part in parts.items() if _is_unchanged(part, limit)]
    within = f"{'each ' if len(unchanged) > 1 else ''}within {format_value(limit, 's')}"
    return "; ".join([*changed, *([f"{words_of(unchanged)} unchanged, {within}"] if unchanged else [])])


def _is_news(part: Comparison, limit: float) -> bool:
    return part.baseline is not None and max(abs(part.baseline), abs(part.series.value)) > limit


def _has_changed(part: Comparison, limit: float) -> bool:
    change, interval = part.change, part.change_interval
    return (
        change is not None and interval is not None and abs(change) > limit and not interval.low <= 0 <= interval.high
    )


def _is_unchanged(part: Comparison, limit: float) -> bool:
    interval = part.change_interval
    return interval is not None and -limit <= interval.low and interval.high <= limit
